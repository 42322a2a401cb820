"""What the training loop asks of a task; language modelling is one, translation another."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn


class StepLoss(NamedTuple):
    """The loss of one batch."""

    total: Tensor  # (), to be differentiated
    nats: float  # -log p a token, without regularisers or smoothing; its mean over the processes is that of the batch
    tokens: int  # predicted in this batch, by all processes together


class Validation(NamedTuple):
    """What a validation found."""

    loss: float  # nats a token
    scores: dict[str, float]  # for people, by name
    criterion: float  # what the choice of the best model and the trigger look at: lower is better, then lower loss
    gates: Mapping[str, list[int]] = MappingProxyType({})  # by gate, how many values are in each twentieth from 0 to 1


class Task(Protocol):
    """A model, its data, and how they make a loss."""

    @property
    def model(self) -> nn.Module:
        """Whose weights are trained and saved."""

    @property
    def module(self) -> nn.Module:
        """Around the model: its forward call makes the loss, so that DDP can wrap it."""

    @property
    def facts(self) -> dict[str, str]:
        """About the training data, to be kept with the weights."""

    @property
    def remarks(self) -> Sequence[str]:
        """What the user should know before training begins, a line each."""

    def next_batch(self) -> Any | None:
        """The next batch of this epoch, a named tuple of tensors and numbers; None at its end."""

    def start_epoch(self) -> None:
        """Goes to the beginning of the data."""

    @property
    def epoch_progress(self) -> float:
        """How much of the epoch has been handed out, in [0, 1]."""

    def rate_scale(self, batch: Any) -> float:
        """What the learning rate is multiplied by for this batch."""

    def loss(self, module: nn.Module, batch: Any) -> StepLoss:
        """The loss, through `module`, which may be `self.module` wrapped."""

    def validate(self) -> Validation:
        """Evaluates the model as it is."""

    def state_dict(self) -> dict[str, Any]:
        """Where in the data it stands, and what this process carries from batch to batch: tensors, numbers, strings."""

    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        """Goes there.

        Args:
            states: of all the processes that there were, in their order; there may be another number of them now.
        """
