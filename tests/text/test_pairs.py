import re
from pathlib import Path

import numpy as np
import pytest

from g2lstm.errors import G2Error
from g2lstm.text import corpus
from g2lstm.text.batches import TrainingBatches
from g2lstm.text.clean import clean
from g2lstm.text.corpus import PairFiles, prepare_pairs, prepare_tokenizers
from g2lstm.text.datasets import data_set, fetch
from g2lstm.text.grammar import grammar_pairs
from g2lstm.text.tokenize import train_word_tokenizer

from .sets import DATA, needs

SOURCE = "der mann schläft .\n\ndie frau , die liest , lacht .\n"
TARGET = "the man sleeps .\nnothing\nthe woman who reads laughs .\n"


def write(folder: Path, source: str | bytes = SOURCE, target: str | bytes = TARGET) -> PairFiles:
    files = PairFiles(folder / "train.de", folder / "train.en")
    for file, text in zip(files, (source, target), strict=True):
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return files


def of_set(name: str, split: str, data_dir: Path | None = None) -> PairFiles:
    return PairFiles(*(fetch(name, data_dir) / f"{split}.{language}" for language in data_set(name).languages))


def test_pairs_are_the_lines_of_both_files(tmp_path: Path) -> None:
    files = write(tmp_path)
    source, target = prepare_tokenizers(files, "word", min_frequency=1)
    pairs = prepare_pairs(files, source, target)
    assert len(pairs) == 3
    assert pairs.source.lengths.tolist() == [4, 0, 8]
    assert pairs.target.lengths.tolist() == [4, 1, 6]
    for index, lines in enumerate(zip(SOURCE.splitlines(), TARGET.splitlines(), strict=True)):
        ids = pairs.source.line(index), pairs.target.line(index)
        assert (source.decode(ids[0].tolist()), target.decode(ids[1].tolist())) == lines
        assert ids[0].dtype == ids[1].dtype == np.int64
    assert pairs.text_sha256 == (pairs.source.text_sha256, pairs.target.text_sha256)
    assert len(set(pairs.text_sha256)) == 2


