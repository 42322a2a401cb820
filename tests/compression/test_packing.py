import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from g2lstm.compression.encodings import Dense, Grid, Integers, LowRank
from g2lstm.compression.encodings.panels import pack, packed_size, unpack, word_for
from g2lstm.errors import G2Error

LEVELS = st.one_of(st.integers(2, 20), st.integers(2, 300), st.integers(2, 65536), st.sampled_from([256, 257, 65536]))


def codes_of(count: int, levels: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, levels, count)


@pytest.mark.parametrize(
    ("levels", "codes", "bits"),
    [
        *[(2, 1, 1), (3, 5, 8), (4, 1, 2), (5, 3, 7), (6, 5, 13), (7, 1, 3), (9, 5, 16), (11, 2, 7), (16, 1, 4)],
        *[(255, 1, 8), (256, 1, 8), (257, 1, 9), (65535, 1, 16), (65536, 1, 16)],
    ],
)
def test_words(levels, codes, bits):
    assert word_for(levels) == (codes, bits)


def test_no_layout_of_a_word_takes_fewer_bits():
    for levels in [*range(2, 300), *range(300, 65537, 97), 65536]:
        codes, bits = word_for(levels)
        assert levels**codes <= 2**bits
        assert bits <= 16
        for other in range(1, 17):
            fitting = max((k for k in range(1, 17) if levels**k <= 2**other), default=0)
            assert fitting == 0 or other / fitting >= bits / codes
            assert not (other < bits and fitting and other / fitting == bits / codes)


def test_the_bits_by_hand():
    # Words of seven bits: 4 + 5 * 2 + 25 * 1 = 39 and 3 + 5 * 4 = 23; 39 + 23 * 128 = 2983 = 11 * 256 + 167.
    assert pack(np.array([4, 2, 1, 3, 4]), 5).tolist() == [167, 11]
    assert unpack(np.array([167, 11], dtype=np.uint8), 5, 5).tolist() == [4, 2, 1, 3, 4]
    assert pack(np.array([1, 0, 0, 1, 0, 0, 0, 0, 1]), 2).tolist() == [9, 1]
    assert pack(np.array([[1, 15], [2, 0]]), 16).tolist() == [0xF1, 0x02]
    assert pack(np.array([258, 65535]), 65536).tolist() == [2, 1, 255, 255]


def test_every_level_and_every_odd_size():
    for levels in (2, 3, 5, 6, 7, 9, 16, 200, 257, 65536):
        each, bits = word_for(levels)
        for count in range(8 * each * 2 + 2):
            codes = (np.arange(count) * 7 + levels - 1) % levels
            packed = pack(codes, levels)
            assert packed.nbytes == packed_size(count, levels) == math.ceil(math.ceil(count / each) * bits / 8)
            assert np.array_equal(unpack(packed, count, levels), codes)
        if levels <= 257:
            every = np.arange(levels)
            assert np.array_equal(unpack(pack(every, levels), levels, levels), every)


@given(levels=LEVELS, count=st.integers(0, 300), seed=st.integers(0, 99))
def test_round_trip(levels, count, seed):
    codes = codes_of(count, levels, seed)
    packed = pack(codes, levels)
    assert packed.dtype == np.uint8
    assert packed.shape == (packed_size(count, levels),)
    again = unpack(packed, count, levels)
    assert again.dtype == (np.uint8 if levels <= 256 else np.uint16)
    assert np.array_equal(again, codes)


@given(levels=LEVELS, count=st.integers(0, 60), data=st.data())
def test_bytes_are_either_refused_or_the_only_ones_of_their_codes(levels, count, data):
    size = packed_size(count, levels)
    packed = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), dtype=np.uint8)
    try:
        codes = unpack(packed, count, levels)
    except G2Error:
        return
    assert codes.size == 0 or codes.max() < levels
    assert np.array_equal(pack(codes, levels), packed)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint64])
def test_any_integers_and_any_strides_can_be_packed(kind):
    codes = codes_of(6 * 8, 5).astype(kind).reshape(6, 8)
    assert np.array_equal(unpack(pack(codes, 5), 48, 5), codes.reshape(-1))
    assert np.array_equal(unpack(pack(codes.T[::2], 5), 24, 5), codes.T[::2].reshape(-1))


