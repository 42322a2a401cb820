import re
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

from g2lstm.errors import G2Error
from g2lstm.text import corpus
from g2lstm.text.corpus import TokenStream, prepare_stream, prepare_tokenizer
from g2lstm.text.datasets import fetch
from g2lstm.text.lines import read_pieces
from g2lstm.text.tokenize import Tokenizer, train_word_tokenizer

from .sets import DATA, needs


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def all_of(stream: TokenStream) -> list[int]:
    return stream.read(0, len(stream)).tolist()


def test_each_line_ends_with_eos(tmp_path: Path) -> None:
    text = write(tmp_path / "text", "b a b\n\nc b")
    tokenizer = prepare_tokenizer(text)
    stream = prepare_stream(text, tokenizer)
    assert len(stream) == 8
    assert tokenizer.decode(all_of(stream)) == "b a b\n\nc b\n"
    assert stream.read(1, 3).tolist() == [tokenizer.id_of("a"), tokenizer.id_of("b"), tokenizer.eos_id]
    assert stream.read(6, 9).tolist() == [tokenizer.id_of("b"), tokenizer.eos_id]
    assert stream.read(0, 2).dtype == np.int64


def test_tokens_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = write(tmp_path / "text", "b a b\n\nc b")
    tokenizer = train_word_tokenizer(["a b c d"])
    stream = prepare_stream(text, tokenizer)
    for at_once in (3, 100):
        monkeypatch.setattr(corpus, "_COUNTED_AT_ONCE", at_once)
        counts = stream.counts(len(tokenizer))
        assert {token: counts[tokenizer.id_of(token)] for token in "abcd"} == {"a": 1, "b": 3, "c": 1, "d": 0}
        assert counts[tokenizer.eos_id] == 3
        assert counts.sum() == len(stream)


@settings(max_examples=30)
@given(st.lists(st.lists(st.sampled_from("abcd"), max_size=40), max_size=8), st.sampled_from([1, 3, 100]))
def test_lines_are_found_again(tmp_path_factory: pytest.TempPathFactory, lines: list[list[str]], at_once: int) -> None:
    folder = tmp_path_factory.mktemp("text")
    lines = [["x"], *lines]
    text = write(folder / "text", "\n".join(" ".join(line) for line in lines) + "\n")
    tokenizer = train_word_tokenizer(["x a b c d"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "_BATCH_CHARACTERS", at_once)
        patch.setattr(corpus, "read_pieces", partial(read_pieces, limit=16))  # long lines come in parts
        stream = prepare_stream(text, tokenizer, cache=folder)
        expected = [[tokenizer.id_of(word) for word in line] for line in lines]
        assert all_of(stream) == [token for line in expected for token in [*line, tokenizer.eos_id]]
        assert stream.lengths.tolist() == [len(line) for line in lines]
        assert [stream.line(number).tolist() for number in range(len(lines))] == expected
        numbers = np.arange(len(lines), dtype=np.uint8)[::-1]
        tokens, lengths = stream.columns(numbers, -7)
    assert lengths.tolist() == [len(line) for line in lines[::-1]]
    assert tokens.dtype == np.int64
    assert tokens.shape == (max(map(len, lines)) + 1, len(lines))
    for column, line in zip(tokens.T.tolist(), expected[::-1], strict=True):
        assert column == line + [-7] * (len(column) - len(line))


def test_an_eos_in_the_text_ends_no_line(tmp_path: Path) -> None:
    text = write(tmp_path / "text", "a <eos> b\n\nc\n")
    tokenizer = prepare_tokenizer(text)
    lines = prepare_stream(text, tokenizer)
    assert lines.lengths.tolist() == [3, 0, 1]
    assert lines.line(0).tolist() == tokenizer.encode("a <eos> b")
    assert lines.line(1).tolist() == []


def test_several_texts_share_a_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [write(tmp_path / "one", "a a b\n"), write(tmp_path / "two", "b c c c\n")]
    tokenizer = prepare_tokenizer(texts)
    assert [tokenizer.token_of(index) for index in range(len(tokenizer))] == ["<unk>", "<eos>", "c", "a", "b"]
    assert len(prepare_tokenizer(texts[0])) == 4
    options = [{}, {"is_tokenized": True}, {"prefix_space": True}]
    several = [prepare_tokenizer(texts, "bpe", vocabulary=260, **one).fingerprint for one in options]
    assert len(set(several)) == 3
    monkeypatch.setattr(corpus, "train_bpe_tokenizer", None)
    assert [prepare_tokenizer(texts, "bpe", vocabulary=260, **one).fingerprint for one in options] == several


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_a_long_line_is_encoded_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    line = " ".join(f"word{k * k % 31}" for k in range(500))
    text = write(tmp_path / "text", line + "\n")
    tokenizer = prepare_tokenizer(text, kind, vocabulary=300)
    monkeypatch.setattr(corpus, "read_pieces", partial(read_pieces, limit=64))
    assert all_of(prepare_stream(text, tokenizer)) == [*tokenizer.encode(line), tokenizer.eos_id]


def test_prepared_once_for_the_same_text_and_tokenizer(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write(tmp_path / "text", "a b\n")
    stream = prepare_stream(text, prepare_tokenizer(text))
    assert stream.path.parent == cache / "prepared"
    with monkeypatch.context() as patch:
        patch.setattr(corpus, "_write_tokens", None)
        patch.setattr(corpus, "train_word_tokenizer", None)
        again = prepare_stream(write(tmp_path / "copy", "a b\n"), prepare_tokenizer(tmp_path / "copy"))
    assert (again.path, again.text_sha256) == (stream.path, stream.text_sha256)
    write(text, "a b c\n")
    assert len(prepare_stream(text, prepare_tokenizer(text))) == 4
    assert prepare_tokenizer(text, lowercase=True).fingerprint != prepare_tokenizer(text).fingerprint


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-10],
        lambda content: b"",
        lambda content: b"x" * len(content),
        lambda content: content[:-3] + bytes([content[-3] ^ 1]) + content[-2:],
    ],
)
def test_damaged_files_in_the_cache_are_made_again(
    tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
) -> None:
    text = write(tmp_path / "text", "a b c d\ne\n" * 10)
    tokenizer = prepare_tokenizer(text)
    expected = all_of(prepare_stream(text, tokenizer))
    files = {file: file.read_bytes() for file in (cache / "prepared").iterdir() if file.suffix != ".json"}
    assert sorted(file.suffix for file in files) == [".lines", ".sha256", ".tokens"]
    assert caplog.messages == []
    for file, good in files.items():
        file.write_bytes(damage(good))
        again = prepare_stream(text, tokenizer)
        assert all_of(again) == expected
        assert again.lengths.tolist() == [4, 1] * 10
        assert {file: file.read_bytes() for file in files} == files
        assert caplog.messages == [f"the prepared text {again.path} does not match its checksum; it is made again"]
        caplog.clear()


