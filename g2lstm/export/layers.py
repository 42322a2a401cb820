"""Stand-ins for recurrent layers and encoded weights while a model is traced, in terms that ONNX can express.

A layer becomes ONNX's `LSTM` or `GRU` where that can express it, else a `Scan` over the cell, so that no length
gets baked in. In a graph, a `PackedSequence` is a padded tensor with lengths.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from g2lstm.compression.modules import EncodedMatrix
from g2lstm.compression.recurrent import LayerWeights, Weight, layer_weights
from g2lstm.errors import G2Error
from g2lstm.export.weights import Matrix, Notes
from g2lstm.nn.gate import LSTM
from g2lstm.nn.gated import Gated
from g2lstm.nn.survey import kind_of, why_not

Layer = nn.LSTM | nn.GRU
State = tuple[Tensor, ...]  # h (1, B, R), and for an LSTM c (1, B, H)
_ORDERS = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2)}  # ONNX orders the gates i, o, f, c and z, r, h
_STAND_IN = "onnx"  # its name in the module whose place it takes


def state_widths(layer: Any) -> dict[str, int]:
    """The width of each state: h, and for an LSTM c."""
    h, c = getattr(layer, "proj_size", 0) or layer.hidden_size, layer.hidden_size
    return {"h": h, "c": c} if kind_of(layer) is LSTM else {"h": h}


@contextmanager
def standing_in(model: nn.Module, notes: Notes) -> Iterator["_Rewriting"]:
    """Lets stand-ins compute inside a model, and takes them out again at the end; yields what to trace it in."""
    kinds = Layer | Gated | EncodedMatrix
    found = {name: module for name, module in model.named_modules() if isinstance(module, kinds)}
    layers = tuple(_prefix(name) for name, module in found.items() if not isinstance(module, EncodedMatrix))
    encoded: dict[int, Matrix] = {}  # by the decoded tensor that a model computes with
    try:
        for name, module in found.items():
            if not isinstance(module, EncodedMatrix):
                module.add_module(_STAND_IN, layer := _StandIn(module, name, notes))
                module.forward = layer.forward  # type: ignore[method-assign]
            elif not name.startswith(layers):
                weight = Weight(name.removesuffix(".encoded") + ".weight", module.encoding)
                module.add_module(_STAND_IN, matrix := Matrix([weight], notes))
                encoded[id(module.weight)] = matrix
        yield _Rewriting(encoded)
    finally:
        for module in found.values():
            vars(module).pop("forward", None)
            module._modules.pop(_STAND_IN, None)


def _prefix(name: str) -> str:
    return f"{name}." if name else ""


class _Rewriting(TorchFunctionMode):
    """Computes with encoded weights instead of decoded ones, and leaves packed sequences padded.

    Packing a tensor (T, B, I) leaves it as it is, with the number of sequences at each step beside it.
    """

    def __init__(self, encoded: Mapping[int, Matrix]) -> None:
        super().__init__()
        self._encoded = encoded

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Called in the place of every torch function."""
        name = getattr(func, "__name__", "")
        if name == "_pack_padded_sequence":
            padded, lengths, batch_first = args
            x = padded.transpose(0, 1) if batch_first else padded
            steps = torch.arange(x.size(0)).unsqueeze(1)
            return x, (steps < lengths).sum(1)
        if name == "_pad_packed_sequence":
            x, batch_sizes, batch_first, padding, _ = args
            lengths = _lengths(x, batch_sizes)
            x = torch.where(_is_token(x, lengths), x, padding)
            return x.transpose(0, 1) if batch_first else x, lengths
        if func is nn.functional.linear and id(args[1]) in self._encoded:
            y = self._encoded[id(args[1])].product()(args[0])
            bias = args[2] if len(args) > 2 else (kwargs or {}).get("bias")
            return y if bias is None else y + bias
        if func in (nn.functional.embedding, torch.embedding):
            table, tokens = (args[1], args[0]) if func is nn.functional.embedding else args[:2]
            if id(table) in self._encoded:
                return self._encoded[id(table)].rows(tokens)
        return func(*args, **(kwargs or {}))


def _lengths(x: Tensor, batch_sizes: Tensor) -> Tensor:
    """The lengths (B,) of sequences, the longest first, of which batch_sizes (T,) are there at each step."""
    return (batch_sizes.unsqueeze(1) > torch.arange(x.size(1))).sum(0)


def _is_token(x: Tensor, lengths: Tensor) -> Tensor:
    """(T, B, 1), true within the sequences of x (T, B, ...)."""
    return (torch.arange(x.size(0)).unsqueeze(1) < lengths).unsqueeze(-1)


