"""Features of texts: what each is true of, and that reading in pieces changes nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from g2lstm.look.switches import Features
from g2lstm.text.tokenize import train_bpe_tokenizer, train_word_tokenizer

TEXT = "<eos> He said , \" the dog ( a big one ) and it 's Rex , \" N times . <eos> `` yes '' 3 ) no \" x <eos> so"
WORDS = TEXT.split()


@pytest.fixture(scope="module")
def tokenizer():
    return train_word_tokenizer([TEXT.replace("<eos>", "")])


def ids(tokenizer, words=WORDS):
    return np.array([[tokenizer.id_of(word)] for word in words])


def found(tokenizer, feature):
    """The words that a feature is true of."""
    features = Features(tokenizer)
    true = features.read(ids(tokenizer))[:, 0, features.names.index(feature)]
    return " ".join(word for word, is_true in zip(WORDS, true, strict=True) if is_true)


@pytest.mark.parametrize(
    ("feature", "words"),
    [
        ("the end of a sentence", "<eos> <eos> <eos>"),
        ("a comma", ", ,"),
        ("right after a comma", '" "'),
        ("a determiner", "the a no"),
        ("right after a determiner", 'dog big "'),
        ("a number", "N 3"),
        ("a capitalised word", "He Rex"),
        ("a pronoun", "He one it"),
        ("a possessive", "'s"),
        ("a full stop", "."),
        ("the first word of a sentence", "He `` so"),
        ("the first 3 words of a sentence", "He said , `` yes '' so"),
        ("after the first 10 words of a sentence", ") and it 's Rex , \" N times ."),
        ("the 3 words after a comma or conjunction", '" the dog it \'s Rex " N times'),
        ("inside brackets", "a big one"),
        ("inside quotation marks", "the dog ( a big one ) and it 's Rex , yes x"),
    ],
)
def test_what_features_are_true_of(tokenizer, feature, words):
    assert found(tokenizer, feature) == words


def test_sub_words_and_unknown_words(tokenizer):
    features = Features(tokenizer)
    unknown = features.read(np.array([[tokenizer.unk_id]]))[0, 0]
    assert unknown[features.names.index("an unknown word")]
    pieces = train_bpe_tokenizer(["the cat sat on the mat"] * 3, vocabulary=270, prefix_space=True)
    features = Features(pieces)
    line = np.array(pieces.encode("the tax"))[:, None]
    true = features.read(line)[:, 0, features.names.index("a later piece of a word")]
    assert not true[0]
    assert true[-1]


def test_punctuation_of_languages_without_spaces():
    text = "「雨（小雨）、雪。」"
    characters = train_word_tokenizer([text], is_split=True)
    features = Features(characters)
    columns = features.read(np.array(characters.encode(text))[:, None])[:, 0].T
    true = {name: "".join(np.array(list(text))[each]) for name, each in zip(features.names, columns, strict=True)}
    assert true["a comma"] + true["a full stop"] == "、。"
    assert true["inside brackets"] == "小雨"
    assert true["inside quotation marks"] == "雨（小雨）、雪。"


@given(st.lists(st.sampled_from(sorted(set(WORDS))), min_size=2, max_size=60), st.data())
def test_reading_in_pieces_changes_nothing(tokenizer, words, data):
    """Two texts side by side, of which the second ends first."""
    text = ids(tokenizer, words)
    both = np.concatenate([text, text[::-1]], axis=1)
    cut = data.draw(st.integers(1, len(words) - 1))
    features = Features(tokenizer)
    whole = features.read(both)
    assert whole.shape == (len(words), 2, len(features.names))
    features.start()
    first, second = features.read(both[:cut]), features.read(both[cut:, :1])
    np.testing.assert_array_equal(np.concatenate([first[:, :1], second]), whole[:, :1])
    features.start()
    np.testing.assert_array_equal(features.read(both[:, 1:])[:, 0], whole[:, 1])
