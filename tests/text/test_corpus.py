import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from g2lstm.errors import G2Error
from g2lstm.text import corpus, parts
from g2lstm.text.corpus import TokenStream, prepare_stream, prepare_tokenizer
from g2lstm.text.lines import read_pieces
from g2lstm.text.registry import fetch
from g2lstm.text.tokenize import Tokenizer, train_word_tokenizer

from .sets import DATA, needs


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def all_of(stream: TokenStream) -> list[int]:
    return stream.read(0, len(stream)).tolist()


def test_each_line_ends_with_eos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = write(tmp_path / "text", "b a b\n\nc b")
    tokenizer = prepare_tokenizer(text)
    stream = prepare_stream(text, tokenizer)
    assert len(stream) == 8
    assert tokenizer.decode(all_of(stream)) == "b a b\n\nc b\n"
    assert stream.read(1, 3).tolist() == [tokenizer.id_of("a"), tokenizer.id_of("b"), tokenizer.eos_id]
    assert stream.read(6, 9).tolist() == [tokenizer.id_of("b"), tokenizer.eos_id]
    assert stream.read(0, 2).dtype == np.int64
    whole = all_of(stream)
    monkeypatch.setattr(corpus, "_READ_BYTES", 3)  # bytes, of tokens that have two
    assert all_of(stream) == whole


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
        patch.setattr(parts, "_ENCODE_LINES", at_once)
        patch.setattr(parts, "read_pieces", partial(read_pieces, limit=16))  # long lines come in parts
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
    monkeypatch.setattr(parts, "read_pieces", partial(read_pieces, limit=64))
    assert all_of(prepare_stream(text, tokenizer)) == [*tokenizer.encode(line), tokenizer.eos_id]


def test_prepared_once_for_the_same_text_and_tokenizer(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write(tmp_path / "text", "a b\n")
    stream = prepare_stream(text, prepare_tokenizer(text))
    assert stream.path.parent == cache / "prepared"
    with monkeypatch.context() as patch:
        patch.setattr(corpus, "write_tokens", None)
        patch.setattr(corpus, "train_word_tokenizer", None)
        again = prepare_stream(write(tmp_path / "copy", "a b\n"), prepare_tokenizer(tmp_path / "copy"))
    assert (again.path, again.text_sha256) == (stream.path, stream.text_sha256)
    write(text, "a b c\n")
    assert len(prepare_stream(text, prepare_tokenizer(text))) == 4
    assert prepare_tokenizer(text, lowercase=True).fingerprint != prepare_tokenizer(text).fingerprint


def test_damaged_files_in_the_cache_are_made_again(tmp_path: Path, cache: Path) -> None:
    text = write(tmp_path / "text", "a b c d\ne\n" * 10)
    stream = prepare_stream(text, prepare_tokenizer(text))
    expected = all_of(stream)
    files = {file: file.read_bytes() for file in (cache / "prepared").iterdir()}
    assert len(files) == 3  # tokenizer, tokens, lines
    other = prepare_stream(write(tmp_path / "other", "a\n"), prepare_tokenizer(text))
    (other_index,) = set((cache / "prepared").iterdir()) - set(files) - {other.path}
    damages = [lambda content: content[:-10], lambda content: b"", lambda content: b"x" * len(content)]
    for damage in (*damages, lambda content: other_index.read_bytes()):
        for file, good in files.items():
            file.write_bytes(damage(good))
            again = prepare_stream(text, prepare_tokenizer(text))
            assert all_of(again) == expected
            assert again.lengths.tolist() == [4, 1] * 10
        assert {file: file.read_bytes() for file in files} == files


@pytest.mark.parametrize("bad", [b"", b"a\n\xff\n"])
def test_a_bad_text_leaves_nothing_behind(tmp_path: Path, cache: Path, bad: bytes) -> None:
    text = tmp_path / "text"
    text.write_bytes(bad)
    with pytest.raises(G2Error, match=re.escape(str(text))):
        prepare_tokenizer(text)
    with pytest.raises(G2Error, match=re.escape(str(text))):
        prepare_stream(text, train_word_tokenizer(["a"]))
    assert not list(cache.rglob("*.*"))


def test_an_unknown_kind_of_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(G2Error, match="the tokenizer must be 'word' or 'bpe', got 'char'"):
        prepare_tokenizer(write(tmp_path / "text", "a\n"), "char")


def test_the_smallest_type_that_fits(tmp_path: Path) -> None:
    text = write(tmp_path / "text", "w0 w65533 w65534\n")
    for size, width in ((2**16 - 2, 2), (2**16 - 1, 4)):
        tokenizer = train_word_tokenizer(f"w{k}" for k in range(size))
        stream = prepare_stream(text, tokenizer)
        assert np.load(stream.path, mmap_mode="r").dtype.itemsize == width
        assert all_of(stream) == [*tokenizer.encode("w0 w65533 w65534"), tokenizer.eos_id]


def test_lengths_can_be_looked_at_again(tmp_path: Path) -> None:
    text = write(tmp_path / "text", "a b c d\n" * 5000)
    stream = prepare_stream(text, prepare_tokenizer(text))
    first = stream.lengths
    assert first.sum() == stream.lengths.sum() == first.sum() == 20_000


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
def test_scattered_reads_leave_nothing_in_memory(tmp_path: Path) -> None:
    lines, length = 500_000, 19
    np.save(tmp_path / "tokens.npy", np.zeros(lines * (length + 1), dtype="<u2"))
    starts = np.arange(lines, dtype="<i8") * (length + 1)
    np.save(tmp_path / "index.npy", np.stack((starts, np.full(lines, length, dtype="<i8")), axis=1))
    stream = TokenStream(tmp_path / "tokens.npy", tmp_path / "index.npy", "")
    stream.columns(np.array([3, 4]), 0)

    def mapped() -> int:
        """Kilobytes of files in this process's memory."""
        (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssFile"))
        return int(line.split()[1])

    before, most = mapped(), 0
    for number in range(0, lines - 1000, 1000):
        stream.columns(np.array([number, number + 999]), 0)
        stream.read(number * 20, 70)
        most = max(most, mapped())
    assert most < before + 2_000  # of 28,000


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
