from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from g2lstm.text.counting import add_counts, count_words, write_counts

WORD = st.text(st.sampled_from("ab\x1c\x1f\u00e9\U0001f600"), min_size=1, max_size=3)


def test_words_are_what_stands_between_white_space() -> None:
    assert count_words(["a  b\ta", "", "\x1ca A\u2028b"]) == Counter({"a": 2, "b": 2, "\x1ca": 1, "A": 1})
    assert count_words(["A a"], lowercase=True) == Counter({"a": 2})


@given(st.lists(st.lists(WORD, max_size=6), max_size=4))
def test_counts_of_parts_add_up(tmp_path_factory: pytest.TempPathFactory, texts: list[list[str]]) -> None:
    folder = tmp_path_factory.mktemp("counts")
    paths = [folder / str(number) for number in range(len(texts))]
    for path, words in zip(paths, texts, strict=True):
        write_counts(count_words(words), path)
    added = list(add_counts(paths))
    assert added == sorted(Counter(word for words in texts for word in words).items())


def test_no_word_at_all(tmp_path: Path) -> None:
    write_counts(Counter(), tmp_path / "none")
    assert list(add_counts([tmp_path / "none"])) == []
