"""Joins the training pairs of several folders, without long ones; the other splits are those of the first folder.

Use: python tools/join_pairs.py WORDS OUT FIRST [MORE ...], with train.de and train.en in every folder.
"""

import shutil
import sys
from pathlib import Path

ENDINGS = ("de", "en")


def main(most: int, out: Path, folders: list[Path]) -> None:
    """Writes the joined folder; every pair once."""
    out.mkdir(parents=True, exist_ok=True)
    for ending in ENDINGS:
        for split in ("valid", "test"):
            shutil.copy(folders[0] / f"{split}.{ending}", out)
    held_out = {line for split in ("valid", "test") for line in _lines(out / f"{split}.{ENDINGS[0]}")}
    pairs: dict[tuple[str, ...], None] = {}
    for folder in folders:
        for pair in zip(*(_lines(folder / f"train.{ending}") for ending in ENDINGS), strict=True):
            if pair[0] not in held_out and all(0 < len(side.split()) <= most for side in pair):
                pairs[pair] = None
        print(f"{folder}: {len(pairs):,} pairs so far")
    for ending, side in zip(ENDINGS, zip(*pairs, strict=True), strict=True):
        (out / f"train.{ending}").write_text("\n".join(side) + "\n", encoding="utf-8")


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), [Path(each) for each in sys.argv[3:]])
