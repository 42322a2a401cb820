"""Writes the sentences of WikiText-2 that have no unknown word as plain text, to train a model that people can type to.

Use: python tools/plain_wikitext.py WIKITEXT-2 OUT, two folders; train.txt, valid.txt and test.txt are read and written.
"""

import re
import sys
from pathlib import Path

from g2lstm.runtime.detokenize import detokenize


def plain_sentences(line: str) -> list[str]:
    """The sentences of a line without unknown words, as people write them; none of a heading."""
    if line.startswith(" ="):
        return []
    sentences = re.split(r"(?<= [.?!]) (?=[A-Z\"])", line.strip())
    ended = [one for one in sentences if one.endswith((" .", " ?", " !")) and one.count('"') != 1]
    whole = [one for one in ended if "<unk>" not in one]
    return [detokenize(re.sub(r" @([,.])@ ", r"\1", one), "en") for one in whole if len(one.split()) > 3]


def main(source: str, out: str) -> None:
    """Converts the three parts."""
    Path(out).mkdir(parents=True, exist_ok=True)
    for part in ("train.txt", "valid.txt", "test.txt"):
        with (Path(source) / part).open(encoding="utf-8") as lines:
            sentences = [sentence for line in lines for sentence in plain_sentences(line)]
        (Path(out) / part).write_text("\n".join(sentences) + "\n", encoding="utf-8")
        print(f"{part}: {len(sentences):,} sentences")


if __name__ == "__main__":
    main(*sys.argv[1:])
