"""The user's own text: what is split off, where, and what is refused."""

import re
from pathlib import Path

import pytest

from g2lstm.errors import G2Error
from g2lstm.text import own
from g2lstm.text.own import looks_tokenised, own_texts


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("G2LSTM_CACHE", str(tmp_path / "cache"))


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_one_file_is_cut_where_paragraphs_end(tmp_path: Path) -> None:
    text = "".join(f"Paragraph {number},\nwith two lines.\n\n" for number in range(400))
    found = own_texts(write(tmp_path / "my.txt", text))
    parts = {split: file.read_text() for split, file in found.items()}
    assert list(parts) == ["train", "valid", "test"]
    assert "".join(parts.values()) == text
    assert all(part.startswith("Paragraph") and part.endswith("\n\n") for part in parts.values())
    assert [round(100 * len(part) / len(text)) for part in parts.values()] == [90, 5, 5]
    assert own_texts(tmp_path / "my.txt") == found  # made once


@pytest.mark.parametrize("text", ["one line of words " * 200, "日本語" * 1000, "lines only\r\n" * 300])
def test_a_text_without_paragraphs_is_cut_elsewhere(tmp_path: Path, text: str) -> None:
    path = tmp_path / "my.txt"
    path.write_bytes(text.encode())
    parts = [file.read_bytes().decode() for file in own_texts(path).values()]  # no character is torn
    assert "".join(parts) == text
    assert min(map(len, parts)) > 0.03 * len(text)
    assert all(part.endswith((" ", "語", "本", "日", "\n")) for part in parts)


@pytest.mark.parametrize("given", [("train",), ("train", "valid"), ("train", "test"), ("train", "valid", "test")])
def test_a_folder_with_some_splits(tmp_path: Path, given: tuple[str, ...]) -> None:
    for split in given:
        write(tmp_path / "data" / f"{split}.txt", f"a line of {split}\n" * 100)
    found = own_texts(tmp_path / "data")
    for split in ("valid", "test"):
        origin = split if split in given else "train"
        assert set(found[split].read_text().splitlines()) == {f"a line of {origin}"}
    whole = (tmp_path / "data" / "train.txt").read_text()
    rest = [found[split].read_text() for split in ("train", "valid", "test") if split == "train" or split not in given]
    assert "".join(rest) == whole


def test_a_long_text_gives_away_only_what_a_score_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "MOST_HELD_OUT", 100)
    found = own_texts(write(tmp_path / "my.txt", "some words\n" * 1000))
    assert 80 <= found["test"].stat().st_size <= 100


def test_a_folder_with_one_text_of_any_name(tmp_path: Path) -> None:
    write(tmp_path / "data" / "novel.txt", "some words\n" * 200)
    assert own_texts(tmp_path / "data")["train"].read_text().startswith("some words")


def test_mistakes(tmp_path: Path) -> None:
    short = write(tmp_path / "short.txt", "too short\n")
    with pytest.raises(G2Error, match=re.escape(f"{short} has only 10 bytes, too few to split off texts")):
        own_texts(short)
    with pytest.raises(G2Error, match="the text .*none.txt does not exist; give a text file, or a folder with train"):
        own_texts(tmp_path / "none.txt")
    write(tmp_path / "two" / "a.txt", "x\n")
    write(tmp_path / "two" / "b.txt", "x\n")
    with pytest.raises(G2Error, match=r"two lacks train.txt; it has a.txt, b.txt. Rename your training text, or give"):
        own_texts(tmp_path / "two")
    (tmp_path / "empty").mkdir()
    with pytest.raises(G2Error, match=r"empty lacks train.txt; it is empty. Put your text there; for pairs"):
        own_texts(tmp_path / "empty")


def test_what_is_wrong_is_said_of_the_users_file(tmp_path: Path) -> None:
    path = tmp_path / "my.txt"
    path.write_bytes("\ufeffen un lugar\n".encode("utf-16-le") * 100)
    with pytest.raises(G2Error, match=re.escape(f"{path} is UTF-16 text")):
        own_texts(path)


def test_dev_is_another_name_for_valid(tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        write(tmp_path / "data" / f"{split}.txt", f"a line of {split}\n" * 100)
    assert [file.name for file in own_texts(tmp_path / "data").values()] == ["train.txt", "dev.txt", "test.txt"]


def test_half_of_a_pair_is_explained(tmp_path: Path) -> None:
    write(tmp_path / "one" / "train.en", "some words\n" * 200)
    with pytest.raises(G2Error, match=r"lacks train.txt; it has train.en. Pairs need two files, one for each language"):
        own_texts(tmp_path / "one")
    for ending in ("de", "ja"):
        write(tmp_path / "one" / f"train.{ending}", "some words\n" * 200)
    with pytest.raises(G2Error, match=r"train.ja. Write a recipe for two of these languages, such as: g2lstm init de"):
        own_texts(tmp_path / "one")
    write(tmp_path / "named" / "corpus.de", "some words\n")
    with pytest.raises(G2Error, match=r"it has corpus.de. Pairs need two files, one for each language, such as train"):
        own_texts(tmp_path / "named")


def test_tokenised_text_is_recognised() -> None:
    assert looks_tokenised("誰 が 一番 に 着 く か 私 に は 分か り ま せ ん 。\n")
    assert not looks_tokenised("誰が一番に着くか、私には分かりません。\n")
    assert looks_tokenised("The cat , which sat , ran .\nA dog saw it .\n")
    assert not looks_tokenised("The cat, which sat, ran. A dog saw it.\n")
    assert not looks_tokenised("Qui est là ? Moi, dit-il ; personne d'autre.")  # French puts some marks apart
    assert not looks_tokenised("no marks at all")
