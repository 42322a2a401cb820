"""The user's own sentence pairs: what is taken from the training text, and what is refused."""

from pathlib import Path

import pytest

from g2lstm.errors import G2Error
from g2lstm.text import own as module
from g2lstm.text.own import own_pairs, pair_endings

ENDINGS = ("de", "en")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("G2LSTM_CACHE", str(tmp_path / "cache"))
    made = tmp_path / "pairs"
    made.mkdir()
    write(made, "train", 100)
    return made


def write(folder: Path, split: str, lines: int) -> None:
    for ending in ENDINGS:
        (folder / f"{split}.{ending}").write_text("\n".join(f"{split} {line}" for line in range(lines)))


@pytest.mark.parametrize("given", [(), ("valid",), ("test",), ("valid", "test")])
def test_missing_splits_are_taken_from_the_training_text(folder: Path, given: tuple[str, ...]) -> None:
    for split in given:
        write(folder, split, 3)
    found = own_pairs(folder, ENDINGS)
    parts = {split: pair.source.read_text().splitlines() for split, pair in found.items()}
    assert all(pair.target.read_text().splitlines() == parts[split] for split, pair in found.items())
    assert {split: len(lines) for split, lines in parts.items()} == {
        "train": 90 + 5 * len(given), "valid": 3 if "valid" in given else 5, "test": 3 if "test" in given else 5,
    }  # fmt: skip
    taken = [line for split, lines in parts.items() if split not in given for line in lines]
    assert sorted(taken) == sorted(f"train {line}" for line in range(100))
    assert own_pairs(folder, ENDINGS) == found  # made once
    assert given == ("valid", "test") or found["train"].source.parent != folder


def test_dev_is_another_name_for_valid(folder: Path) -> None:
    write(folder, "dev", 3)
    assert own_pairs(folder, ENDINGS)["valid"] == (folder / "dev.de", folder / "dev.en")


def test_what_is_wrong_is_said_of_the_users_file(folder: Path) -> None:
    (folder / "train.en").write_bytes("garçon\n".encode("latin1") * 100)
    with pytest.raises(G2Error, match=rf"{folder / 'train.en'} is not UTF-8 text"):
        own_pairs(folder, ENDINGS)


def test_a_long_text_gives_away_only_what_a_score_needs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PAIRS_HELD_OUT", 2)
    assert len(own_pairs(folder, ENDINGS)["valid"].source.read_text().splitlines()) == 2


def test_what_is_refused(folder: Path) -> None:
    with pytest.raises(G2Error, match=r"the data folder .*no does not exist; create it with train.de and train.en"):
        own_pairs(folder / "no", ENDINGS)
    with pytest.raises(G2Error, match=r"lacks train.fr; each split needs both languages"):
        own_pairs(folder, ("fr", "en"))
    with pytest.raises(G2Error, match=r"lacks train.fr and train.it; without valid and test, pairs of these"):
        own_pairs(folder, ("fr", "it"))
    write(folder, "train", 30)
    with pytest.raises(G2Error, match=r"only 30 lines, too few .* needs at least 40, or valid.de, valid.en, test.de"):
        own_pairs(folder, ENDINGS)
    (folder / "train.en").write_text("one\n" * 50)
    with pytest.raises(G2Error, match="they must have the same number"):
        own_pairs(folder, ENDINGS)


def test_the_languages_of_a_folder(folder: Path) -> None:
    assert pair_endings(folder) == ENDINGS
    (folder / "train.fr").write_text("un\n")
    assert pair_endings(folder) is None
    (folder / "train.txt").write_text("one\n")
    assert pair_endings(folder) is None
    assert pair_endings(folder / "train.de") is None