def test_missing_files_and_damaged_tokenizers_are_made_again(
    tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = write(tmp_path / "text", "a b c d\ne\n" * 10)
    prepare_stream(text, prepare_tokenizer(text))
    files = {file: file.read_bytes() for file in (cache / "prepared").iterdir()}
    for file in files:
        file.unlink()
        prepare_stream(text, prepare_tokenizer(text))
        assert {file: file.read_bytes() for file in files} == files
    caplog.clear()
    (tokenizer,) = (cache / "prepared").glob("*.json")
    tokenizer.write_bytes(files[tokenizer][:-10])
    prepare_tokenizer(text)
    assert tokenizer.read_bytes() == files[tokenizer]
    assert [message.endswith("; it is made again") for message in caplog.messages] == [True]


@pytest.mark.parametrize("bad", [b"", b" \n" * 1000, b"a\n\xff\n"])
def test_a_bad_text_leaves_nothing_behind(tmp_path: Path, cache: Path, bad: bytes) -> None:
    text = tmp_path / "text"
    text.write_bytes(bad)
    with pytest.raises(G2Error, match=re.escape(str(text))):
        prepare_tokenizer(text)
    with pytest.raises(G2Error, match=re.escape(str(text))):
        prepare_stream(text, train_word_tokenizer(["a"]))
    assert not list((cache / "prepared").iterdir())


def test_what_a_killed_process_left_behind_goes(tmp_path: Path, cache: Path) -> None:
    text, tokenizer = write(tmp_path / "text", "a b\n"), train_word_tokenizer(["a b"])
    path = prepare_stream(text, tokenizer).path
    for file in (cache / "prepared").iterdir():
        file.rename(file.with_name(f".{file.name}.0123.tmp"))
    others = write(path.with_name(".others.tokens.0123.tmp"), "of a text that another version prepares")
    assert all_of(prepare_stream(text, tokenizer)) == [2, 3, 1]
    assert {file.suffix for file in path.parent.iterdir() if file != others} == {".tokens", ".lines", ".sha256"}
    assert others.exists()


def test_of_two_processes_one_waits_and_finds_what_the_other_made(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write(tmp_path / "text", "a b\n")
    tokenizer = train_word_tokenizer(["a b"])
    prepare_stream(text, tokenizer, cache=tmp_path / "other")
    monkeypatch.setattr(corpus, "_write_tokens", None)
    found: list[TokenStream] = []
    waiting = Thread(target=lambda: found.append(prepare_stream(text, tokenizer)), daemon=True)
    (cache / "prepared").mkdir()
    with FileLock(cache / "prepared.lock"):
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        for path in (tmp_path / "other" / "prepared").iterdir():
            (cache / "prepared" / path.name).write_bytes(path.read_bytes())
    waiting.join(600)
    assert len(found) == 1


def test_a_cache_that_cannot_be_written_to(tmp_path: Path) -> None:
    text, tokenizer = write(tmp_path / "text", "a\n"), train_word_tokenizer(["a"])
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(G2Error, match="cannot be written to: .* choose another folder"):
        prepare_stream(text, tokenizer, cache=tmp_path / "taken")
    (tmp_path / "cache" / "prepared.lock").mkdir(parents=True)
    with pytest.raises(G2Error, match="cannot lock .*prepared: Is a directory; set G2LSTM_CACHE to another folder"):
        prepare_stream(text, tokenizer, cache=tmp_path / "cache")


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("line_end", ["\n", " "])
def test_memory_does_not_grow_with_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line_end: str) -> None:
    monkeypatch.setattr(corpus, "_BATCH_CHARACTERS", 1 << 12)
    monkeypatch.setattr(corpus, "read_pieces", partial(read_pieces, limit=1 << 12))
    tokenizer = train_word_tokenizer(["word and a few others"])
    peaks = []
    for times in (1, 10):
        text = write(tmp_path / f"text{times}", f"word and a few others{line_end}" * (2000 * times))
        peaks.append(peak_bytes(lambda text=text: prepare_stream(text, tokenizer)))
    assert text.stat().st_size > 400_000
    assert peaks[1] < peaks[0] + 50_000, peaks


def test_an_unknown_kind_of_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(G2Error, match="the tokenizer must be 'bpe', 'word' or 'character', got 'char'"):
        prepare_tokenizer(write(tmp_path / "text", "a\n"), "char")


def test_the_smallest_type_that_fits(tmp_path: Path) -> None:
    text = write(tmp_path / "text", "w0 w65533 w65534\n")
    for size, width in ((2**16 - 2, 2), (2**16 - 1, 4)):
        tokenizer = train_word_tokenizer(f"w{k}" for k in range(size))
        stream = prepare_stream(text, tokenizer)
        assert stream.path.stat().st_size == 4 * width
        assert all_of(stream) == [*tokenizer.encode("w0 w65533 w65534"), tokenizer.eos_id]


def test_the_embedded_text_by_words_and_by_pairs() -> None:
    folder = fetch("embedded")
    words = prepare_tokenizer(folder / "train.txt", min_frequency=2)
    pairs = prepare_tokenizer(folder / "train.txt", "bpe", vocabulary=1000)
    assert isinstance(words, Tokenizer)
    assert len(pairs) == 1000
    for tokenizer in (words, pairs):
        stream = prepare_stream(folder / "valid.txt", tokenizer)
        assert all_of(stream).count(tokenizer.eos_id) == len(
            (folder / "valid.txt").read_text(encoding="utf-8").splitlines()
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "types", "counts"),
    [
        pytest.param("ptb", 10_000, (929_589, 73_760, 82_430), marks=needs("ptb")),
        pytest.param("wikitext-2", 33_278, (2_088_628, 217_646, 245_569), marks=needs("wikitext-2")),
    ],
)
def test_counts_of_the_real_sets(name: str, types: int, counts: tuple[int, int, int]) -> None:
    folder = fetch(name, DATA)
    tokenizer = prepare_tokenizer(folder / "train.txt")
    assert len(tokenizer) == types
    assert (
        tuple(len(prepare_stream(folder / f"{split}.txt", tokenizer)) for split in ("train", "valid", "test")) == counts
    )
