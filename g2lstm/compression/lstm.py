"""`CompressedLSTM`: a `G2LSTM` that runs on encoded matrices, unpacked once, or packed by the compiled kernel."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from g2lstm.compression import kernel
from g2lstm.compression.matrix import Encoded, Grid, GroupInt4, LowRank, RowIntegers
from g2lstm.compression.reader import Reader
from g2lstm.compression.session import Layer, Term
from g2lstm.compression.table import check_same, checksum, empty_like, expand
from g2lstm.compression.thin import Parts, ThinWeights, expand_parts
from g2lstm.errors import G2Error
from g2lstm.nn.checks import Arranged
from g2lstm.nn.convert import shape_of, to_lstm
from g2lstm.nn.gate import GateRule, Gates, GateValues
from g2lstm.nn.layer import Direction, LayerOutput, Weights, gate_values
from g2lstm.nn.lstm import G2LSTM
from g2lstm.nn.mode import must_unpack
from g2lstm.nn.random import runs_eagerly

LETTERS = "ifgo"  # the gates, in the order of their rows
MOST_SEQUENCES = 5  # of codes so many are read packed, one after the other; more are faster side by side, unpacked


class CompressedLSTM(G2LSTM):
    """The layer that `compress` puts in the place of a `G2LSTM` or `torch.nn.LSTM`, used like it in evaluation.

    Usually the matrices are expanded on first use, kept, and run by the backend that `G2LSTM` would choose. Matrices of
    low rank stay two thin ones, run by the plain loop. One sequence on the CPU, in float32 and without gradients, is
    read packed instead, by the compiled kernel where there is one, and where all matrices are codes up to five are:
    results are then a little off, as `KernelSession` derives. That is how a call behaves by itself.
    `nn.mode.evaluating` turns it off, so that scores do not depend on how a text is cut into batches; so do
    `reads_packed = False` and, but for low rank, a `backend` other than "auto".

    Biases and projections are parameters without gradients; the matrices are no parameters. They stay on the CPU, a
    copy of the layer has copies of them, and a `state_dict` holds a checksum of them: parameters saved beside other
    matrices are refused. `weight_ih_l0` and the like have shape and type but no numbers (meta device).

    Training mode is for looking at sampled gates under `torch.no_grad()`. There is no DropConnect.

    Args:
        layer: whose place it takes. Its biases and projections are taken over.
        matrices: every gate's W_x and W_h: "weight_ih_l0.i" and so on.
    """

    _like: Tensor

    def __init__(self, layer: nn.LSTM | G2LSTM, matrices: Mapping[str, Encoded]) -> None:
        options = layer.options() if isinstance(layer, G2LSTM) else {"method": "sigmoid"}
        shape = shape_of(layer) | {"dropout": 0.0}  # of which a lone layer would complain once more
        super().__init__(**shape, **(options | {"weight_dropout": 0.0, "backend": "auto"}), device="meta")
        self.dropout = layer.dropout
        self.register_buffer("_like", empty_like(next(layer.parameters())), persistent=False)
        self._shapes: dict[str, torch.Size] = {}
        for name in self._flat_weights_names:
            parameter = getattr(layer, name)
            if is_compressible(name):
                self._shapes[name] = parameter.shape
                del self._parameters[name]
            else:
                setattr(self, name, nn.Parameter(parameter.detach(), requires_grad=False))
        self.matrices = {name: matrices[name] for name in gate_rows(layer)}
        self.is_thin = any(isinstance(matrix, LowRank) for matrix in self.matrices.values())
        self.is_coded = all(isinstance(one, Grid | RowIntegers | GroupInt4) for one in self.matrices.values())
        self.reads_packed = True
        self._expanded: dict[str, Parts] = {}
        self._reader: Reader | None = None
        self.backend = layer.backend if isinstance(layer, G2LSTM) and not self.is_thin else "auto"
        self.train(layer.training)

    def __setattr__(self, name: str, value: Any) -> None:
        """As in `G2LSTM`, but for matrices of low rank "auto" is the plain loop, and there is no other backend."""
        if name == "backend" and self.__dict__.get("is_thin"):
            if value in ("stock", "native"):
                raise G2Error(
                    f"backend {value!r} needs whole matrices, and some of this layer's are of low rank; "
                    "use 'auto' or 'reference', or its to_lstm(), which multiplies them out"
                )
            value = "reference" if value == "auto" else value
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        """Matrices that other layers have as parameters: shape and type only."""
        shape = self.__dict__.get("_shapes", {}).get(name)
        return super().__getattr__(name) if shape is None else torch.empty(shape, dtype=self._like.dtype, device="meta")

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles expand and pack for themselves."""
        return super().__getstate__() | {"_expanded": {}, "_reader": None}

    def get_extra_state(self) -> Tensor:
        """A checksum of the matrices."""
        return checksum(self.matrices.values())

    def set_extra_state(self, state: Tensor) -> None:
        """Compares the checksum."""
        check_same(state, self.matrices.values())

    def flatten_parameters(self) -> None:
        """Nothing: the matrices are no parameters."""

    def to_lstm(self) -> nn.LSTM:
        """A `torch.nn.LSTM` with the same output in evaluation: dense, those of low rank multiplied out."""
        layer = G2LSTM(**(shape_of(self) | {"dropout": 0.0}), **self.options(), device="meta")
        layer.dropout = self.dropout
        for name in self._flat_weights_names:
            if name in self._shapes:
                values = torch.cat([expand(self.matrices[f"{name}.{letter}"], self._like) for letter in LETTERS])
            else:
                values = getattr(self, name).detach()
            setattr(layer, name, nn.Parameter(values))
        return to_lstm(layer.train(self.training))

    def session_layers(self, rule: GateRule) -> list[Layer]:
        """The layers and directions, in the order of `torch.nn.LSTM`, as a session takes them; there is no projection.

        Args:
            rule: whose temperature they get; hard gates are the session's own.
        """
        layers = []
        factors = rule.row_scale(1, torch.empty(0, dtype=torch.float64, device="cpu")).tolist()
        for names in self._all_weights:
            terms = []
            for gate, letter in enumerate(LETTERS):
                terms.append(Term(self.matrices[f"{names[0]}.{letter}"], "x", gate, factors[gate]))
                terms.append(Term(self.matrices[f"{names[1]}.{letter}"], "h", gate, factors[gate]))
            bias = np.zeros(4 * self.hidden_size, np.float32)
            for name in names[2:]:
                bias += getattr(self, name).float().numpy(force=True)
            bias *= np.repeat(np.array(factors, np.float32), self.hidden_size)
            layers.append(Layer(self._shapes[names[0]][1], tuple(terms), bias))
        return layers

    def _run(
        self,
        arranged: Arranged,
        dtype: torch.dtype,
        return_gates: bool,
        noise: Sequence[Tensor] | None,
        generator: torch.Generator | None,
    ) -> tuple[LayerOutput, Gates | None]:
        if self.training and torch.is_grad_enabled():
            raise G2Error(
                "a compressed LSTM cannot be trained: call model.eval() to use it; "
                "to train on, train the model that it was made from, and compress that again"
            )
        if not self._may_read_packed(arranged, dtype):
            return super()._run(arranged, dtype, return_gates, noise, generator)
        rule, x, batch_sizes = self.gate_rule(), arranged.x, arranged.batch_sizes
        wants_gates = return_gates or self._gate_listener is not None
        reader, weights = self._current_reader(rule), self._weights(dtype) if wants_gates else []
        values: list[GateValues] = []
        ends: list[LayerOutput] = []
        for index in range(self.num_layers):
            for d in range(self.directions):
                h, c = arranged.h[len(ends)], arranged.c[len(ends)]
                ends.append(reader.read(len(ends), x, h, c, batch_sizes, d == 1))
                if wants_gates:
                    direction = Direction(x, h, c, weights[index][d], rule, None, batch_sizes, d == 1)
                    values.append(gate_values(direction, ends[-1].out))
            x = torch.cat([end.out for end in ends[-self.directions :]], dim=-1)
        result = LayerOutput(x, torch.stack([end.h for end in ends]), torch.stack([end.c for end in ends]))
        if not wants_gates:
            return result, None
        gates = arranged.restore_gates(values, self.training)
        if self._gate_listener is not None:
            self._gate_listener(gates)
        return result, gates

    def _may_read_packed(self, arranged: Arranged, dtype: torch.dtype) -> bool:
        tensors = (arranged.x, arranged.h, arranged.c)
        return (
            self.reads_packed
            and (self.backend == "auto" or self.is_thin)
            and not self.training
            and not self.proj_size
            and arranged.h.size(1) <= (MOST_SEQUENCES if self.is_coded else 1)
            and dtype == torch.float32
            and all(t.device.type == "cpu" and t.dtype == dtype for t in tensors)
            and not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))
            and runs_eagerly()
            and not must_unpack()
            and kernel.available()
        )

    def _current_reader(self, rule: GateRule) -> Reader:
        """The one of last time if gates and biases still are what they were."""
        biases = [getattr(self, name) for names in self._all_weights for name in names[2:]]
        key = (rule, *(bias.numpy(force=True).tobytes() for bias in biases))  # versions do not count all changes
        reader = self._reader
        if reader is None or reader.key != key:
            reader = self._reader = Reader(key, self.session_layers(rule), rule.gates if rule.hard else "")
        return reader

    def _direction_weights(self, names: list[str], dtype: torch.dtype) -> Weights:
        x_parts, h_parts = (self._parts(name, dtype) for name in names[:2])
        rest = [getattr(self, name).to(dtype) for name in names[2:]]
        b_x, b_h = rest[:2] if self.bias else (None, None)
        w_r = rest[-1] if self.proj_size else None
        if not self.is_thin:
            return Weights(x_parts[0][0], h_parts[0][0], b_x, b_h, w_r)
        nowhere = torch.empty(0, device="meta")
        weights = ThinWeights(nowhere, nowhere, b_x, b_h, w_r)
        weights.x_parts, weights.h_parts = x_parts, h_parts
        return weights

    def _parts(self, name: str, dtype: torch.dtype) -> Parts:
        kept = self._expanded.get(name)
        if kept is None or kept[0][0].device != self._like.device or kept[0][0].dtype != self._like.dtype:
            kept = expand_parts([self.matrices[f"{name}.{letter}"] for letter in LETTERS], self._like)
            self._expanded[name] = kept
        return kept if dtype == self._like.dtype else [tuple(t.to(dtype) for t in part) for part in kept]


def is_compressible(name: str) -> bool:
    """Whether a parameter of an LSTM is one of its matrices, not a bias or a projection."""
    return name.startswith(("weight_ih", "weight_hh"))


def gate_rows(layer: nn.RNNBase) -> dict[str, tuple[str, slice]]:
    """Each gate's W_x and W_h by its name, such as "weight_ih_l0.i": the parameter, and which rows of it."""
    H = layer.hidden_size
    return {
        f"{name}.{letter}": (name, slice(gate * H, (gate + 1) * H))
        for name in layer._flat_weights_names
        if is_compressible(name)
        for gate, letter in enumerate(LETTERS)
    }
