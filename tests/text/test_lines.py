import hashlib
import os
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from g2lstm.errors import G2Error
from g2lstm.text import lines
from g2lstm.text.lines import Piece, count_lines, read_pieces, sample_lines, sha256_of


def write(folder: Path, content: bytes) -> Path:
    path = folder / "some.txt"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"one two\nthree\n", ["one two", "three"]),
        (b"one\n\nthree", ["one", "", "three"]),
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"\xef\xbb\xbfone\n", ["one"]),
        (b"a\x0bb\xe2\x80\xa8c\x85d\n".replace(b"\x85", b"\xc2\x85"), ["a\x0bb\u2028c\x85d"]),
    ],
)
def test_lines_end_at_newlines_only(tmp_path: Path, content: bytes, lines: list[str]) -> None:
    assert list(read_pieces(write(tmp_path, content))) == [Piece(line, True) for line in lines]


@given(
    st.lists(st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"])), min_size=1),
    st.integers(8, 20),
)
def test_long_lines_come_in_pieces(tmp_path_factory: pytest.TempPathFactory, lines: list[str], limit: int) -> None:
    lines = ["x", *lines]
    path = write(tmp_path_factory.mktemp("text"), "".join(f"{line}\n" for line in lines).encode())
    joined, current = [], ""
    for piece in read_pieces(path, limit):
        assert len(piece.text.encode()) <= limit
        current += piece.text
        if piece.ends_line:
            joined.append(current)
            current = ""
    first = lines[0].removeprefix("\ufeff")
    assert joined == [first, *lines[1:]]
    assert current == ""


def test_a_sample_is_spread_over_the_files(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    for path, count in zip(paths, (20_000, 10_000), strict=True):
        path.write_text("".join(f"{path.name} {number:09}\n" for number in range(count)))
    everything = [line for path in paths for line in path.read_text().splitlines()]
    total = sum(path.stat().st_size for path in paths)
    assert list(sample_lines(paths)) == list(sample_lines(paths, total)) == everything
    sample = list(sample_lines(paths, total // 5))
    assert len(sample) == pytest.approx(len(everything) / 5, rel=0.1)
    assert sample == sorted(set(sample) & set(everything))
    numbers = [int(line.split()[1]) for line in sample if line.startswith("one")]
    assert len(numbers) == pytest.approx(4000, rel=0.1)
    for tenth in range(10):
        assert sum(number // 2000 == tenth for number in numbers) == pytest.approx(400, rel=0.2)


def test_a_sample_of_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, b" \n" * 1000)
    with pytest.raises(G2Error, match="contains no text"):
        list(sample_lines([path], 100))


def test_a_long_line_is_cut_before_a_space(tmp_path: Path) -> None:
    path = write(tmp_path, b"aaa bbb ccc ddd\ne")
    pieces = list(read_pieces(path, 8))
    assert pieces == [Piece("aaa bbb", False), Piece(" ccc", False), Piece(" ddd", True), Piece("e", True)]


def test_a_line_of_exactly_the_limit_without_an_end(tmp_path: Path) -> None:
    pieces = list(read_pieces(write(tmp_path, b"aaa bbbb"), 8))
    assert "".join(piece.text for piece in pieces) == "aaa bbbb"
    assert [piece.ends_line for piece in pieces] == [False, True]


def test_the_log_reports_how_much_of_a_large_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, b"x" * 1023 + b"\n" + b"two three\n" * 250)
    caplog.set_level("INFO", "g2lstm.text")
    list(read_pieces(path, 100))
    assert caplog.messages == []
    monkeypatch.setattr(lines, "REPORT_BYTES", 1024)
    list(read_pieces(path, 100))
    assert caplog.messages == [f"reading {path}: {done} of 3 KB are done" for done in (1, 2, 3, 3)]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"  \t\n", b"\xef\xbb\xbf"])
def test_a_file_without_text(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path, content)
    with pytest.raises(G2Error, match=re.escape(f"{path} contains no text")):
        list(read_pieces(path))


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    path = write(tmp_path, b"caf\xc3\xa9\ngar\xe7on\n")
    with pytest.raises(G2Error, match=re.escape(f"{path} is not UTF-8 text: byte 0xe7 at offset 9, line 2; convert")):
        list(read_pieces(path))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_is_named(tmp_path: Path, encoding: str) -> None:
    path = write(tmp_path, "\ufeffpues señor\n".encode(encoding))
    with pytest.raises(
        G2Error, match=re.escape(f"{path} is UTF-16 text, and UTF-8 is needed; convert it with: iconv -f")
    ):
        list(read_pieces(path))


@pytest.mark.parametrize("content", ["no mark".encode("utf-16-le"), b"\x89PNG\r\n\x1a\n" + b"x" * 1000 + b"\0"])
def test_binary_data_is_named(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path, content)
    with pytest.raises(G2Error, match=re.escape(f"{path} looks like binary data, not text; give a file of UTF-8 text")):
        list(read_pieces(path))


def test_a_stray_zero_does_not_make_a_text_binary(tmp_path: Path) -> None:
    assert [*read_pieces(write(tmp_path, b"x" * 500 + b"\0\n"))] == [Piece("x" * 500 + "\0", True)]


def test_the_offset_is_that_of_the_file_in_a_long_line_too(tmp_path: Path) -> None:
    path = write(tmp_path, b"\xef\xbb\xbf" + b"word " * 10 + b"\xff")
    with pytest.raises(G2Error, match="byte 0xff at offset 53, line 1"):
        list(read_pieces(path, 16))


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(G2Error, match=re.escape(f"{tmp_path / 'no.txt'} does not exist; give the path of a text file")):
        list(read_pieces(tmp_path / "no.txt"))
    with pytest.raises(G2Error, match=re.escape(f"{tmp_path} is a folder, not a text file")):
        list(read_pieces(tmp_path))


@pytest.mark.parametrize("read", [lambda path: list(read_pieces(path)), count_lines, sha256_of])
def test_what_might_never_end_is_not_read(tmp_path: Path, read: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for name in ("pipe", "zeros"):
        with pytest.raises(G2Error, match=f"{name} is a pipe or a device, not a text file; copy the text into a file"):
            read(tmp_path / name)
    path = write(tmp_path, b"some words\n" * 2000)
    os.truncate(path, 2**42)
    with pytest.raises(G2Error, match=r"has a hole at offset \d+, where nothing was written; copy the text again"):
        read(path)


def test_memory_does_not_grow_with_a_line(tmp_path: Path) -> None:
    path = write(tmp_path, b"word " * 4_000_000)
    tracemalloc.start()
    try:
        assert count_lines(path) == 1
        assert sum(len(piece.text) for piece in read_pieces(path)) == 20_000_000
        assert tracemalloc.get_traced_memory()[1] < 15_000_000
    finally:
        tracemalloc.stop()


def test_a_file_that_the_system_refuses(tmp_path: Path) -> None:
    with pytest.raises(G2Error, match="cannot be read: File name too long"):
        list(read_pieces(tmp_path / ("x" * 300)))


@pytest.mark.parametrize(("content", "count"), [(b"", 0), (b"\n", 1), (b"a\n\nb\n", 3), (b"a\nb", 2)])
def test_lines_are_counted(tmp_path: Path, content: bytes, count: int) -> None:
    assert count_lines(write(tmp_path, content)) == count


def test_sha256(tmp_path: Path) -> None:
    assert sha256_of(write(tmp_path, b"abc")) == hashlib.sha256(b"abc").hexdigest()
