"""Sub-words of scripts without spaces: frequent characters are whole tokens."""

import random
from collections import Counter

import pytest

from g2lstm.text.dense import is_dense
from g2lstm.text.tokenize import Tokenizer, train_bpe_tokenizer

CHARACTERS = [chr(0x4E00 + 37 * number) for number in range(400)]


@pytest.fixture(scope="module")
def lines():
    """Phrases that repeat, as they are in prose, of characters of which a few are frequent; no spaces."""
    generator = random.Random(1)
    weights = [1 / (1 + rank) for rank in range(len(CHARACTERS))]
    phrases = ["".join(generator.choices(CHARACTERS, weights, k=6)) for _ in range(200)]
    return ["".join(generator.choices(phrases, k=12)) + "。" for _ in range(300)]


@pytest.mark.parametrize("is_tokenized", [False, True])
def test_frequent_characters_are_whole(lines, is_tokenized, tmp_path):
    tokenizer = train_bpe_tokenizer(lines, vocabulary=700, is_tokenized=is_tokenized, is_cleaning=True)
    counts = Counter("".join(lines))
    split = [character for character in counts if len(tokenizer.encode(character)) > 1]
    assert all(counts[character] <= min(counts[one] for one in counts if one not in split) for character in split)
    assert sum(counts[character] for character in split) < 0.05 * counts.total()
    assert len(tokenizer) <= 700
    tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    for line in [*lines[:50], "abc 是 é 😀", "㐀"]:
        assert again.encode(line) == tokenizer.encode(line)
        assert tokenizer.decode(tokenizer.encode(line)) == line
    assert train_bpe_tokenizer(lines, vocabulary=700, is_tokenized=is_tokenized, is_cleaning=True).fingerprint == (
        tokenizer.fingerprint
    )
    # Longer tokens are whole characters, so they are shorter than bytes would be and never break one.
    wide = [tokenizer.bytes_of(token) for line in lines for token in tokenizer.encode(line)]
    assert max(map(len, wide)) > 3
    assert all(len(one.decode()) for one in wide if len(one) > 3)


def test_a_small_vocabulary_keeps_room_for_longer_tokens(lines):
    tokenizer = train_bpe_tokenizer(lines, vocabulary=300)
    assert len(tokenizer) <= 300
    assert tokenizer.decode(tokenizer.encode(lines[0])) == lines[0]


def test_which_scripts_are_dense():
    assert is_dense(["我是一只猫。"])
    assert is_dense(["แมว", "cat"])
    assert not is_dense(["“Ein Kätzchen”, sagte sie – und ging fort, ohne sich noch einmal umzudrehen."])
    assert not is_dense(["кошка сидит на окне"])
    assert not is_dense([])
    assert not is_dense(["   "])
