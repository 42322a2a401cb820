"""Counting gates while a model runs: `watch` for any model, `record_split` for a trained one and its own data."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from g2lstm.errors import G2Error
from g2lstm.look.mode import in_mode
from g2lstm.look.reading import Reading
from g2lstm.look.statistics import GateStatistics
from g2lstm.nn.record import record_gates
from g2lstm.tasks.lm.trained import TrainedLanguageModel
from g2lstm.tasks.mt.trained import TrainedTranslationModel
from g2lstm.text.corpus import TokenStream
from g2lstm.text.pairs import PairCorpus, prepare_pairs
from g2lstm.text.windows import Columns

_USUAL_LENGTH = 24  # of sentences; batches of longer ones have fewer, so that memory stays the same

Trained = TrainedLanguageModel | TrainedTranslationModel
Progress = Callable[[int, int], None]  # samples done, samples in all


@contextmanager
def watch(model: nn.Module) -> Iterator[GateStatistics]:
    """Counts the gates of every `G2LSTM` and `torch.nn.LSTM` inside `model` while the block runs, and keeps none.

    The mode is the model's own: call `model.eval()` before, or see the noise of training. Sequences of different
    lengths should be packed, or their padding is counted too.

    Examples:
        >>> with g2lstm.look.watch(model.eval()) as statistics:
        ...     for x in data:
        ...         model(x)
        >>> for layer in statistics.summary():
        ...     print(layer["name"], layer["gates"]["forget"]["mean"])
    """
    with record_gates(model) as record, ExitStack() as stack:
        statistics = GateStatistics(model, record)
        stack.callback(statistics.drain, record)  # what a call by another way than the module's own has left
        for name, module in model.named_modules():
            if name in record:
                hook = module.register_forward_hook(lambda *_: statistics.drain(record))
                stack.callback(hook.remove)
        yield statistics


@dataclass(frozen=True)
class Recording:
    """What was counted.

    Attributes:
        statistics: the gates.
        mode: evaluation or training, in words.
        data: which text, and how much of it.
    """

    statistics: GateStatistics
    mode: str
    data: dict[str, Any]


def record_split(
    trained: Trained,
    split: str = "valid",
    *,
    samples: int = 10_000,
    eval_gate: str | None = None,
    training: bool = False,
    seed: int = 0,
    data_dir: Path | None = None,
    progress: Progress | None = None,
) -> Recording:
    """Counts the gates of a trained model on a split of its own data. Memory does not grow with the samples.

    A language model reads windows of its text, those of validation: as many columns side by side and as many steps, the
    state carried from one window to the next; the first ones of each column are taken. A translation model reads pairs,
    the target given, in encoder and decoder; they are drawn at random and no longer than those of training.

    Args:
        trained: the model and its tokenizers.
        split: "train", "valid" or "test".
        samples: how many windows or pairs at most.
        eval_gate: "soft", "tempered" or "hard"; None for the model's own.
        training: as in training, with noise.
        seed: of noise, dropout, and which pairs.
        data_dir: where the named data sets are.
        progress: called with the samples done and those in all.
    """
    if samples < 1:
        raise G2Error(f"samples must be at least 1, got {samples}")
    model = trained.model
    with in_mode(model, eval_gate=eval_gate, training=training, seed=seed) as mode, record_gates(model) as record:
        statistics = GateStatistics(model, record)
        data = load_split(trained, split, data_dir)
        for done, total, is_token in read_split(trained, data, samples, seed):
            statistics.drain(record, is_token)
            if progress is not None:
                progress(done, total)
    tokens = {place.side: histograms["input"].steps for place, histograms in statistics.items()}
    is_text = isinstance(data, TokenStream)
    unit, sha256 = ("windows", data.text_sha256) if is_text else ("pairs", "+".join(data.text_sha256))
    return Recording(statistics, mode, {"split": split, unit: done, "tokens": tokens, "sha256": sha256})


def record_reading(trained: Trained, reading: Reading) -> Recording:
    """Counts the gates of one text, as it was read."""
    statistics = GateStatistics(trained.model, dict.fromkeys(layer.name for layer in reading.layers))
    for layer in reading.layers:
        for gate, histogram in statistics[layer.place].items():
            histogram.add(torch.from_numpy(getattr(layer, gate)))
    return Recording(statistics, reading.mode, {"tokens": {side: len(each) for side, each in reading.tokens.items()}})


class Pass(NamedTuple):
    """After one call of the model: how many samples are done, of how many, and what of it was no padding."""

    done: int
    total: int
    is_token: dict[str, Tensor]  # (T, B), by the names of LSTMs that read padding


def load_split(trained: Trained, split: str, data_dir: Path | None = None) -> TokenStream | PairCorpus:
    """A split of a model's own data, prepared."""
    if isinstance(trained, TrainedLanguageModel):
        return trained.split(split, data_dir)
    return prepare_pairs(trained.files(split, data_dir), trained.source, trained.target)