@pytest.mark.parametrize("levels", [-1, 0, 1, 65537, 10**30])
def test_levels_that_cannot_be_packed(levels):
    message = f"only codes with 2 to 65536 levels can be packed, got {levels}"
    with pytest.raises(G2Error, match=message):
        pack(np.array([0]), levels)
    with pytest.raises(G2Error, match=message):
        unpack(np.zeros(1, dtype=np.uint8), 1, levels)


def test_codes_that_cannot_be_packed():
    for codes in ([0, 5], [-1, 2]):
        with pytest.raises(G2Error, match=f"codes of 5 levels must be 0 to 4, got {min(codes)} to {max(codes)}"):
            pack(np.array(codes), 5)
    with pytest.raises(G2Error, match="codes must be integers, got float64"):
        pack(np.array([0.0, 1.0]), 5)


@pytest.mark.parametrize(
    ("packed", "count"),
    [
        (np.zeros(6, dtype=np.uint8), 24),
        (np.zeros(8, dtype=np.uint8), 24),
        (np.zeros((7, 1), dtype=np.uint8), 24),
        (np.zeros(7, dtype=np.int8), 24),
        (np.zeros(7, dtype=np.uint8), 10**18),
        (np.zeros(7, dtype=np.uint8), 0),
    ],
)
def test_a_buffer_of_another_size(packed, count):
    with pytest.raises(G2Error, match=rf"{count} codes of 5 levels take a row of \d+ bytes, got u?int8 \([0-9, ]+\)"):
        unpack(packed, count, 5)


def test_a_negative_count():
    with pytest.raises(G2Error, match="the number of packed codes can't be negative, got -1"):
        unpack(np.zeros(0, dtype=np.uint8), -1, 5)


def test_bytes_that_hold_no_codes():
    assert unpack(np.array([124, 0], dtype=np.uint8), 4, 5).tolist() == [4, 4, 4, 0]
    with pytest.raises(G2Error, match="packed codes are damaged: one of them is outside the 5 levels"):
        unpack(np.array([125, 0], dtype=np.uint8), 4, 5)
    for rest in ([0, 1 << 6], [128, 2]):  # a bit after the second word; 5 as the second word, which is a second digit
        with pytest.raises(G2Error, match="packed codes are damaged: the padding after the last one is not 0"):
            unpack(np.array(rest, dtype=np.uint8), 4, 5)


# Encodings, as files hold them


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


CODES = np.zeros((2, 40), np.int8)


@pytest.mark.parametrize("values", [CODES, np.zeros(3, np.float32), ones(0, 3), ones(2, 3).astype(np.float64)])
def test_values_that_are_no_matrix(values):
    with pytest.raises(G2Error, match="must be float32 or float16 with at least one row and one column, got "):
        Dense(values)


def test_low_rank_names_the_tensors_of_its_factors():
    low = LowRank(Dense(ones(5, 3)), Integers(np.zeros((3, 40), np.int8), ones(3)))
    assert list(low.packed) == ["left.values", "right.codes", "right.scales"]
    assert low.shape == (5, 40)
    assert low.rank == 3


def test_five_levels_are_stored_in_seven_thirds_of_a_bit():
    grid = Grid.encode(torch.randn(40, 60), {"round": 0.2, "clip": 0.4})
    assert (grid.lowest, grid.levels) == (-2, 5)
    assert grid.stored_bytes == 2400 // 3 * 7 // 8
    assert Grid.encode(torch.zeros(3, 3), {"round": 0.2}).stored_bytes == 2


def test_groups_of_another_size():
    codes = np.arange(-8, 8, dtype=np.int8).reshape(2, 8)
    got = Integers(codes, np.array([[1.0, 2.0, 4.0], [0.5, -1.0, 0.0]], np.float16), 4, 3)
    assert got.decode().tolist() == [[-8, -7, -6, -10, -8, -6, -8, -4], [0, 0.5, 1, -3, -4, -5, 0, 0]]
    assert got.stored_bytes == 8 + 12
