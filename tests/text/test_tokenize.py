import json
import random
import re
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from g2lstm.errors import G2Error
from g2lstm.text.clean import clean
from g2lstm.text.tokenize import Tokenizer, _with_short_words, train_bpe_tokenizer, train_word_tokenizer

TRAIN = {"word": train_word_tokenizer, "bpe": train_bpe_tokenizer}
LINES = ["the cat sat on the mat", "the <unk> sat", "a dog"]
ANY_LINE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"))


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return train_word_tokenizer(LINES)


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train_bpe_tokenizer(LINES * 3, vocabulary=280)


def test_words_by_frequency_then_by_alphabet(words: Tokenizer) -> None:
    tokens = [words.token_of(index) for index in range(len(words))]
    assert tokens == ["<unk>", "<eos>", "the", "sat", "a", "cat", "dog", "mat", "on"]
    assert words.kind == "word"
    assert words.encode("the zebra <unk>  sat") == [2, 0, 0, 3]
    assert words.encode("") == []
    assert words.id_of("mat") == 7
    assert "mat" in words
    assert "zebra" not in words


def test_limits_of_a_word_vocabulary() -> None:
    assert len(train_word_tokenizer(LINES, vocabulary=4)) == 4
    assert len(train_word_tokenizer(LINES, min_frequency=2)) == 4
    assert len(train_word_tokenizer(LINES, vocabulary=1)) == 2


def test_special_tokens_in_a_text_of_words_are_themselves() -> None:
    tokenizer = train_word_tokenizer(["a <eos>", "<eos> <unk> <eos>"])
    assert len(tokenizer) == 3
    assert tokenizer.encode("<eos> x<unk> a") == [tokenizer.eos_id, tokenizer.unk_id, 2]


def test_byte_pairs_cannot_make_special_tokens(bpe: Tokenizer) -> None:
    assert bpe.kind == "bpe"
    assert 258 < len(bpe) <= 280
    assert not {bpe.eos_id, bpe.unk_id} & set(bpe.encode("<eos> <unk>"))
    assert bpe.decode(bpe.encode("<eos> <unk>")) == "<eos> <unk>"


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_lowercase(kind: str) -> None:
    tokenizer = TRAIN[kind](["Ärger ÄRGER"], vocabulary=300, lowercase=True)
    assert tokenizer.decode(tokenizer.encode("ÄRGER")) == "ärger"


@given(ANY_LINE)
def test_bpe_round_trip(bpe: Tokenizer, line: str) -> None:
    assert bpe.decode(bpe.encode(line)) == line


@pytest.fixture(scope="module")
def bpe_of_pairs() -> dict[tuple[bool, bool], Tokenizer]:
    """By is_tokenized and prefix_space."""
    text = ["here &apos;s a cat , isn't it ?", "the cat &apos;s mat", "it &apos;s here"] * 3
    return {
        options: train_bpe_tokenizer(text, vocabulary=320, is_tokenized=options[0], prefix_space=options[1])
        for options in product((False, True), repeat=2)
    }


@given(ANY_LINE | st.text(" ab&;,'"), st.booleans(), st.booleans())
def test_bpe_round_trip_with_each_option(
    bpe_of_pairs: dict[tuple[bool, bool], Tokenizer], line: str, is_tokenized: bool, prefix_space: bool
) -> None:
    tokenizer = bpe_of_pairs[is_tokenized, prefix_space]
    ids = tokenizer.encode(line)
    assert tokenizer.decode(ids) == line
    assert tokenizer.decode([*ids, tokenizer.eos_id, *ids]) == f"{line}\n{line}"


def test_only_spaces_end_the_words_of_tokenised_text(bpe_of_pairs: dict[tuple[bool, bool], Tokenizer]) -> None:
    def tokens(is_tokenized: bool) -> list[str]:
        tokenizer = bpe_of_pairs[is_tokenized, False]
        return [tokenizer.decode([token]) for token in tokenizer.encode("here &apos;s isn't it")]

    assert tokens(is_tokenized=True) == ["here", " &apos;s", " isn't", " it"]
    assert tokens(is_tokenized=False) == ["here", " &", "apos", ";", "s", " isn", "'t", " it"]


@pytest.mark.parametrize("is_tokenized", [False, True])
def test_the_first_word_is_encoded_like_any_other(
    bpe_of_pairs: dict[tuple[bool, bool], Tokenizer], is_tokenized: bool
) -> None:
    spaced, plain = bpe_of_pairs[is_tokenized, True], bpe_of_pairs[is_tokenized, False]
    assert spaced.encode("cat cat") == spaced.encode("cat") * 2
    assert plain.encode("cat cat") != plain.encode("cat") * 2
    assert spaced.encode("") == []
    assert spaced.decode([spaced.id_of("c")]) == "c"  # a line need not begin with a space


