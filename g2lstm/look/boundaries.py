"""Whether a low forget gate marks the start of a clause, in the embedded German, whose clauses are known."""

from collections import defaultdict
from typing import Any

import numpy as np
import numpy.typing as npt

from g2lstm.nn.record import record_gates
from g2lstm.tasks.reading import Place, in_mode, places
from g2lstm.tasks.trained import Trained
from g2lstm.text.grammar import GrammarPair
from g2lstm.text.tokenize import Tokenizer, begins_word

_BATCH = 64

Floats = npt.NDArray[np.floating]


def boundary_auc(
    trained: Trained,
    split: str = "valid",
    *,
    samples: int = 10_000,
    eval_gate: str | None = None,
    training: bool = False,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """How well a low mean forget gate predicts a new clause, for each layer and direction of the encoder.

    The measure is the area under the ROC curve: the probability that the gate is lower at a random boundary than at a
    random other word; 1 is perfect, 0.5 is chance. A boundary is a clause's first word ("first_word") or the comma
    before it ("comma"). Empty if no sentence has a known boundary.

    Args:
        trained: the model; only some know their `clauses`.
        split: "train", "valid" or "test".
        samples: the most sentences to read, from the start.
        eval_gate: "soft", "tempered" or "hard"; None for the model's own.
        training: measure as in training, with noise.
        seed: seeds noise and dropout.
    """
    pairs = trained.clauses(split)[:samples]
    if not any(pair.boundaries for pair in pairs):
        return []
    model, tokenizer = trained.model, next(iter(trained.tokenizers.values()))
    modules = dict(model.named_modules())
    found: dict[Place, list[Floats]] = defaultdict(list)  # for each sentence, the mean at each word
    with in_mode(model, eval_gate=eval_gate, training=training, seed=seed), record_gates(model) as record:
        for start in range(0, len(pairs), _BATCH):
            sources = trained.encode_lines([pair.source for pair in pairs[start : start + _BATCH]])
            starts = [_word_starts(tokenizer, source) for source in sources]
            for name, calls in record.items():
                for gates in calls:
                    for place, forget in zip(places(name, modules[name]), gates.forget, strict=True):
                        means = forget.mean(-1).t().cpu().numpy()
                        found[place] += [row[words] for row, words in zip(means, starts, strict=True)]
                calls.clear()
    return [
        {
            "name": place.name,
            "direction": place.direction,
            "title": place.title,
            "auc": {"first_word": _auc(means, pairs, 0), "comma": _auc(means, pairs, -1)},
        }
        for place, means in found.items()
    ]


def area_under_curve(lower: Floats, higher: Floats) -> float:
    """The probability that a value from `lower` is below one from `higher`; ties count as half."""
    ordered = np.sort(higher)
    above = len(ordered) - np.searchsorted(ordered, lower, side="right")
    equal = np.searchsorted(ordered, lower, side="right") - np.searchsorted(ordered, lower, side="left")
    return float((above + equal / 2).sum() / (len(lower) * len(higher)))


def _auc(means: list[Floats], pairs: list[GrammarPair], shift: int) -> float:
    is_boundary = []
    for mean, pair in zip(means, pairs, strict=True):
        marks = np.zeros(len(mean), dtype=bool)
        marks[[place + shift for place in pair.boundaries]] = True
        is_boundary.append(marks)
    values, marks = np.concatenate(means), np.concatenate(is_boundary)
    return area_under_curve(values[marks], values[~marks])


def _word_starts(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """The positions of the tokens that start a word."""
    if tokenizer.kind == "word":
        return list(range(len(ids)))
    return [place for place, token in enumerate(ids) if begins_word(tokenizer.token_of(token))]
