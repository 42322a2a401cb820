"""Real prose that needs no download: the language reference that ships with Python, as sentences of words."""

import re
from collections.abc import Iterator

from g2lstm.errors import G2Error

BLOCK = 16  # paragraphs that stay together, so that sentences keep their context
_PLAIN_WORD = re.compile(r"[\"'“‘(*\[]*[A-Za-z][a-z’'-]*[\"'”’)*.,;:\]!?]*")
_SENTENCE_END = re.compile(r"(?<=[.?!])[\"”)]*\s+(?=[\"“(*]*[A-Z])")
_QUOTED = re.compile(r"\"([^\"]+)\"")
_NAME = re.compile(r"[^\W\d][\w.]*(?:\(\))?")
_TOKEN = re.compile(r"<code>|e\.g\.|i\.e\.|\d+(?:\.\d+)*|[^\W\d]\w*(?:[.'-]\w+)*|[.,;:?!()]")


def embedded_files() -> dict[str, str]:
    """The embedded `train.txt`, `valid.txt` and `test.txt`: a sentence per line, of lower-case words and punctuation.

    Spaces separate them. Numbers become `N`, as in Penn Treebank; `name()` becomes `name`; other quoted code becomes
    `<code>`.

    The text depends on the version of Python, and so does every score on it. Of every ten blocks of paragraphs, the
    ninth is for validation and the tenth for testing. A paragraph that the documentation repeats occurs once.
    """
    sentences: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for index, paragraph in enumerate(_paragraphs()):
        split = {8: "valid", 9: "test"}.get(index // BLOCK % 10, "train")
        sentences[split].extend(_sentences(paragraph))
    return {f"{split}.txt": "\n".join(lines) + "\n" for split, lines in sentences.items()}


def _paragraphs() -> Iterator[str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise G2Error(
            "the embedded text is Python's own documentation (pydoc_data.topics), which this Python lacks; install all "
            "of Python, or set data.path to a folder of your own"
        ) from None
    seen = set()
    for name in sorted(topics):
        for block in re.split(r"\n\s*\n", topics[name]):
            paragraph = " ".join(re.sub(r"(?<=\w-)\n\s*", "", block.strip()).split())
            if paragraph not in seen and _is_prose(paragraph):
                seen.add(paragraph)
                yield paragraph


def _is_prose(paragraph: str) -> bool:
    """Whether a paragraph is sentences, not code, grammar, a signature or a heading."""
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