def test_words_that_are_alike_wherever_they_stand(tmp_path: Path) -> None:
    files = write(tmp_path, "haus haus\n" * 9, "it &apos;s\n" * 9)
    source, target = prepare_tokenizers(files, vocabulary=300, is_tokenized=True)
    first, second = source.encode("haus haus")
    assert first == second
    assert len(target.encode("it &apos;s")) == 2
    assert len(prepare_tokenizers(files, vocabulary=300)[1].encode("it &apos;s")) > 2
    assert target.decode(target.encode("it &apos;s")) == "it &apos;s"


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_one_tokenizer_or_two(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write(tmp_path)
    cache = tmp_path / "cache"
    both = prepare_tokenizers(files, kind, vocabulary=300, joint=True, min_frequency=1, cache=cache)
    assert both[0] is both[1]
    sides = prepare_tokenizers(files, kind, vocabulary=300, min_frequency=1, cache=cache)
    assert len({one.fingerprint for one in (both[0], *sides)}) == 3
    if kind == "word":
        assert "schläft" in both[0]
        assert "sleeps" in both[0]
        assert "sleeps" not in sides[0]
    for name in ("train_word_tokenizer", "train_bpe_tokenizer"):
        monkeypatch.setattr(corpus, name, None)
    again = prepare_tokenizers(files, kind, vocabulary=300, min_frequency=1, cache=cache)
    assert [one.fingerprint for one in again] == [one.fingerprint for one in sides]


@pytest.mark.parametrize("is_ended", [False, True])
def test_sides_of_unequal_length(tmp_path: Path, is_ended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write(tmp_path, "a\nb\nc\n", "a\nb" + "\n" * is_ended)
    words = train_word_tokenizer(["a b c"])
    for name in ("_write_tokens", "train_bpe_tokenizer"):  # the error comes before any work
        monkeypatch.setattr(corpus, name, None)
    message = re.escape(
        f"{files.source} has 3 lines, but {files.target} has 2; they must have the same number, because each line of"
    )
    with pytest.raises(G2Error, match=message):
        prepare_pairs(files, words, words)
    with pytest.raises(G2Error, match=message):
        prepare_tokenizers(files, vocabulary=300)


def test_a_last_line_without_its_end_is_a_line(tmp_path: Path) -> None:
    words = train_word_tokenizer(["a b c"])
    assert len(prepare_pairs(write(tmp_path, "a\nb\nc", "a\n\nc\n"), words, words)) == 3


@pytest.mark.parametrize("empty", ["", "\n\n\n"])
def test_an_empty_side(tmp_path: Path, empty: str) -> None:
    files = write(tmp_path, "a\nb\nc\n", empty)
    words = train_word_tokenizer(["a"])
    message = re.escape(f"{files.target} contains no text")
    with pytest.raises(G2Error, match=message):
        prepare_pairs(files, words, words)
    with pytest.raises(G2Error, match=message):
        prepare_tokenizers(files, "word")


def test_a_side_that_is_not_utf8_or_not_there(tmp_path: Path) -> None:
    files = write(tmp_path, "a\nb\n", b"a\ngar\xe7on\n")
    words = train_word_tokenizer(["a"])
    with pytest.raises(G2Error, match=re.escape(f"{files.target} is not UTF-8 text: byte 0xe7 at offset 5, line 2")):
        prepare_pairs(files, words, words)
    files.source.unlink()
    with pytest.raises(G2Error, match=re.escape(f"{files.source} does not exist")):
        prepare_pairs(files, words, words)


def test_the_embedded_pairs_by_words_and_by_bytes() -> None:
    for kind, size in (("word", None), ("bpe", 500)):
        source, target = prepare_tokenizers(of_set("embedded-mt", "train"), kind, vocabulary=size, is_tokenized=True)
        pairs = prepare_pairs(of_set("embedded-mt", "valid"), source, target)
        for index, (german, english, *_) in enumerate(grammar_pairs("valid")):
            ids = pairs.source.line(index), pairs.target.line(index)
            assert source.decode(ids[0].tolist()) == german
            assert target.decode(ids[1].tolist()) == english
        if kind == "word":
            assert source.unk_id not in {token for index in range(len(pairs)) for token in pairs.source.line(index)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "valid", "test"),
    [
        pytest.param("multi30k-de-en", 1_014, 1_000, marks=needs("multi30k")),
        pytest.param("iwslt14-de-en", 6_969, 6_750, marks=needs("iwslt14")),
        pytest.param("wmt14-en-de", 6_003, 3_003, marks=needs("wmt14")),
    ],
)
def test_counts_of_the_real_sets(name: str, valid: int, test: int) -> None:
    files = {split: of_set(name, split, DATA) for split in ("valid", "test")}
    is_tokenized = name != "wmt14-en-de"
    source, target = prepare_tokenizers(files["valid"], vocabulary=4000, is_tokenized=is_tokenized)
    assert len(prepare_pairs(files["valid"], source, target)) == valid
    pairs = prepare_pairs(files["test"], source, target)
    assert len(pairs) == test
    for index in range(0, test, 100):
        line = files["test"].target.read_text(encoding="utf-8").split("\n")[index]
        assert target.decode(pairs.target.line(index).tolist()) == clean(line)


@pytest.mark.slow
@needs("multi30k")
def test_all_of_multi30k_is_trained_on() -> None:
    files = of_set("multi30k-de-en", "train", DATA)
    source, target = prepare_tokenizers(files, vocabulary=8000, is_tokenized=True)
    assert len(source) == len(target) == 8000
    pairs = prepare_pairs(files, source, target)
    batches = TrainingBatches(pairs, source.eos_id, target.eos_id, batch_size=64)
    assert (len(pairs), batches.kept, len(batches.plan(0))) == (29_000, 29_000, 454)