EMOJI = "👩‍💻 writes 🏴󠁧󠁢󠁥󠁮󠁧󠁿 and ❤️‍🔥, 日本語"


def test_emoji_are_words_and_bytes() -> None:
    words, bpe = train_word_tokenizer([EMOJI]), train_bpe_tokenizer([EMOJI] * 3, vocabulary=300)
    for tokenizer in (words, bpe):
        assert tokenizer.unk_id not in tokenizer.encode(EMOJI)
        assert tokenizer.decode(tokenizer.encode(EMOJI)) == EMOJI


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_what_is_no_unicode_is_refused(words: Tokenizer, bpe: Tokenizer, kind: str) -> None:
    tokenizer = words if kind == "word" else bpe
    for encode in (tokenizer.encode, tokenizer.encoding, lambda line: tokenizer.encode_lines(["fine", line])):
        with pytest.raises(G2Error, match="not valid Unicode: character 3 is half of a surrogate pair; give UTF-8"):
            encode("ab\udcff")


def test_byte_pairs_are_trained_on_pieces_of_a_word_without_end(caplog: pytest.LogCaptureFixture) -> None:
    """One word of a million characters would otherwise be searched as a whole for every pair that is merged."""
    word = "".join(random.Random(0).choices("abcdefgh", k=10_000))
    lines = [f"some words {word} and {word} more", "short"]
    pieces = list(_with_short_words(lines))
    assert "".join(pieces) == "".join(lines)
    assert max(len(found) for piece in pieces for found in piece.split()) == 1000
    assert [record.getMessage() for record in caplog.records] == [
        f"a word of more than 1,000 characters is cut into pieces for training the tokenizer: {word[:40]}...; "
        "if it is not a word, remove it from the text"
    ]
    tokenizer = train_bpe_tokenizer(lines, vocabulary=400)
    assert tokenizer.decode(tokenizer.encode(lines[0])) == lines[0]


def test_long_lines_without_spaces_are_usual_in_japanese(caplog: pytest.LogCaptureFixture) -> None:
    assert len([*_with_short_words(["吾輩は猫である。" * 1000])]) > 1
    assert caplog.messages == []


def test_the_options_of_pairs_are_kept(tmp_path: Path) -> None:
    tokenizer = train_bpe_tokenizer(LINES, vocabulary=300, lowercase=True, is_tokenized=True, prefix_space=True)
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.encode("THE cat") == tokenizer.encode("the cat")
    assert loaded.decode(loaded.encode("THE cat")) == "the cat"
    for options in ({}, {"is_tokenized": True}, {"prefix_space": True}):
        assert train_bpe_tokenizer(LINES, vocabulary=300, **options).fingerprint != tokenizer.fingerprint


@pytest.mark.parametrize("train", [train_word_tokenizer, partial(train_bpe_tokenizer, vocabulary=300)])
def test_what_looks_alike_is_alike(train: Callable[..., Tokenizer], tmp_path: Path) -> None:
    """Also in the text that the tokenizer is trained on, and after loading."""
    train(["u\u0308ber\u00a0 \x07Berg"] * 3, is_cleaning=True, lowercase=True).save(tmp_path / "tokenizer.json")
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    assert tokenizer.is_cleaning
    ids = tokenizer.encode("\u00fcber berg")
    assert tokenizer.unk_id not in ids
    for line in ("u\u0308ber  berg", "\ufeff\u00fcber\tberg\r", " \u00fcber\u202fbe\u00adrg\x00 "):
        assert tokenizer.encode(line) == ids
        assert clean(line) == "\u00fcber berg"
    assert clean("a\u200db") == "a\u200db"
    assert not train(["x"]).is_cleaning


@given(st.lists(ANY_LINE, max_size=5), st.booleans())
def test_words_that_were_counted_are_found(lines: list[str], lowercase: bool) -> None:
    tokenizer = train_word_tokenizer(lines, lowercase=lowercase)
    for line in lines:
        assert tokenizer.unk_id not in tokenizer.encode(line) or "<unk>" in line


@given(st.lists(st.text("abc", min_size=1)))
def test_word_round_trip(words: list[str]) -> None:
    line = " ".join(words)
    tokenizer = train_word_tokenizer([line])
    assert tokenizer.decode(tokenizer.encode(line)) == line
    assert [tokenizer.token_of(index) for index in tokenizer.encode(line)] == words


