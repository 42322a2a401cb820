import sys

import pytest

from g2lstm.errors import G2Error
from g2lstm.text.datasets import embedded_files


def test_there_is_prose_in_every_split() -> None:
    sentences = {name.removesuffix(".txt"): text.splitlines() for name, text in embedded_files().items()}
    sizes = {split: sum(len(line.split()) + 1 for line in lines) for split, lines in sentences.items()}
    assert sizes["train"] > 30_000
    assert min(sizes["valid"], sizes["test"]) > 2_500
    words = [word for lines in sentences.values() for line in lines for word in line.split()]
    assert 0.02 < words.count("the") / len(words) < 0.15
    assert all(word == word.lower() or word == "N" for word in words)
    assert not any(character in "".join(words) for character in '"*=`')


def test_splits_do_not_share_text() -> None:
    sentences = {name.removesuffix(".txt"): text.splitlines() for name, text in embedded_files().items()}
    long = {split: {line for line in lines if len(line.split()) > 20} for split, lines in sentences.items()}
    assert len(long["train"] & long["test"]) <= 0.02 * len(long["test"])
    assert len(long["train"] & long["valid"]) <= 0.02 * len(long["valid"])


def test_paragraphs_become_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """Heading of it all\n=================\n\n   stmt ::= "if" expression ":" suite and so on it goes\n
    The "with" statement (see "open()") is built-\n    in since Python 3.5.  It’s a name, e.g. "x + 1" is not.\n
    >>> the code is not prose at all here\n\n    f(x)\n"""
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", type("module", (), {"topics": {"b": text, "a": text}}))
    assert embedded_files() == {
        "train.txt": "the with statement ( see open ) is built-in since python N .\n"
        "it's a name , e.g. <code> is not .\n",
        "valid.txt": "\n",
        "test.txt": "\n",
    }


def test_a_python_without_its_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(G2Error, match=r"the embedded text is Python's own documentation .* which this Python lacks"):
        embedded_files()
