"""Packed matrices hold what the encodings hold; a plain decoder reads them from the other side."""

import numpy as np
import pytest

from g2lstm.compression.encodings.panels import CHUNKS
from g2lstm.export.c.matrices import ROWS, Stored, stored
from tests.compression.stacks import FORMS, matrix

SHAPES = [(1, 1), (16, 32), (21, 70), (33, 7)]


def fields(words, bits):
    """The fours of a chunk, from its words (..., words, rows): (..., fours, rows)."""
    word = lambda k: words[..., k, :]  # noqa: E731
    if bits == 8:
        return [word(0), word(1)]
    if bits == 6:
        low, high = 0x3F3F3F3F, 0x03030303
        joined = sum((word(k) >> 6 & high) << 2 * k for k in range(3))
        return [word(0) & low, word(1) & low, word(2) & low, joined]
    if bits == 3:
        fours = [word(k) >> 3 * half & 0x07070707 for k in range(3) for half in range(2)]
        fours.append(word(0) >> 6 & 0x03030303 | word(2) >> 4 & 0x04040404)
        return [*fours, word(1) >> 6 & 0x03030303 | word(2) >> 5 & 0x04040404]
    mask = ((1 << bits) - 1) * 0x01010101
    return [word(0) >> bits * k & mask for k in range(8 // bits)]


def decoded(one: Stored) -> np.ndarray:
    rows, columns = one.shape
    if one.form in (16, 32):
        values = one.data.view(np.float16) if one.form == 16 else one.data
        return one.factor * values.reshape(len(one.data), -1, ROWS).swapaxes(1, 2).reshape(-1, columns)[:rows]
    bits = one.form % 64
    words = one.data.reshape(len(one.data), -1, CHUNKS[bits] * bits // 32, ROWS)
    fours = np.stack(fields(words, bits), axis=2)  # (panels, chunks, fours, ROWS)
    columns_of = np.stack([fours >> 8 * k & 255 for k in range(4)], axis=3)
    codes = columns_of.reshape(len(words), -1, ROWS).swapaxes(1, 2).reshape(-1, words.shape[1] * CHUNKS[bits])
    values = 2.0 * codes - (2**bits - 1) if one.form >= 128 else codes - 2.0 ** (bits - 1)
    values = values[:rows, :columns] * one.factor
    if one.scales is not None:
        values *= one.scales[:rows, None]
    if one.groups is not None:
        scales = one.groups.view(np.float16).reshape(len(words), -1, ROWS).swapaxes(1, 2).reshape(len(words) * ROWS, -1)
        values *= scales.repeat(one.span, axis=1)[:rows, :columns]
    return values


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_a_matrix_keeps_its_values(form, shape):
    one = matrix(form, *shape, np.random.default_rng(0))
    found = stored(one, 1 / 0.9)
    assert decoded(found) == pytest.approx(one.decode() / 0.9, rel=1e-6)


def test_codes_take_no_more_bits_than_they_need():
    rng = np.random.default_rng(0)
    sizes = {form: stored(matrix(form, 64, 256, rng)).bytes * 8 / (64 * 256) for form in FORMS}
    assert sizes["dense"] == sizes["wide grid"] == 32
    assert sizes["five levels"] == sizes["eight levels"] == 3
    assert sizes["grid"] == 4
    assert sizes["int6"] == 6 + 32 / 256  # one float32 per row
    assert sizes["int8"] == 8 + 32 / 256
    assert sizes["int4"] == 4 + 16 / 32  # one float16 per group
    assert sizes["int4 by 64"] == 4 + 16 / 64
    assert sizes["int2"] == 2 + 32 / 256
    assert sizes["int3 by 64"] == 3 + 16 / 64


def test_low_rank_matrices_stay_thin_and_half():
    one = matrix("low rank int8 dense", 40, 50, np.random.default_rng(0))
    right, left = one.factors()
    assert [stored(right).form, stored(left).form] == [32, 8]


@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
def test_sums_of_a_span_fit_32_bits(bits):
    forms = {2: "three levels", 3: "eight levels", 4: "grid", 6: "int6", 8: "int8"}
    one = stored(matrix(forms[bits], 16, 64, np.random.default_rng(0)))
    assert one.form == bits
    half = 2 ** (bits - 1)
    assert one.span % 32 == 0
    assert one.span * half * 32639 < 2**31 <= (one.span + 32) * half * 32639
