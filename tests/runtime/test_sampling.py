import re
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from g2lstm.errors import G2Error
from g2lstm.runtime import sampling

LOGITS = st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=30).map(lambda some: np.array(some, np.float32))


def choose(logits, temperature=1.0, top_k=None, top_p=1.0, seed=0):
    return sampling.choose(logits, temperature, top_k, top_p, np.random.default_rng(seed))


def softmax(logits):
    powers = np.exp(logits.astype(np.float64) - logits.max())
    return powers / powers.sum()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("wrong", [np.inf, np.nan])
def test_logits_that_are_not_finite_are_no_reason_to_draw(temperature, wrong):
    with pytest.raises(G2Error, match="logits that are not finite"):
        choose(np.array([0.0, wrong, -np.inf]), temperature)


def test_frequencies_are_those_of_the_tempered_softmax():
    logits, draws, generator = np.array([1.0, 0.0, -1.0, 2.0], np.float32), 4000, np.random.default_rng(0)
    drawn = [sampling.choose(logits, 2.0, None, 1.0, generator) for _ in range(draws)]
    expected = softmax(logits / 2)
    shares = np.bincount(drawn, minlength=4) / draws
    assert (np.abs(shares - expected) < 5 * np.sqrt(expected * (1 - expected) / draws)).all()


@given(LOGITS, st.integers(1, 35), st.floats(0.01, 10), st.integers(0, 1000))
def test_top_k_draws_one_of_the_k_likeliest(logits, k, temperature, seed):
    token = choose(logits, temperature, top_k=k, seed=seed)
    assert (logits > logits[token]).sum() < k


@given(LOGITS, st.floats(0.01, 1.0), st.integers(0, 1000))
def test_top_p_draws_from_the_nucleus(logits, p, seed):
    token = choose(logits, top_p=p, seed=seed)
    assert softmax(logits)[logits > logits[token]].sum() < p + 1e-9


@given(LOGITS, st.integers(0, 1000))
def test_narrow_limits_are_greedy(logits, seed):
    for options in ({"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-300}, {"temperature": 0.0}):
        assert logits[choose(logits, **options, seed=seed)] == logits.max()


@given(LOGITS, st.integers(0, 1000))
def test_what_is_forbidden_never_comes(logits, seed):
    logits[1:] = -np.inf
    assert choose(logits, seed=seed) == 0


def test_a_long_prompt_is_read_in_pieces():
    """A session makes log-probabilities of all that it reads at once: of a long prompt, hundreds of megabytes."""
    read = []

    def reader(tokens):
        read.append(list(tokens))
        return np.arange(5.0)

    drawn = sampling.continuation(reader, list(range(1000)), temperature=0, generator=np.random.default_rng(0))
    assert [next(drawn), next(drawn)] == [4, 4]
    assert max(map(len, read)) <= 256
    assert [token for piece in read for token in piece] == [*range(1000), 4]


def test_nucleus_is_the_fewest_that_reach_p():
    logits = np.log([0.5, 0.3, 0.15, 0.05])
    assert {choose(logits, top_p=0.75, seed=seed) for seed in range(200)} == {0, 1}


NO_CHARACTER = re.compile(rb"\xe0[\x80-\x9f]|\xed[\xa0-\xbf]|\xf0[\x80-\x8f]|\xf4[\x90-\xbf]")
SPELLINGS = [bytes([byte]) for byte in range(256)] + [
    "é".encode(),
    "猫".encode(),
    "猫".encode()[:2],
    b"\x81a",
    b"ab",
    b"",
]


@given(st.integers(0, 2**32 - 1))
def test_pieces_of_characters_make_characters(seed):
    logits, table = np.zeros(len(SPELLINGS)), sampling.Utf8(SPELLINGS)
    generator = np.random.default_rng(seed)
    drawn = sampling.continuation(lambda _: logits.copy(), [0], utf8=table, generator=generator)
    text, missing = b"", 0
    for token in islice(drawn, 40):
        text += SPELLINGS[token]
        missing = table.after[missing, token]
        assert missing >= 0
    # Unfinished only at the end; two bytes of a character may still be none, such as half of a surrogate pair.
    text += b"\x90" * int(missing)
    assert NO_CHARACTER.search(text) or text.decode()


def test_what_a_token_leaves_unfinished():
    table = sampling.Utf8(SPELLINGS)
    cat, half, accent, odd, plain, empty = (256 + place for place in (1, 2, 0, 3, 4, 5))
    assert table.after[0, [cat, half, accent, odd, plain, empty]].tolist() == [0, 1, 0, -1, 0, 0]
    assert table.after[1, [cat, half, accent, odd, plain, empty]].tolist() == [-1, -1, -1, 0, -1, 1]
    assert table.after[0, [0x41, 0x80, 0xC1, 0xC3, 0xE3, 0xF0, 0xF5]].tolist() == [0, -1, -1, 1, 2, 3, -1]
    assert table.after[3, [0x41, 0x80]].tolist() == [-1, 2]
    assert table.finished([plain, cat, 0xE3, 0x81]) == [plain, cat]
    assert table.finished([half, odd, plain]) == [half, odd, plain]
    assert table.finished([half]) == []
