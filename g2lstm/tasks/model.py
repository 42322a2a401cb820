"""What both models share: options of their layers, checked sizes, and a softmax that may be tied to an embedding."""

from collections.abc import Mapping
from typing import TypedDict

from torch import Tensor, nn

from g2lstm.nn.checks import check_count
from g2lstm.tasks.cross_entropy import cross_entropy
from g2lstm.tasks.dropout import check_dropout, locked_dropout


class GateOptions(TypedDict, total=False):
    """Options of `G2LSTM` that a model passes to all its layers."""

    method: str
    tau: float | None
    noise_rate: float
    gates: str
    eval_gate: str
    backend: str


def check_settings(sizes: Mapping[str, int], dropouts: Mapping[str, float]) -> None:
    """Raises unless all sizes are at least 1 and all dropout probabilities lie in [0, 1)."""
    for name, size in sizes.items():
        check_count(name, size)
    for name, probability in dropouts.items():
        check_dropout(name, probability)


class TokenModel(nn.Module):
    """A model that ends in a softmax over a vocabulary of V tokens, seen through features of width E.

    Attributes:
        softmax_weight: (V, E), a module once it is compressed; None if the softmax is tied to `tied_embedding`, so that
            no tensor is stored twice.
        softmax_bias: (V,).
    """

    softmax_parameters = ("softmax_weight",)  # how `compress` finds the softmax
    softmax_weight: nn.Parameter | nn.Module | None
    softmax_bias: nn.Parameter

    @property
    def tied_embedding(self) -> nn.Embedding:
        """The embedding whose weights a tied softmax uses."""
        raise NotImplementedError

    @property
    def output_weight(self) -> Tensor:
        """(V, E), the weights of the softmax: the embedding's own if tied."""
        return weight_of(self._softmax)

    @property
    def _softmax(self) -> nn.Module | Tensor:
        return self.tied_embedding if self.softmax_weight is None else self.softmax_weight

    def logits(self, features: Tensor) -> Tensor:
        """Unnormalised log-probabilities (..., V) of the next token from features (..., E)."""
        return nn.functional.linear(features, self.output_weight, self.softmax_bias)

    def token_losses(self, features: Tensor, targets: Tensor) -> Tensor:
        """-log p(target) in nats, shaped like `targets` (...), from features (..., E); never holds all the logits."""
        rows = features.reshape(-1, features.size(-1))
        losses = cross_entropy(rows, self.output_weight, self.softmax_bias, targets.reshape(-1), reduction="none")
        return losses.view(targets.shape)

    def _drop(self, x: Tensor, probability: float) -> Tensor:
        """Dropout with one mask for all steps, in training only."""
        return locked_dropout(x, probability) if self.training else x


def weight_of(softmax: nn.Module | Tensor) -> Tensor:
    """(V, E): a tensor is the weight itself, a module has one."""
    weight = softmax if isinstance(softmax, Tensor) else softmax.weight
    assert isinstance(weight, Tensor)
    return weight
