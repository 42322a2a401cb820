"""`automatic`: the settings of a translation model for pairs that nobody has described, chosen by looking at them."""

import importlib.util
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from g2lstm.errors import G2Error
from g2lstm.tasks.lm.automatic import between, two_digits
from g2lstm.text.corpus import PairFiles
from g2lstm.text.lines import count_lines, open_to_read
from g2lstm.text.own import looks_tokenised, own_pairs, pair_endings

_SAMPLE = 20_000  # pairs to look at
_ODD_RATIO = 4  # between the lengths of the two sides, in characters, beyond what is usual in the text
_SCRIPTS = {  # of languages without spaces between words, and sacreBLEU's tokenizers for them, first match first
    "Japanese": (r"[\u3040-\u30ff]", "ja-mecab", "MeCab"),
    "Korean": (r"[\uac00-\ud7af]", "ko-mecab", "mecab_ko"),
    "Chinese": (r"[\u4e00-\u9fff]", "zh", "sacrebleu"),
    "Thai, Lao, Khmer or Burmese": (r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]", "char", "sacrebleu"),
}


class PairLook(NamedTuple):
    """What a text of pairs looks like."""

    pairs: int
    alphabet: int  # different characters of the side with more of them
    is_tokenized: bool
    script: str  # of the target, if its words have no spaces between them; otherwise ""
    characters: tuple[int, int]  # in a line of source and of target, on average
    empty: int  # pairs with an empty side, among those looked at
    odd: int  # pairs of which one side is much longer than usual
    looked_at: int

    def __str__(self) -> str:
        found = [
            f"{self.pairs:,} pairs to train on",
            "tokenised text" if self.is_tokenized else "plain text",
            f"{self.characters[0]} and {self.characters[1]} characters per line",
            f"{self.alphabet:,} different characters",
        ]
        found += [f"a target in {self.script}"] * bool(self.script)
        found += [f"{self.empty:,} of {self.looked_at:,} pairs with an empty side"] * bool(self.empty)
        found += [f"{self.odd:,} with one side far too long"] * bool(self.odd)
        return ", ".join(found)


