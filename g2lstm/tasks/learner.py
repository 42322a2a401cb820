"""What the training loop asks of a task, and how it measures that gates become binary."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from g2lstm.nn.record import GateRecord

BINS = 20  # of the histograms that training keeps
_GATES = ("input", "forget")


class StepLoss(NamedTuple):
    """The loss of one batch."""

    total: Tensor  # (), to be differentiated
    nats: float  # -log p per token, without regularisers or smoothing; the mean over processes is that of the batch
    tokens: int  # predicted in this batch, by all processes together


class Validation(NamedTuple):
    """What a validation found."""

    loss: float  # nats per token
    scores: dict[str, float]  # for people, by name
    criterion: float  # chooses the best model and drives the trigger: lower is better, then lower loss
    gates: Mapping[str, list[int]] = MappingProxyType({})  # by gate, counts of values in each twentieth from 0 to 1


class Learner(Protocol):
    """A model, its data, and how they make a loss."""

    @property
    def model(self) -> nn.Module:
        """The module whose weights are trained and saved."""

    @property
    def module(self) -> nn.Module:
        """A module around the model whose forward call makes the loss, so that DDP can wrap it."""

    @property
    def facts(self) -> dict[str, str]:
        """Facts about the training data, to be kept with the weights."""

    @property
    def remarks(self) -> Sequence[str]:
        """What the user should know before training begins, one line each."""

    def next_batch(self) -> Any | None:
        """The next batch of this epoch, a named tuple of tensors and numbers; None at its end."""

    def start_epoch(self) -> None:
        """Goes back to the beginning of the data."""

    @property
    def epoch_progress(self) -> float:
        """The share of the epoch that has been handed out, in [0, 1]."""

    def rate_scale(self, batch: Any) -> float:
        """The factor of the learning rate for this batch."""

    def loss(self, module: nn.Module, batch: Any) -> StepLoss:
        """The loss, through `module`, which may be `self.module` wrapped."""

    def validate(self) -> Validation:
        """Evaluates the model as it is."""

    def state_dict(self) -> dict[str, Any]:
        """The position in the data, and what this process carries from batch to batch: tensors, numbers, strings."""

    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        """Goes to a saved position.

        Args:
            states: one per process, in order; there may now be a different number of processes.
        """


def saturation(record: GateRecord | None) -> dict[str, float]:
    """The share of values below 0.1 or above 0.9, by LSTM and gate: {"saturation/layers.0/input": 0.31, ...}."""
    shares: dict[str, float] = {}
    for name, calls in (record or {}).items():
        for gate in _GATES:
            values = [value for call in calls for value in getattr(call, gate)]
            counts = [((value < 0.1) | (value > 0.9)).sum().item() for value in values]
            known = sum(value.isfinite().sum().item() for value in values)
            shares[f"saturation/{name}/{gate}"] = sum(counts) / max(known, 1)
    return shares


def histograms(record: GateRecord | None) -> dict[str, list[int]]:
    """For each gate of all LSTMs together, how many values are in each twentieth from 0 to 1."""
    counts = {gate: torch.zeros(BINS, dtype=torch.int64) for gate in _GATES}
    for calls in (record or {}).values():
        for call in calls:
            for gate, count in counts.items():
                for value in getattr(call, gate):
                    codes = (value[value.isfinite()] * BINS).int().clamp_(max=BINS - 1)
                    count += torch.bincount(codes, minlength=BINS).cpu()
    return {gate: count.tolist() for gate, count in counts.items()}
