import json
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from g2lstm.errors import G2Error
from g2lstm.text import corpus, parts
from g2lstm.text.corpus import TokenStream, prepare_stream, prepare_tokenizer
from g2lstm.text.parts import Part, add_counts, alone, cut, make_parts, write_counts
from g2lstm.text.tokenize import count_words, train_word_tokenizer

LINES = [" ".join(f"w{(line * word) % 31}" for word in range(line % 7)) for line in range(60)]
WORDS = train_word_tokenizer(LINES)


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A text of eight parts or so."""
    path = tmp_path / "text"
    path.write_text("\n".join(LINES) + "\n")
    monkeypatch.setattr(parts, "PART_BYTES", path.stat().st_size // 8 + 1)
    return path


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where the parts start that are made."""
    starts: list[int] = []
    make = Part.make

    def noted(part: Part) -> None:
        starts.append(part.start)
        make(part)

    monkeypatch.setattr(Part, "make", noted)
    return starts


def prepared_at_once(text: Path, folder: Path) -> dict[str, bytes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "PART_BYTES", 1 << 30)
        prepare_stream(text, WORDS, cache=folder)
    return files_of(folder)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "prepared").iterdir()}


def test_a_text_is_cut_into_parts_of_which_there_are_not_too_many(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = text.stat().st_size
    spans = cut(text)
    assert len(spans) == 8
    assert [start for start, _ in spans] == [0, *(stop for _, stop in spans[:-1])]
    assert spans[-1][1] == size
    monkeypatch.setattr(parts, "PART_BYTES", 1)
    assert len(cut(text)) == 256
    monkeypatch.setattr(parts, "PART_BYTES", size)
    assert cut(text) == [(0, size)]
    text.write_bytes(b"")
    assert cut(text) == [(0, 0)]


@pytest.mark.parametrize("part_bytes", [9, 40, 200])
def test_parts_join_to_the_same_bytes(
    text: Path, tmp_path: Path, made: list[int], monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    expected = prepared_at_once(text, tmp_path / "one")
    monkeypatch.setattr(parts, "PART_BYTES", part_bytes)
    monkeypatch.setattr(parts, "_JOIN_NUMBERS", 6)
    stream = prepare_stream(text, WORDS, cache=tmp_path / "several", workers=1)
    assert isinstance(stream, TokenStream)
    assert len(made) == len(cut(text)) > 1
    assert files_of(tmp_path / "several") == expected


def test_a_line_that_is_longer_than_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text"
    text.write_text("w1\n" + "w2 " * 500 + "\nw3")
    expected = prepared_at_once(text, tmp_path / "one")
    monkeypatch.setattr(parts, "PART_BYTES", 100)
    prepare_stream(text, WORDS, cache=tmp_path / "several", workers=1)
    assert files_of(tmp_path / "several") == expected


def test_other_processes_make_the_same_bytes(text: Path, tmp_path: Path, made: list[int]) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    WORDS.save(tokenizer)

    def all_parts(name: str) -> list[Part]:
        folder = tmp_path / name
        counted = [Part(str(text), *span, [str(folder / f"{span[0]}.txt")]) for span in cut(text)[:2]]
        encoded = [
            Part(str(text), *span, [str(folder / f"{span[0]}.{kind}") for kind in "ab"], str(tokenizer))
            for span in cut(text)[:2]
        ]
        return counted + encoded

    make_parts(all_parts("serial"), workers=1)
    assert len(made) == 4
    make_parts(all_parts("parallel"), workers=2)
    assert len(made) == 4
    names = {path.name for path in (tmp_path / "serial").iterdir()}
    assert len(names) == 4 * 2 + 2
    for name in names:
        assert (tmp_path / "serial" / name).read_bytes() == (tmp_path / "parallel" / name).read_bytes()


KILLED = """
import os, signal, sys
from pathlib import Path
from g2lstm.text import parts
from g2lstm.text.corpus import prepare_stream
from g2lstm.text.tokenize import Tokenizer

text, tokenizer, cache, part_bytes = sys.argv[1:]
parts.PART_BYTES = int(part_bytes)
batches, made = parts._batches, 0

def killed(pieces):
    global made
    made += 1
    yield from batches(pieces)
    if made == 4:  # the fourth part is encoded, but not complete
        os.kill(os.getpid(), signal.SIGKILL)

parts._batches = killed
prepare_stream(Path(text), Tokenizer.load(Path(tokenizer)), cache=Path(cache), workers=1)
"""


def test_killed_and_resumed(text: Path, tmp_path: Path, made: list[int]) -> None:
    expected = prepared_at_once(text, tmp_path / "one")
    WORDS.save(tmp_path / "tokenizer.json")
    arguments = [text, tmp_path / "tokenizer.json", tmp_path / "cache", parts.PART_BYTES]
    done = subprocess.run([sys.executable, "-c", KILLED, *map(str, arguments)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not list((tmp_path / "cache" / "prepared").glob("*.npy"))
    prepare_stream(text, WORDS, cache=tmp_path / "cache", workers=1)
    assert made == [start for start, _ in cut(text)[3:]]
    assert files_of(tmp_path / "cache") == expected


def cut_short(text: Path, cache: Path) -> Path:
    """All parts are made, and nothing after them; returns their folder."""

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "join_tokens", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare_stream(text, WORDS, cache=cache, workers=1)
    (folder,) = (cache / "prepared").glob("*.parts")
    return folder


def flip(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize("name", ["0002.tokens.npy", "0002.lines.npy", "0002.tokens.npy.json"])
@pytest.mark.parametrize("damage", [flip, lambda content: content[:-1], lambda content: b"", None])
def test_a_damaged_part_is_made_again(
    text: Path, tmp_path: Path, made: list[int], name: str, damage: Callable[[bytes], bytes] | None
) -> None:
    folder = cut_short(text, tmp_path / "cache")
    made.clear()
    damaged = folder / name
    if damage is None:
        damaged.unlink()
    else:
        damaged.write_bytes(damage(damaged.read_bytes()))
    prepare_stream(text, WORDS, cache=tmp_path / "cache", workers=1)
    assert made == [cut(text)[2][0]]
    assert files_of(tmp_path / "cache") == prepared_at_once(text, tmp_path / "one")


def test_parts_of_another_size_are_not_mixed(
    text: Path, tmp_path: Path, made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_short(text, tmp_path / "cache")
    made.clear()
    monkeypatch.setattr(parts, "PART_BYTES", parts.PART_BYTES // 2)
    prepare_stream(text, WORDS, cache=tmp_path / "cache", workers=1)
    assert len(made) == len(cut(text)) > 8
    assert files_of(tmp_path / "cache") == prepared_at_once(text, tmp_path / "one")


@pytest.mark.parametrize("settings", [{}, {"vocabulary": 12}, {"min_frequency": 3}, {"lowercase": True}])
def test_words_are_counted_in_parts(text: Path, tmp_path: Path, made: list[int], settings: dict[str, int]) -> None:
    text.write_text(text.read_text() + "W1 <unk> <eos> w1\n")
    other = tmp_path / "other"
    other.write_text("w1 other\n")
    lines = [*text.read_text().splitlines(), "w1 other"]
    tokenizer = prepare_tokenizer([text, other], cache=tmp_path / "cache", workers=1, **settings)
    assert len(made) == len(cut(text)) + 1
    assert tokenizer.fingerprint == train_word_tokenizer(lines, **settings).fingerprint
    prepare_tokenizer([text, other], cache=tmp_path / "cache", workers=1, **settings)
    assert len(made) == len(cut(text)) + 1
    assert len(list((tmp_path / "cache" / "prepared").iterdir())) == 1


@pytest.mark.parametrize(
    "prepare", [lambda text: prepare_tokenizer(text, workers=1), lambda text: prepare_stream(text, WORDS, workers=1)]
)
def test_a_large_text_that_is_bad(text: Path, prepare: Callable[[Path], object]) -> None:
    good = text.read_bytes()
    text.write_bytes(good + b"caf\xe9\n" + good)
    with pytest.raises(G2Error, match=f"text is not UTF-8 text: byte 0xe9 at offset {len(good) + 3}, line 61; convert"):
        prepare(text)
    text.write_bytes(b" \n" * 1000)
    with pytest.raises(G2Error, match="text contains no text"):
        prepare(text)


def make_elsewhere(part: Part, *, read_answer: bool = True) -> tuple[int, bytes, bytes]:
    """Exit code, standard output and standard error of a process that makes a part."""
    command, pipe = [sys.executable, "-m", "g2lstm.text.parts"], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as worker:
        if not read_answer:
            worker.stdout.close()
        worker.stdin.write(json.dumps(part).encode())
        worker.stdin.close()
        answer = worker.stdout.read() if read_answer else b""
        return worker.wait(), answer, worker.stderr.read()


def test_a_process_makes_a_part_or_answers_with_the_message(text: Path, tmp_path: Path) -> None:
    part = Part(str(text), 0, 100, [str(tmp_path / "counts")])
    assert make_elsewhere(part) == (0, b"", b"")
    assert part.is_made()
    message = b"nowhere does not exist; give the path of a text file"
    assert make_elsewhere(part._replace(text="nowhere")) == (2, message, b"")
    assert make_elsewhere(part._replace(text="nowhere"), read_answer=False) == (2, b"", b"")  # whoever asked has died


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("printf 'the text is bad'; exit 2", "^the text is bad$"),
        (
            "read part; kill -9 $$",
            r"a process preparing .*text ended early, with code -9 \(-9 may mean that memory ran ",
        ),
        (
            "echo >> $0.started; sleep 0.3; exit 3",
            "ended early, with code 3 .* run the same command again, and it continues with the remaining parts",
        ),
    ],
)
def test_a_process_that_fails(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(G2Error, match=message):
        prepare_stream(text, WORDS, cache=tmp_path / "cache", workers=2)
    started = program.with_suffix(".started")
    assert not started.exists() or len(started.read_bytes()) <= 4 < len(cut(text))  # the rest were cancelled
    monkeypatch.undo()
    assert len(prepare_stream(text, WORDS, cache=tmp_path / "cache", workers=1)) > 60


def test_of_two_processes_one_waits_and_finds_what_the_other_made(text: Path, tmp_path: Path, made: list[int]) -> None:
    cache = tmp_path / "cache"
    prepared_at_once(text, tmp_path / "one")
    found: list[TokenStream] = []
    waiting = threading.Thread(
        target=lambda: found.append(prepare_stream(text, WORDS, cache=cache, workers=1)), daemon=True
    )
    with alone(cache / "prepared"):
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        for path in (tmp_path / "one" / "prepared").iterdir():
            (cache / "prepared" / path.name).write_bytes(path.read_bytes())
    waiting.join(20)
    assert len(found) == 1
    assert made == []


def test_a_cache_that_cannot_be_written_to(text: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(G2Error, match="cannot be written to: .* choose another folder"):
        prepare_stream(text, WORDS, cache=tmp_path / "taken")
    (tmp_path / "cache" / "prepared.lock").mkdir(parents=True)
    with pytest.raises(G2Error, match="cannot lock .*prepared: Is a directory; set G2LSTM_CACHE to another folder"):
        prepare_stream(text, WORDS, cache=tmp_path / "cache")


WORD = st.text(st.sampled_from("ab\x1c\x1f\u00e9\U0001f600"), min_size=1, max_size=3)


@given(st.lists(st.lists(WORD, max_size=6), max_size=4))
def test_counts_of_parts_add_up(tmp_path_factory: pytest.TempPathFactory, texts: list[list[str]]) -> None:
    folder = tmp_path_factory.mktemp("counts")
    paths = [folder / str(number) for number in range(len(texts))]
    for path, words in zip(paths, texts, strict=True):
        write_counts(count_words(words), path)
    assert list(add_counts(paths)) == sorted(Counter(word for words in texts for word in words).items())


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 1 << 14)
    monkeypatch.setattr(parts, "_ENCODE_LINES", 100)
    monkeypatch.setattr(parts, "_JOIN_NUMBERS", 1 << 10)
    peaks = []
    for times in (1, 10):
        text = tmp_path / "text"
        with text.open("w") as file:
            file.writelines(f"word{number} and{number % 100} a few others\n" for number in range(1000 * times))

        def prepare(text: Path = text) -> None:
            tokenizer = prepare_tokenizer(text, vocabulary=200, workers=1)
            prepare_stream(text, tokenizer, workers=1)

        peaks.append(peak_bytes(prepare))
    assert text.stat().st_size > 250_000
    assert peaks[1] < peaks[0] + 200_000, peaks  # a file is open for each part