class _StandIn(nn.Module):
    """Computes what a recurrent layer computes in its present mode."""

    def __init__(self, layer: Any, name: str, notes: Notes) -> None:
        super().__init__()
        self.is_cell = getattr(layer, "is_cell", False)
        self.sizes, self.input_size = notes.sizes, layer.input_size
        if (why := why_not(layer)) is not None:
            raise G2Error(f"can't export {name or 'this layer'}: {why}")
        self.kind, self.batch_first, self.widths = (
            kind_of(layer).name,
            layer.batch_first,
            list(state_widths(layer).values()),
        )
        self.directions = 2 if layer.bidirectional else 1
        weights = list(layer_weights(layer, _prefix(name)))
        groups = [weights[k : k + self.directions] for k in range(0, len(weights), self.directions)]
        self.layers = nn.ModuleList(
            _Operator(group, self.kind, notes)
            if all(_fits_operator(one, notes) for one in group)
            else nn.ModuleList(_Cell(one, notes) for one in group)
            for group in groups
        )

    def forward(self, input: Tensor | PackedSequence, hx: Any = None, **_: Any) -> Any:
        """As the layer itself."""
        if self.is_cell:
            assert isinstance(input, Tensor)
            states = None if hx is None else pytree.tree_map(lambda one: one.unsqueeze(0), hx)
            return pytree.tree_map(lambda one: one.squeeze(0), self._run(input.unsqueeze(0), states)[1])
        return self._run(input, hx)

    def _run(self, input: Tensor | PackedSequence, hx: Any) -> Any:
        x, batch_sizes, order, back = input if isinstance(input, PackedSequence) else (input, None, None, None)
        is_batched = x.dim() == 3
        if batch_sizes is None:
            x = x.unsqueeze(1) if not is_batched else x.transpose(0, 1) if self.batch_first else x
        lengths = None if batch_sizes is None else _lengths(x, batch_sizes)
        count, batch = len(self.layers) * self.directions, x.size(1)
        self.sizes.update({str(x.size(0)): "time", str(batch): "batch"})
        torch._check(x.size(2) == self.input_size)  # torch can't see what the operators need
        if hx is None:
            states = tuple(x.new_zeros(count, batch, width) for width in self.widths)
        else:
            states = tuple(hx) if self.kind == "LSTM" else (hx,)
            states = states if is_batched else tuple(one.unsqueeze(1) for one in states)
            states = states if order is None else tuple(one.index_select(1, order) for one in states)
            for state, width in zip(states, self.widths, strict=True):
                for size, expected in zip(state.shape, (count, batch, width), strict=True):
                    torch._check(size == expected)
        ends: list[State] = []
        for number, layer in enumerate(self.layers):
            own = slice(number * self.directions, (number + 1) * self.directions)
            before = states if len(self.layers) == 1 else tuple(state[own] for state in states)
            if isinstance(layer, _Operator):
                x, last = layer(x, before, lengths)
            else:
                each = enumerate(layer.children())
                parts = [cell(x, tuple(state[d] for state in before), lengths, d == 1) for d, cell in each]
                x = torch.cat([y for y, _ in parts], -1)
                last = tuple(torch.stack(each) for each in zip(*(end for _, end in parts), strict=True))
            ends.append(last)
        states = ends[0] if len(ends) == 1 else tuple(torch.cat(each) for each in zip(*ends, strict=True))
        states = states if back is None else tuple(one.index_select(1, back) for one in states)
        states = states if is_batched or batch_sizes is not None else tuple(one.squeeze(1) for one in states)
        result: Any = states if self.kind == "LSTM" else states[0]
        if batch_sizes is not None:
            return PackedSequence(x, batch_sizes, order, back), result
        return x.squeeze(1) if not is_batched else x.transpose(0, 1) if self.batch_first else x, result


def _fits_operator(layer: LayerWeights, notes: Notes) -> bool:
    """Whether ONNX's own operator can express it: float32 matrices, sigmoids, no projection."""
    is_plain = not layer.hard and layer.w_r is None
    return is_plain and all(Matrix(each, notes).is_float for each in (layer.w_x, layer.w_h))


