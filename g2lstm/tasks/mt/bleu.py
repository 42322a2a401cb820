"""BLEU and chrF as sacreBLEU computes them, with the signatures that make scores comparable."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from g2lstm.errors import G2Error
from g2lstm.tasks.mt.recipe import BleuSection

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU


def score(hypotheses: Sequence[str], references: Sequence[str], how: BleuSection) -> dict[str, Any]:
    """How close translations are to their references, one each, from 0 to 100: BLEU and chrF, with signatures."""
    from sacrebleu.metrics.chrf import CHRF

    bleu, chrf = _metric(how), CHRF(lowercase=how.lowercase)
    scores = {"bleu": _corpus_score(bleu, hypotheses, references)}
    scores["chrf"] = chrf.corpus_score(hypotheses, [references]).score
    return {**scores, "bleu_signature": str(bleu.get_signature()), "chrf_signature": str(chrf.get_signature())}


def check(how: BleuSection) -> None:
    """Raises if sacreBLEU can't compare in this way, better before training than after."""
    if how.tokenize not in ("none", "13a", "intl"):
        _metric(how)


def corpus_chrf(hypotheses: Sequence[str], references: Sequence[str], how: BleuSection) -> float:
    """Only the chrF of `score`."""
    from sacrebleu.metrics.chrf import CHRF

    return float(CHRF(lowercase=how.lowercase).corpus_score(hypotheses, [references]).score)


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str], how: BleuSection) -> float:
    """Only the BLEU of `score`, which saves the time that chrF takes."""
    return _corpus_score(_metric(how), hypotheses, references)


def bleu_by_sentence(texts: Sequence[str], references: Sequence[str], how: BleuSection) -> list[list[int]]:
    """For each sentence its matching n-grams of 1 to 4 words, all its n-grams, its length and the reference's."""
    bleu = _metric(how, effective_order=True)
    scores = [bleu.sentence_score(text, [reference]) for text, reference in zip(texts, references, strict=True)]
    return [[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores]


def _metric(how: BleuSection, *, effective_order: bool = False) -> "BLEU":
    from sacrebleu.metrics.bleu import BLEU

    try:  # `force` only silences a warning that the text looks tokenised
        return BLEU(tokenize=how.tokenize, lowercase=how.lowercase, force=True, effective_order=effective_order)
    except (RuntimeError, ImportError, OSError) as error:  # a package that is not installed, a model not downloaded
        said = " ".join(str(error).split())
        raise G2Error(
            f'evaluate.bleu.tokenize = "{how.tokenize}": {said} Or set it to "char", which needs nothing'
        ) from None


def _corpus_score(bleu: "BLEU", hypotheses: Sequence[str], references: Sequence[str]) -> float:
    if len(hypotheses) != len(references):
        raise G2Error(
            f"there are {len(hypotheses)} translations but {len(references)} references; give one for each translation"
        )
    if not hypotheses:
        raise G2Error("there are no translations to score; give at least one")
    return float(bleu.corpus_score(hypotheses, [references]).score)