def look_at(files: PairFiles) -> PairLook:
    """Looks at pairs that are spread evenly over the training text."""
    pairs = count_lines(files.source)
    every = max(1, pairs // _SAMPLE)
    with open_to_read(files.source) as one, open_to_read(files.target) as other:
        both = (pair for number, pair in enumerate(zip(one, other, strict=False)) if number % every == 0)
        sample = [tuple(side.decode(errors="replace").strip() for side in pair) for pair in both]
    full = [pair for pair in sample if all(pair)]
    if not full:
        raise G2Error(f"{files.source} and {files.target} have no pair with text on both sides")
    texts = ["\n".join(side) for side in zip(*full, strict=True)]
    usual = len(texts[0]) / len(texts[1])
    odd = sum(not 1 / _ODD_RATIO < len(a) / len(b) / usual < _ODD_RATIO for a, b in full if len(a) + len(b) > 40)
    return PairLook(
        pairs,
        max(len(set(text)) for text in texts),
        all(map(looks_tokenised, texts)),
        _script(texts[1]),
        (len(texts[0]) // len(full), len(texts[1]) // len(full)),
        len(sample) - len(full),
        odd,
        len(sample),
    )


def automatic(
    path: str, source: str | None = None, target: str | None = None, *, hidden: int | None = None
) -> tuple[dict[str, Any], PairLook]:
    """The tables of a recipe for the pairs in a folder, and what was seen; by default its two endings in order.

    The more pairs, the more sub-words, the wider the layers, the less dropout and the more minutes. Layers of another
    width, `hidden`, get more dropout the wider they are.
    """
    folder = Path(path).expanduser()
    if source is None or target is None:
        found = pair_endings(folder)
        if found is None:
            raise G2Error(f"the folder {path} has no pair of texts such as train.de and train.en")
        source, target = found
    look = look_at(own_pairs(folder, (source, target))["train"])
    thousands = look.pairs / 1000
    embedding = 64 * between(2, round(1.3 * thousands ** (1 / 3)), 8)
    width = embedding if hidden is None else hidden
    dropout = between(0.1, round(0.6 * thousands**-0.2 * width / embedding, 2), 0.3)
    vocabulary = between(300, two_digits(1000 * thousands**0.5), 32_000)
    tables: dict[str, Any] = {
        "task": "mt",
        "data": {
            "path": path,
            "source": source,
            "target": target,
            "tokenizer": "bpe",
            # Text in a script of thousands of characters, such as Chinese, needs a token for each that is not rare.
            "vocabulary": max(vocabulary, min(2 * look.alphabet, 16_000)),
            "is_tokenized": look.is_tokenized,
            "max_length": 100,
        },
        "model": {
            "method": "gumbel",
            "embedding": embedding,
            "hidden": width,
            "layers": 2,
            "dropout": {"input": dropout, "between": dropout, "output": dropout},
        },
        "train": {
            "minutes": between(1, round(20 * (thousands / 37) ** 0.5), 120),
            "epochs": 30,
            "batch_size": between(8, look.pairs // 100, 64),
            "clip": 1.0,
            "label_smoothing": 0.1,
            "optimizer": {"name": "adamw", "lr": 3e-3, "weight_decay": 0.05},
        },
    }
    if (found := _scoring(look, look.is_tokenized)) is not None:
        tables["evaluate"] = {"bleu": {"tokenize": found[0]}}
        tables["train"]["best_by"] = found[1]
    return tables, look


def complete(tables: dict[str, Any]) -> None:
    """Adds to a recipe for own pairs, in place, what it does not say and a look at them decides.

    That is `data.is_tokenized` and how translations are scored. What is wrong with the recipe is left to others to say.
    """
    match tables:
        case {"data": {"path": str(path), "source": str(source), "target": str(target)} as data, "train": dict(train)}:
            files = PairFiles(*(Path(os.path.expanduser(path), f"train.{ending}") for ending in (source, target)))
        case _:
            return
    evaluate = tables.get("evaluate", {})
    bleu: Any = evaluate.get("bleu", {}) if isinstance(evaluate, dict) else None
    is_silent = isinstance(bleu, dict) and "tokenize" not in bleu
    if "is_tokenized" in data and (data["is_tokenized"] or not is_silent):
        return
    try:
        look = look_at(files) if all(map(os.path.isfile, files)) else None
    except G2Error:
        look = None
    data.setdefault("is_tokenized", look is not None and look.is_tokenized)
    found = None if look is None else _scoring(look, data["is_tokenized"])
    if is_silent and found is not None:
        tables["evaluate"] = {**evaluate, "bleu": {**bleu, "tokenize": found[0]}}
        train.setdefault("best_by", found[1])


def _scoring(look: PairLook, is_tokenized: bool) -> tuple[str, str] | None:
    """How BLEU tokenises a language without spaces, and what chooses the best weights; None for other languages.

    If sacreBLEU has no tokenizer for the script, BLEU counts characters, which says little, and chrF chooses.
    """
    if not look.script or is_tokenized:
        return None
    _, name, module = _SCRIPTS[look.script]
    is_there = name != "char" and importlib.util.find_spec(module) is not None
    return (name, "bleu") if is_there else ("char", "chrf")


def _script(text: str) -> str:
    """The script of most letters, if it is one without spaces between words."""
    counts = {name: len(re.findall(pattern, text)) for name, (pattern, *_) in _SCRIPTS.items()}
    letters = sum(map(str.isalpha, text))
    if sum(counts.values()) < 0.3 * letters or not letters:
        return ""
    # Japanese also has Chinese characters.
    return "Japanese" if counts["Japanese"] > 0.1 * letters else max(counts, key=counts.__getitem__)
