"""Recurrent layers with encoded weights, which run decoded; and any recurrent layer, read gate by gate."""

import warnings
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from g2lstm.compression.encodings import Dense, Encoding
from g2lstm.compression.gate_weights import LayerWeights as LayerWeights
from g2lstm.compression.gate_weights import Weight as Weight
from g2lstm.compression.modules import Decoded, EncodedMatrix
from g2lstm.compression.session import Layer
from g2lstm.errors import G2Error
from g2lstm.nn.cells import GatedCell
from g2lstm.nn.convert import shape_of, to_torch
from g2lstm.nn.gate import GRU, LSTM, GateRule
from g2lstm.nn.gated import Gated
from g2lstm.nn.kind import gate_factors
from g2lstm.nn.layer import Weights
from g2lstm.nn.lstm import GatedLSTM
from g2lstm.nn.stand_in import StandIn
from g2lstm.nn.survey import TWINS, kind_of, parameter_names, why_not


class CompressedRecurrent(Gated):
    """A recurrent layer with encoded weights, used in evaluation like the one that it replaces.

    To read one sequence step by step from packed weights, use `g2lstm.stream`.

    Biases, and projections that are not encoded, are parameters without gradients. Training mode is for looking at
    sampled gates under `torch.no_grad()`. There is no DropConnect.

    Args:
        layer: the layer that it replaces, whose biases and projections it takes over.
        matrices: W_x and W_h of every gate: "weight_ih_l0.i" and so on; and projections, "weight_hr_l0".
    """

    def __init__(self, layer: nn.Module, matrices: Mapping[str, EncodedMatrix]) -> None:
        nn.Module.__init__(self)
        self._twin = next(ours for theirs, ours in TWINS.items() if isinstance(layer, theirs))
        self._shape = shape_of(layer)
        self.proj_size = 0
        for name, value in self._shape.items():
            setattr(self, name, value)
        options = layer.options() if isinstance(layer, Gated) else {"method": "sigmoid"}
        self.set_options(**(options | {"weight_dropout": 0.0}))
        self._all_weights = layer._all_weights if isinstance(layer, nn.RNNBase) else [parameter_names(layer)]
        self._decoded: dict[str, Decoded] = {}
        for name in parameter_names(layer):
            own = {key.rpartition(".")[2]: one for key, one in matrices.items() if key.rpartition(".")[0] == name}
            if own or name in matrices:
                self.add_module(name, nn.ModuleDict(own) if own else matrices[name])
                self._decoded[name] = Decoded()
            else:
                self.register_parameter(name, nn.Parameter(getattr(layer, name).detach(), requires_grad=False))
        self.train(layer.training)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the decoded weights."""
        return self._matrices(self._all_weights[0][0])[0].like.dtype

    def encodings(self, name: str) -> list[Encoding]:
        """The matrices of one parameter, such as "weight_ih_l0", in the order of torch's rows."""
        return [matrix.encoding for matrix in self._matrices(name)]

    def flatten_parameters(self) -> None:
        """Does nothing: the weights are not parameters."""

    def to_dense(self) -> Any:
        """A layer of torch's own with the same output in evaluation."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about dropout with one layer: the first one had it, too
            layer = self._twin(**self._shape, device="meta")
        layer.set_options(**self.options())
        for name in chain.from_iterable(self._all_weights):
            setattr(layer, name, nn.Parameter(self._tensor(name).detach()))
        theirs = next(theirs for theirs, ours in TWINS.items() if ours is self._twin)
        return to_torch(layer.train(self.training), theirs)

    def _weights(self, dtype: torch.dtype, generator: torch.Generator | None = None) -> list[list[Weights]]:
        if self.training and torch.is_grad_enabled():
            raise G2Error(
                f"a compressed {self.kind.name} can't be trained: call model.eval() to use it; "
                "to train further, train the model that it was made from and compress that again"
            )
        return super()._weights(dtype, generator)

    def _matrices(self, name: str) -> list[EncodedMatrix]:
        own = self.get_submodule(name)
        every = [own] if isinstance(own, EncodedMatrix) else own.children()
        return [matrix for matrix in every if isinstance(matrix, EncodedMatrix)]

    def _tensor(self, name: str) -> Tensor:
        if name not in self._decoded:
            return self.get_parameter(name)
        return self._decoded[name](self.encodings(name), self._matrices(name)[0].like)

    def extra_repr(self) -> str:
        """Sizes and options that matter in evaluation."""
        sizes = f"{self.input_size}, {self.hidden_size}{'' if self.is_cell else f', num_layers={self.num_layers}'}"
        return f"{sizes}, method={self.method}, eval_gate={self.eval_gate}"


class CompressedLSTM(StandIn, CompressedRecurrent, GatedLSTM):
    """The layer that `compress` puts in the place of a `G2LSTM` or `torch.nn.LSTM`; see `CompressedRecurrent`."""

    stands_for = nn.LSTM

    def to_lstm(self) -> nn.LSTM:
        """A `torch.nn.LSTM` with the same output in evaluation, with dense weights."""
        lstm: nn.LSTM = self.to_dense()
        return lstm


class CompressedGRU(StandIn, CompressedRecurrent):
    """The layer that `compress` puts in the place of a `G2GRU` or `torch.nn.GRU`; see `CompressedRecurrent`."""

    kind = GRU
    stands_for = nn.GRU


class CompressedLSTMCell(StandIn, CompressedRecurrent, GatedCell):
    """The layer that `compress` puts in the place of a `G2LSTMCell` or `torch.nn.LSTMCell`."""

    kind = LSTM
    stands_for = nn.LSTMCell


class CompressedGRUCell(StandIn, CompressedRecurrent, GatedCell):
    """The layer that `compress` puts in the place of a `G2GRUCell` or `torch.nn.GRUCell`."""

    kind = GRU
    stands_for = nn.GRUCell


COMPRESSED: dict[type[nn.Module], type[CompressedRecurrent]] = {
    nn.LSTM: CompressedLSTM, nn.GRU: CompressedGRU, nn.LSTMCell: CompressedLSTMCell, nn.GRUCell: CompressedGRUCell,
}  # fmt: skip


def compressed(layer: nn.Module, matrices: Mapping[str, EncodedMatrix]) -> CompressedRecurrent:
    """What `compress` puts in the place of a recurrent layer."""
    kind = next(ours for theirs, ours in COMPRESSED.items() if isinstance(layer, theirs))
    return kind(layer, matrices)


def layer_weights(layer: Any, prefix: str = "") -> Iterator[LayerWeights]:
    """The layers of an LSTM, a GRU or a cell in its present mode, each direction by itself.

    Dense matrices are copied in float32.

    Args:
        layer: torch's, ours or compressed; in evaluation mode.
        prefix: goes before the names of its weights.
    """
    is_cell = isinstance(layer, nn.RNNCellBase)
    kind = kind_of(layer)
    rule = layer.gate_rule() if isinstance(layer, Gated) else GateRule(gates=next(iter(kind.sampled)))
    letters = kind.letters
    factors = gate_factors(rule.gates, rule.tau)

    def floats(name: str) -> NDArray[np.float32]:
        values: NDArray[np.float32] = getattr(layer, name).detach().to("cpu", torch.float32, copy=True).numpy()
        return values

    def bias(name: str) -> NDArray[np.float32]:
        return floats(name) if layer.bias else np.zeros(len(letters) * layer.hidden_size, np.float32)

    def matrices(name: str) -> list[Weight]:
        gates: list[Encoding]
        if isinstance(layer, CompressedRecurrent):
            gates = layer.encodings(name)
        else:
            gates = [Dense(rows) for rows in np.split(floats(name), len(letters))]
        each = zip(letters, gates, factors, strict=True)
        return [Weight(f"{prefix}{name}.{letter}", one, factor) for letter, one, factor in each]

    def project(name: str) -> Encoding:
        is_encoded = isinstance(layer, CompressedRecurrent) and name not in layer._parameters
        return layer.encodings(name)[0] if is_encoded else Dense(floats(name))

    directions = ("", "_reverse") if not is_cell and layer.bidirectional else ("",)
    for end in [""] if is_cell else [f"_l{k}{direction}" for k in range(layer.num_layers) for direction in directions]:
        projection = f"weight_hr{end}"
        yield LayerWeights(
            matrices(f"weight_ih{end}"),
            matrices(f"weight_hh{end}"),
            bias(f"bias_ih{end}"),
            bias(f"bias_hh{end}"),
            Weight(f"{prefix}{projection}", project(projection)) if getattr(layer, "proj_size", 0) else None,
            rule.gates if rule.hard else "",
        )


def why_no_session(layer: nn.Module) -> str | None:
    """Why a session can't read a layer from packed weights; None if it can."""
    if not isinstance(layer, tuple(TWINS)):
        return f"only LSTMs, GRUs and cells have packed weights, got {type(layer).__name__}"
    if getattr(layer, "bidirectional", False):
        return "its second direction begins at the end of the sequence"
    if getattr(layer, "proj_size", 0):
        return "it has a projection"
    return why_not(layer)


def session_layers(layer: nn.Module) -> tuple[list[Layer], str]:
    """The layers of an LSTM, a GRU or a cell in evaluation mode as a session takes them, and its hard gates."""
    each = list(layer_weights(layer))
    return [one.session_layer() for one in each], each[0].session_hard
