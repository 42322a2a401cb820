"""BLEU and chrF as sacreBLEU computes them, with the signatures that make scores comparable."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from g2lstm.errors import G2Error
from g2lstm.tasks.mt.recipe import BleuSection

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

TOKENIZERS = ("none", "13a", "intl")


class Scores(NamedTuple):
    """How close translations are to their references, from 0 to 100."""

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    sentences: int


def score(hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str, lowercase: bool) -> Scores:
    """Scores the translations of a corpus, one reference each, by BLEU and chrF.

    Args:
        hypotheses: translations, one line each.
        references: their references, in the same order.
        tokenize: "none" for tokenised text, as `multi-bleu.perl` reads it; "13a" or "intl" for plain text.
        lowercase: ignore case.
    """
    bleu, bleu_score = _bleu(hypotheses, references, tokenize, lowercase)
    from sacrebleu.metrics.chrf import CHRF

    chrf = CHRF(lowercase=lowercase)
    chrf_score = chrf.corpus_score(hypotheses, [references]).score
    return Scores(bleu_score, str(bleu.get_signature()), chrf_score, str(chrf.get_signature()), len(hypotheses))


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str, lowercase: bool) -> float:
    """Only the BLEU of `score`, without the time that chrF takes."""
    return _bleu(hypotheses, references, tokenize, lowercase)[1]


def _bleu(hypotheses: Sequence[str], references: Sequence[str], tokenize: str, lowercase: bool) -> "tuple[BLEU, float]":
    if tokenize not in TOKENIZERS:
        raise G2Error(f"tokenize must be one of {', '.join(map(repr, TOKENIZERS))}, got {tokenize!r}")
    if len(hypotheses) != len(references):
        raise G2Error(
            f"there are {len(hypotheses)} translations but {len(references)} references; give one for each translation"
        )
    if not hypotheses:
        raise G2Error("there are no translations to score; give at least one")
    from sacrebleu.metrics.bleu import BLEU

    # `force` only silences a warning that the text looks tokenised.
    bleu = BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
    return bleu, bleu.corpus_score(hypotheses, [references]).score


def can_be_scored(references: Sequence[str], *, tokenize: str) -> bool:
    """Whether BLEU can exceed 0: it counts sequences of four words, so at least one reference must have four."""
    from sacrebleu.metrics.bleu import BLEU

    return bool(BLEU(tokenize=tokenize, force=True).corpus_score(references, [references]).score > 0)


def bleu_by_sentence(texts: Sequence[str], references: Sequence[str], how: BleuSection) -> list[list[int]]:
    """For each sentence its matching n-grams of 1 to 4 words, all its n-grams, its length and the reference's."""
    from sacrebleu.metrics.bleu import BLEU

    bleu = BLEU(tokenize=how.tokenize, lowercase=how.lowercase, force=True, effective_order=True)
    scores = [bleu.sentence_score(text, [reference]) for text, reference in zip(texts, references, strict=True)]
    return [[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores]