def test_decoding_ends_lines_at_eos(words: Tokenizer, bpe: Tokenizer) -> None:
    for tokenizer in (words, bpe):
        ids = [*tokenizer.encode("the cat"), tokenizer.eos_id, tokenizer.eos_id, *tokenizer.encode("sat")]
        assert tokenizer.decode(ids) == "the cat\n\nsat"
        assert tokenizer.decode([]) == ""
        assert tokenizer.decode([tokenizer.eos_id]) == "\n"


def test_many_lines_are_encoded_as_one_by_one(words: Tokenizer, bpe: Tokenizer) -> None:
    for tokenizer in (words, bpe):
        assert tokenizer.encode_lines(LINES) == [tokenizer.encode(line) for line in LINES]


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_saved_and_loaded(tmp_path: Path, kind: str, lowercase: bool) -> None:
    tokenizer = TRAIN[kind](LINES, vocabulary=300, lowercase=lowercase)
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.kind == kind
    assert loaded.fingerprint == tokenizer.fingerprint
    assert len(loaded) == len(tokenizer)
    assert loaded.encode("The cat and <eos>") == tokenizer.encode("The cat and <eos>")


def test_fingerprints_tell_tokenizers_apart(words: Tokenizer) -> None:
    assert train_word_tokenizer(LINES).fingerprint == words.fingerprint
    assert train_word_tokenizer(LINES, lowercase=True).fingerprint != words.fingerprint
    assert train_word_tokenizer([*LINES, "x"]).fingerprint != words.fingerprint


def test_bpe_training_is_repeatable() -> None:
    text = [" ".join(f"w{k * k % 97}" for k in range(n)) for n in range(40)]
    first, second = (train_bpe_tokenizer(text, vocabulary=400) for _ in range(2))
    assert first.to_json() == second.to_json()


def test_unknown_tokens_and_ids(words: Tokenizer) -> None:
    with pytest.raises(G2Error, match="the vocabulary has no token 'zebra'; it has 9 others"):
        words.id_of("zebra")
    for index in (-1, 9):
        with pytest.raises(G2Error, match=f"no token has the id {index}; ids go from 0 to 8"):
            words.token_of(index)


@pytest.mark.parametrize("vocabulary", [None, 257])
def test_a_vocabulary_too_small_for_bytes(vocabulary: int | None) -> None:
    with pytest.raises(G2Error, match=f"byte-pair encoding needs a vocabulary of at least 258, got {vocabulary}"):
        train_bpe_tokenizer(LINES, vocabulary=vocabulary)


def test_words_are_what_stands_between_white_space() -> None:
    tokenizer = train_word_tokenizer(["a  b\ta", "", "\x1ca A\u2028b"])
    assert [tokenizer.token_of(index) for index in range(2, len(tokenizer))] == ["a", "b", "\x1ca", "A"]
    assert len(train_word_tokenizer(["A a"], lowercase=True)) == 3


def test_files_that_are_no_tokenizers(tmp_path: Path, words: Tokenizer) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(G2Error, match=re.escape(f"cannot read the tokenizer {path}")):
        Tokenizer.load(path)
    path.write_bytes(b"\xff")
    with pytest.raises(G2Error, match=re.escape(f"cannot read the tokenizer {path}")):
        Tokenizer.load(path)
    path.write_text(words.to_json()[:-20])
    with pytest.raises(G2Error, match=re.escape(f"{path} is not a tokenizer that g2lstm can use: it is damaged")):
        Tokenizer.load(path)
    settings = json.loads(words.to_json())
    path.write_text(json.dumps({**settings, "model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0]]}}))
    with pytest.raises(G2Error, match="its type is Unigram, and only WordLevel and BPE are allowed"):
        Tokenizer.load(path)
    path.write_text(
        json.dumps({**settings, "model": {"type": "WordLevel", "vocab": {"<unk>": 0}, "unk_token": "<unk>"}})
    )
    with pytest.raises(G2Error, match="can use: the vocabulary has no token '<eos>'"):
        Tokenizer.load(path)


def test_characters(tmp_path: Path) -> None:
    tokenizer = train_word_tokenizer(["Über <unk>\t日本", "aa  b"], is_split=True)
    assert tokenizer.kind == "character"
    text = "Über 日本  aab\t<unk>"
    ids = tokenizer.encode(text)
    assert len(ids) == len(text)
    assert tokenizer.unk_id not in ids  # to characters, <unk> is ordinary text
    assert tokenizer.decode([*ids, tokenizer.eos_id, *ids]) == f"{text}\n{text}"
    assert b"".join(map(tokenizer.bytes_of, ids)).decode() == text
    assert tokenizer.readable(tokenizer.encode("a ü\t")) == ["a", "␣", "<unk>", "\\t"]
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (loaded.kind, loaded.encode(text)) == ("character", ids)
    assert len(train_word_tokenizer(["aab"], is_split=True, min_frequency=2)) == 3
