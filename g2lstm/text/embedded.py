"""Real prose that needs no download: the language reference that comes with Python, as sentences of words."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from g2lstm.errors import G2Error
from g2lstm.text.cache import cache_dir, keep_file

SPLITS = ("train", "valid", "test")
BLOCK = 16  # paragraphs that stay together, so that sentences keep their context
_PLAIN_WORD = re.compile(r"[\"'“‘(*\[]*[A-Za-z][a-z’'-]*[\"'”’)*.,;:\]!?]*")
_SENTENCE_END = re.compile(r"(?<=[.?!])[\"”)]*\s+(?=[\"“(*]*[A-Z])")
_QUOTED = re.compile(r"\"([^\"]+)\"")
_NAME = re.compile(r"[^\W\d][\w.]*(?:\(\))?")
_TOKEN = re.compile(r"<code>|e\.g\.|i\.e\.|\d+(?:\.\d+)*|[^\W\d]\w*(?:[.'-]\w+)*|[.,;:?!()]")


def embedded_sentences() -> dict[str, list[str]]:
    """The sentences of each split: lower-case words and punctuation with spaces between.

    Numbers are `N` as in Penn Treebank, quoted code other than a name is `<code>`, and of `name()` the name is left.

    The text, and with it every score on it, depends on the version of Python. Of each ten blocks of paragraphs the
    ninth is for validation and the tenth for the test; a paragraph that the documentation repeats occurs once.
    """
    sentences: dict[str, list[str]] = {split: [] for split in SPLITS}
    for index, paragraph in enumerate(_paragraphs()):
        split = {8: "valid", 9: "test"}.get(index // BLOCK % 10, "train")
        sentences[split].extend(_sentences(paragraph))
    return sentences


def embedded_folder() -> Path:
    """The folder with the embedded `train.txt`, `valid.txt` and `test.txt`; what is missing or damaged is written."""
    texts = {split: "\n".join(lines) + "\n" for split, lines in embedded_sentences().items()}
    digest = hashlib.sha256("\0".join(texts.values()).encode()).hexdigest()
    folder = cache_dir() / "data" / f"embedded-{digest[:12]}"
    for split, text in texts.items():
        keep_file(folder / f"{split}.txt", text.encode())
    return folder


def _paragraphs() -> Iterator[str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise G2Error(
            "the embedded text is Python's own documentation (pydoc_data.topics), which this Python lacks; use a full "
            "installation, or data.path with a folder of your own"
        ) from None
    seen = set()
    for name in sorted(topics):
        for block in re.split(r"\n\s*\n", topics[name]):
            paragraph = " ".join(re.sub(r"(?<=\w-)\n\s*", "", block.strip()).split())
            if paragraph not in seen and _is_prose(paragraph):
                seen.add(paragraph)
                yield paragraph


def _is_prose(paragraph: str) -> bool:
    """Whether these are sentences: not code, grammar, a signature or a heading."""
    words = paragraph.split()
    if len(words) < 6 or "::=" in words or paragraph.startswith(">>>"):
        return False
    return sum(_PLAIN_WORD.fullmatch(word) is not None for word in words) >= 0.6 * len(words)


def _sentences(paragraph: str) -> Iterator[str]:
    for sentence in _SENTENCE_END.split(paragraph):
        text = _QUOTED.sub(_name_or_code, sentence.replace("’", "'")).lower()
        words = ["N" if word[0].isdigit() else word for word in _TOKEN.findall(text)]
        if len(words) > 1:
            yield " ".join(words)


def _name_or_code(quoted: re.Match[str]) -> str:
    code = quoted[1]
    return code.removesuffix("()") if _NAME.fullmatch(code) else " <code> "