def read_split(trained: Trained, data: TokenStream | PairCorpus, samples: int, seed: int = 0) -> Iterator[Pass]:
    """Reads windows or pairs with a model, as `record_split` tells, in whatever mode it is.

    Args:
        trained: the model.
        data: of `load_split`.
        samples: how many windows or pairs at most.
        seed: of which pairs.
    """
    if isinstance(trained, TrainedLanguageModel):
        assert isinstance(data, TokenStream)
        return _read_windows(trained, data, samples)
    assert isinstance(data, PairCorpus)
    return _read_pairs(trained, data, samples, seed)


def _read_windows(trained: TrainedLanguageModel, stream: TokenStream, samples: int) -> Iterator[Pass]:
    model, how = trained.model, trained.recipe.evaluate
    columns = Columns(stream, min(how.batch_size, samples, len(stream) - 1))
    total = min(samples, columns.local_batch * -(-columns.rows // how.bptt))
    state, done = model.initial_state(columns.local_batch), 0
    for window in columns.windows(repeat(how.bptt)):
        width = min(columns.local_batch, total - done)
        state = [(h[:, :width], c[:, :width]) for h, c in state]
        _, _, state = model(window.tokens[:, :width].to(model.softmax_bias.device), state)
        done += width
        yield Pass(done, total, {})
        if done == total:
            return


def _read_pairs(trained: TrainedTranslationModel, corpus: PairCorpus, samples: int, seed: int) -> Iterator[Pass]:
    model, recipe = trained.model, trained.recipe
    lengths = np.stack((corpus.target_lengths, corpus.source_lengths))
    kept = np.flatnonzero((lengths.min(0) > 0) & (lengths.max(0) <= recipe.data.max_length))
    chosen = np.random.default_rng(seed).permutation(kept)[:samples]
    if not len(chosen):
        raise G2Error(f"all {len(corpus)} pairs have an empty side or more than {recipe.data.max_length} tokens on one")
    longer = lengths.max(0)  # of the two sides
    chosen = chosen[np.argsort(-longer[chosen], kind="stable")]
    done, device = 0, model.softmax_bias.device
    while done < len(chosen):
        size = recipe.evaluate.batch_size * min(1.0, _USUAL_LENGTH / longer[chosen[done]])
        pairs = chosen[done : done + max(1, int(size))]
        source, source_lengths = map(torch.from_numpy, corpus.source.columns(pairs, trained.source.eos_id))
        target, target_lengths = map(torch.from_numpy, corpus.target.columns(pairs, trained.target.eos_id))
        inputs = torch.cat((target[-1:], target[:-1]))  # <eos>, which ends the longest target too, and all but it
        model(source.to(device), source_lengths + 1, inputs.to(device))
        is_source, is_target = (
            torch.arange(len(ids)).unsqueeze(1) <= count
            for ids, count in ((source, source_lengths), (target, target_lengths))
        )
        encoder = {f"encoder.{layer}": is_source for layer in range(len(model.encoder))}
        decoder = {f"decoder.{layer}": is_target for layer in range(len(model.decoder))}
        done += len(pairs)
        yield Pass(done, len(chosen), encoder | decoder)
