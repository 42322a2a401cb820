"""Trains the tagger of `examples/two_lines.py`, compresses it, and writes it as C: tagger.h, tagger.c, tagger_test.c.

Run it: make -C examples/c
"""

import sys
from pathlib import Path

import g2lstm

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from two_lines import train  # noqa: E402


def main(folder: Path = HERE, steps: int = 400) -> None:
    """Prints what the C code needs."""
    small = g2lstm.compress(train(steps), "int8")
    made = g2lstm.export_c(small, folder / "tagger.c", force=True)
    print("\n".join(made.sizes.lines()))


if __name__ == "__main__":
    main()
