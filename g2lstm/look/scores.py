"""What a trained model is worth with hard gates, beside what it is worth with soft ones."""

from pathlib import Path
from typing import Any

import torch

from g2lstm.look.record import Progress, Trained
from g2lstm.nn.mode import evaluating
from g2lstm.tasks.lm.evaluate import perplexity
from g2lstm.tasks.lm.trained import TrainedLanguageModel
from g2lstm.tasks.mt.bleu import score


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
    if isinstance(trained, TrainedLanguageModel):
        stream = trained.split(split, data_dir)
        tokens = torch.from_numpy(stream.read(0, min(len(stream), samples * trained.recipe.evaluate.bptt + 1)))
        found = {
            gate: perplexity(trained.model, tokens, eval_gate=gate, progress=progress).perplexity
            for gate in ("soft", "hard")
        }
        return {"metric": "perplexity", **found, "split": split, "tokens": len(tokens) - 1}
    sources, references = (lines[:samples] for lines in trained.split(split, data_dir))
    how = trained.recipe.evaluate.bleu
    bleu = {}
    for gate in ("soft", "hard"):
        with evaluating(trained.model):
            best = trained.search(sources, max_source=None, eval_gate=gate, progress=progress)
        texts = [each[0].text for each in best]
        bleu[gate] = score(texts, references, tokenize=how.tokenize, lowercase=how.lowercase).bleu
    return {"metric": "bleu", **bleu, "split": split, "sentences": len(sources)}
