import logging
import math

import pytest

from g2lstm.errors import G2Error
from g2lstm.tasks.mt.recipe import BleuSection
from g2lstm.tasks.mt.trained import check, score

HYPOTHESES = ["the cat sat on the mat .", "a dog runs fast"]
REFERENCES = ["the cat is on the mat .", "a dog runs very fast"]
# Of 1 to 4 tokens: those of the hypotheses that the references have too, and those of the hypotheses.
#   the cat on the mat . + a dog runs fast; "the cat", "on the", "the mat", "mat ." + "a dog", "dog runs";
#   "on the mat", "the mat ." + "a dog runs"; "on the mat ."
PRECISIONS = [10 / 11, 6 / 9, 3 / 7, 1 / 5]
BREVITY = math.exp(1 - 12 / 11)


def test_bleu_is_brevity_times_the_geometric_mean_of_precisions():
    got = score(HYPOTHESES, REFERENCES, BleuSection())
    assert got["bleu"] == pytest.approx(100 * BREVITY * math.prod(PRECISIONS) ** 0.25)


def test_chrf_weighs_recall_twice():
    # Of 1 to 3 characters: in both, in the hypothesis, in the reference. Longer ones there are none.
    counts = [(2, 3, 3), (1, 2, 2), (0, 1, 1)]
    precision = recall = sum(both / said for both, said, _ in counts) / 3
    expected = 100 * 5 * precision * recall / (4 * precision + recall)
    assert score(["abc"], ["abd"], BleuSection())["chrf"] == pytest.approx(expected)
    one_sided = score(["ab"], ["abc"], BleuSection())["chrf"]
    precision, recall = (2 / 2 + 1 / 1) / 2, (2 / 3 + 1 / 2) / 2
    assert one_sided == pytest.approx(100 * 5 * precision * recall / (4 * precision + recall))


def test_the_same_text_is_perfect():
    got = score(REFERENCES, REFERENCES, BleuSection())
    assert (got["bleu"], got["chrf"]) == pytest.approx((100, 100))


def test_empty_translations_score_nothing():
    got = score(["", ""], REFERENCES, BleuSection())
    assert (got["bleu"], got["chrf"]) == (0, 0)


def test_tokenize_and_lowercase_do_what_they_say():
    plain, spaced = ["Then He said “the cat,” softly."], ["then he said “ the cat , ” softly ."]
    options = [("none", False), ("none", True), ("13a", True), ("intl", True)]
    figures = [
        score(plain, spaced, BleuSection(tokenize=tokenize, lowercase=lower))["bleu"] for tokenize, lower in options
    ]
    assert figures[0] < figures[1] < figures[2] < figures[3] == pytest.approx(100)


def test_signatures_are_the_standard_ones():
    got = score(HYPOTHESES, REFERENCES, BleuSection(tokenize="13a", lowercase=True))
    assert got["bleu_signature"].startswith("nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:2.")
    assert got["chrf_signature"].startswith("nrefs:1|case:lc|eff:yes|nc:6|nw:0|space:no|version:2.")
    plain = score(HYPOTHESES, REFERENCES, BleuSection())
    assert plain["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|version:2.")
    assert "case:mixed" in plain["chrf_signature"]


@pytest.mark.parametrize("tokenize", ["none", "13a"])
def test_tokenised_text_gives_no_warning(tokenize, caplog):
    with caplog.at_level(logging.WARNING):
        score(["it ends ."] * 200, ["it ends ."] * 200, BleuSection(tokenize=tokenize, lowercase=False))
    assert caplog.records == []


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        (["a"], ["a", "b"], "there are 1 translations but 2 references; give one for each translation"),
        ([], [], "there are no translations to score"),
    ],
)
def test_bad_arguments(hypotheses, references, message):
    with pytest.raises(G2Error, match=message):
        score(hypotheses, references, BleuSection())


def test_languages_without_spaces():
    """Of five characters four match, though the words between spaces do not."""
    assert score(["这是房子。"], ["这是房屋。"], BleuSection())["bleu"] == 0
    for tokenize in ("zh", "char"):
        got = score(["这是一座房子。"], ["这是一座房屋。"], BleuSection(tokenize=tokenize))
        assert 40 < got["bleu"] < 70
        assert f"|tok:{tokenize}|" in got["bleu_signature"]


def test_a_tokenizer_that_is_not_installed(monkeypatch):
    def missing(*_, **__):
        raise RuntimeError("Please install them like so.\n  pip install sacrebleu[ja]")

    check(BleuSection(tokenize="char"))
    monkeypatch.setattr("sacrebleu.metrics.bleu.BLEU", missing)
    check(BleuSection())  # the usual ones need no look
    message = r'evaluate.bleu.tokenize = "ja-mecab": Please install .* Or set it to "char", which needs nothing'
    with pytest.raises(G2Error, match=message):
        check(BleuSection(tokenize="ja-mecab"))
