"""What a trained model is worth with hard gates, beside what it is worth with soft ones."""

from pathlib import Path
from typing import Any

from g2lstm.tasks.trained import Progress, Scoring, Trained


def score_by_gate(
    trained: Trained,
    split: str = "valid",
    *,
    samples: int = 10_000,
    data_dir: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """{"metric": "perplexity" or "bleu", "soft": ..., "hard": ..., and over how much of what}.

    Args:
        trained: the model and its tokenizers.
        split: of its own data.
        samples: of a language model's text as many windows at most, of a translation model's as many sentences, from
            the beginning.
        data_dir: where the named data sets are.
        progress: called with what is done of one of the two readings, and what there is in all.
    """
    values = {
        gate: trained.score_split(Scoring(split, gate, samples=samples, data_dir=data_dir), progress).values
        for gate in ("soft", "hard")
    }
    metric, found = trained.metric.name, values["soft"]
    counted: dict[str, Any] = {unit: found[unit] for unit in ("tokens", "sentences") if unit in found}
    return {"metric": metric, **{gate: each[metric] for gate, each in values.items()}, "split": split, **counted}