class _Operator(nn.Module):
    """All directions of one layer, by ONNX's operator for it."""

    biases: Tensor

    def __init__(self, directions: list[LayerWeights], kind: str, notes: Notes) -> None:
        super().__init__()
        self.kind, order = kind, _ORDERS[kind]
        self.w_x, self.w_h = (
            nn.ModuleList(Matrix([getattr(one, which)[gate] for gate in order], notes) for one in directions)
            for which in ("w_x", "w_h")
        )
        biases = [
            np.split(bias * one.row_factors, len(order))[gate]
            for one in directions
            for bias in (one.b_x, one.b_h)
            for gate in order
        ]
        self.register_buffer("biases", torch.from_numpy(np.concatenate(biases).reshape(len(directions), -1)))

    def forward(self, x: Tensor, states: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        """From x (T, B, I) and states (D, B, H) to the output (T, B, D · H) and the last states."""
        w_x, w_h = (torch.stack([one.rows() for one in each]) for each in (self.w_x, self.w_h))  # type: ignore[operator]
        lengths = None if lengths is None else lengths.int()
        attributes: dict[str, Any] = {
            "hidden_size": w_h.size(2),
            "direction": ("forward", "bidirectional")[len(w_h) - 1],
        }
        y, *last = torch.onnx.ops.symbolic_multi_out(
            self.kind,
            (x, w_x, w_h, self.biases, lengths, *states),
            attributes | ({"linear_before_reset": 1} if self.kind == "GRU" else {}),
            dtypes=[x.dtype] * (1 + len(states)),
            shapes=[(x.size(0), len(w_x), x.size(1), w_h.size(2)), *(state.shape for state in states)],
            version=14,
        )
        return y.transpose(1, 2).flatten(2), tuple(last)


class _Cell(nn.Module):
    """One direction of one layer, as a loop over the cell. The product with x comes before the loop."""

    b_x: Tensor
    b_h: Tensor

    def __init__(self, layer: LayerWeights, notes: Notes) -> None:
        super().__init__()
        self.w_x, self.w_h = Matrix(layer.w_x, notes), Matrix(layer.w_h, notes)
        self.w_r = None if layer.w_r is None else Matrix([layer.w_r], notes)
        self.hard = layer.hard
        for name, bias in {"b_x": layer.b_x, "b_h": layer.b_h}.items():
            self.register_buffer(name, torch.from_numpy(bias * layer.row_factors))

    def forward(self, x: Tensor, state: State, lengths: Tensor | None, backwards: bool) -> tuple[Tensor, State]:
        """From x (T, B, I), h (B, R) and c (B, H) to the output (T, B, R) and the last states."""
        from_x = self.w_x.product()(x) + self.b_x
        multiply, project = self.w_h.product(), None if self.w_r is None else self.w_r.product()

        def step(state: State, alpha: Tensor) -> tuple[State, Tensor]:
            after = _step(state, alpha, multiply(state[0]) + self.b_h, self.hard)
            h = after[0] if project is None else project(after[0])
            return (h, *after[1:]), h.clone()

        def masked(state: State, inputs: tuple[Tensor, Tensor]) -> tuple[State, Tensor]:
            """Sequences that are over keep their states, and have no output."""
            after, y = step(state, inputs[0])
            return tuple(torch.where(inputs[1], *both) for both in zip(after, state, strict=True)), y * inputs[1]

        if isinstance(x.size(0), int) and x.size(0) == 1 and lengths is None:
            state, y = step(state, from_x[0])
            return y.unsqueeze(0), state
        state = tuple(one.contiguous() for one in state)  # scan refuses a slice
        if lengths is None:
            last, y = scan(step, state, from_x, reverse=backwards)
        else:
            from_x = _turned(from_x, lengths) if backwards else from_x
            last, y = scan(masked, state, (from_x, _is_token(x, lengths)))
            y = _turned(y, lengths) if backwards else y
        return y, tuple(last)


def _step(state: State, from_x: Tensor, from_h: Tensor, hard: str) -> State:
    """The state after one step, h (B, H) before any projection, from what x and h add to the pre-activations."""

    def gate(letter: str, alpha: Tensor) -> Tensor:
        return (alpha >= 0).float() if letter in hard else alpha.sigmoid()

    if len(state) == 1:
        (x_r, x_z, x_n), (h_r, h_z, h_n) = from_x.chunk(3, -1), from_h.chunk(3, -1)
        n = (x_n + gate("r", x_r + h_r) * h_n).tanh()
        return (n + gate("z", x_z + h_z) * (state[0] - n),)
    i, f, g, o = (from_x + from_h).chunk(4, -1)
    c = gate("f", f) * state[1] + gate("i", i) * g.tanh()
    return gate("o", o) * c.tanh(), c


def _turned(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Reverses each sequence of x (T, B, ...); the padding stays in its place."""
    axes: dict[str, Any] = {"time_axis": 0, "batch_axis": 1}
    return torch.onnx.ops.symbolic("ReverseSequence", (x, lengths), axes, dtype=x.dtype, shape=x.shape, version=10)
