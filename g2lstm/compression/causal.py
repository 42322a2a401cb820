"""`ModelSession`: any causal model, called one step at a time, whose recurrent layers keep their states."""

import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from g2lstm.compression.kernel import open_session
from g2lstm.compression.model import copied, refuse_scripted
from g2lstm.compression.modules import CompressedLinear, EncodedMatrix
from g2lstm.compression.recurrent import session_layers, why_no_session
from g2lstm.compression.session import Layer, Session, Vector
from g2lstm.errors import G2Error
from g2lstm.nn.convert import replace_all

PACKED = (torch.device("cpu"), torch.float32)  # what packed layers compute in


class _InItsPlace(nn.Module):
    """A module that takes the place of another inside a session, and looks like it to the rest of the model."""

    def __init__(self, layer: nn.Module) -> None:
        nn.Module.__init__(self)
        self.__dict__["layer"] = layer  # not a child, so that nothing counts its weights twice

    @property  # type: ignore[misc]  # nobody sets it
    def __class__(self) -> type:
        """That of the layer, for models that ask `isinstance`."""
        kind: type = self.__dict__["layer"].__class__
        return kind

    def __getattr__(self, name: str) -> Any:
        """As of any module; what it does not have itself, its layer has."""
        try:
            return nn.Module.__getattr__(self, name)
        except AttributeError:
            return getattr(self.__dict__["layer"], name)


class Kept(_InItsPlace):
    """A recurrent layer inside a session, which goes on from its last state; in the compiled kernel where it can.

    Attributes:
        state: after the last step, as the layer returns it, but always a tuple; None at the start.
        was_called: in this step.
    """

    def __init__(self, layer: nn.Module, name: str, batch: int, threads: int | None) -> None:
        super().__init__(layer)
        self.name, self.was_called, self._batch = name or type(layer).__name__, False, batch
        self._is_cell, self._is_new = isinstance(layer, nn.RNNCellBase), True
        self._session: Session | None = None
        self._state: tuple[Tensor, ...] | None = None
        if batch == 1 and why_no_session(layer) is None and like_of(layer) == PACKED:
            self._session = open_session(*session_layers(layer), threads)

    @property
    def state(self) -> tuple[Tensor, ...] | None:
        """(layers, B, H) each; (B, H) in a cell."""
        if self._session is None or self._is_new:
            return None if self._is_new else self._state
        stacked = [torch.from_numpy(one).unsqueeze(1) for one in self._session.stacked_state()]
        return tuple(one[0] if self._is_cell else one for one in stacked)

    @state.setter
    def state(self, states: tuple[Tensor, ...] | None) -> None:
        self._state, self._is_new = states, states is None
        if self._session is not None:
            if states is None:
                self._session.reset()
            else:
                layers = [one.reshape(-1, one.size(-1)) for one in states]
                self._session.set_state(list(zip(*layers, strict=True)))

    def check(self, states: tuple[Tensor, ...]) -> None:
        """Raises unless states have the shapes of this layer's."""
        layer, letters = self.layer, "hc" if isinstance(self.layer, nn.LSTM | nn.LSTMCell) else "h"
        widths = {"h": getattr(layer, "proj_size", 0) or layer.hidden_size, "c": layer.hidden_size}
        leading = (self._batch,) if self._is_cell else (layer.num_layers, self._batch)
        wanted, got = [(*leading, widths[one]) for one in letters], [tuple(one.shape) for one in states]
        if got != wanted:
            raise G2Error(f"the states of {self.name} have the shapes {wanted}, with the batch, got {got}")

    def forward(self, input: Any, hx: Any = None) -> Any:
        """As the layer, which is called once per step; `hx` is used only if there is no state yet."""
        if self.was_called:
            raise G2Error(f"{self.name} is called more than once in a step, so it has no single state to keep")
        if isinstance(input, PackedSequence):
            raise G2Error(f"{self.name} gets a PackedSequence, which has no single step; stream a forward without it")
        steps = input.numel() // (input.size(-1) * self._batch)
        if steps != 1:
            raise G2Error(f"{self.name} gets {steps} steps at once, input {tuple(input.shape)}; streams take one")
        dimensions = 2 if self._is_cell else 3
        if self._is_new and hx is not None:
            given = tuple(hx) if isinstance(hx, tuple | list) else (hx,)
            given = tuple(one if one.dim() == dimensions else one.unsqueeze(-2) for one in given)
            self.check(given)
            self.state = given
        self.was_called = True
        unbatched = input.dim() < dimensions
        if self._session is None:
            out = self.layer.forward(input, self._as_the_layers(self._state, unbatched))  # hooks are called on this one
            after = out if self._is_cell else out[1]
            each = after if isinstance(after, tuple) else (after,)
            self._state, self._is_new = tuple(one.unsqueeze(-2) if unbatched else one for one in each), False
            return out
        out = torch.from_numpy(self._session.step(input.reshape(-1).numpy())).view(*input.shape[:-1], -1)
        self._is_new = False
        state = self._as_the_layers(self.state, unbatched)
        return state if self._is_cell else (out, state)

    def _as_the_layers(self, states: tuple[Tensor, ...] | None, unbatched: bool) -> Any:
        """States in the form that the layer takes and returns."""
        if states is None:
            return None
        states = tuple(one.squeeze(-2) if unbatched else one for one in states)
        return states if len(states) == 2 else states[0]


class PackedLinear(_InItsPlace):
    """A compressed linear layer inside a session, which multiplies one vector straight from its codes."""

    def __init__(self, layer: CompressedLinear, threads: int | None) -> None:
        super().__init__(layer)
        bias = np.zeros(layer.out_features, np.float32) if layer.bias is None else layer.bias.numpy(force=True)
        self._session = open_session([], "", threads, Layer.softmax(layer.encoded.encoding, bias))

    def forward(self, input: Tensor) -> Tensor:
        """As the layer, which it calls for more than one vector."""
        if input.numel() != self.layer.in_features or input.dtype != torch.float32:
            out: Tensor = self.layer(input)
            return out
        return torch.from_numpy(self._session.step(input.reshape(-1).numpy())).view(*input.shape[:-1], -1)


def like_of(layer: nn.Module) -> tuple[torch.device, torch.dtype]:
    """The device and the type that a layer computes in."""
    first = next((one.like for one in layer.modules() if isinstance(one, EncodedMatrix)), None)
    tensor = next(layer.parameters()) if first is None else first
    return tensor.device, tensor.dtype


Output: TypeAlias = Any  # an array, or a dict of such outputs
States: TypeAlias = dict[str, tuple[NDArray[Any], ...]]


class ModelSession:
    """Calls a copy of a model on one step after another; its recurrent layers continue from their last states.

    `step` takes one step of the model's input, without the dimensions of time and batch: features (I,), or a token id.
    It inserts both, each of size 1, calls the model's own forward, and removes them from the output; of a tuple it
    returns the first element only. With several streams, all inputs, outputs and states have one more dimension, their
    number B: features (B, I), ids (B,). Further arguments of forward follow as they are: `step(x, None)` where it takes
    states.

    States start as the model's forward sets them, usually at zero; a state that it passes to a layer is used at the
    first step only. Everything except the recurrent layers must compute each step by itself: a convolution or attention
    over time would see a single step. A warning names modules that may do that.

    Args:
        model: any module with recurrent layers.
        batch: the number of streams, B.
        threads: at most this many in packed layers.
        time_axis: the dimension of forward's input that is time: 0, or 1 after the batch; None for a forward that takes
            a step without it. "auto" follows the model's recurrent layers; if they are all cells, it means None.

    Attributes:
        batch: B.
        time_axis: 0, 1 or None.
    """

    def __init__(
        self, model: nn.Module, batch: int = 1, threads: int | None = None, time_axis: int | str | None = "auto"
    ) -> None:
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            raise G2Error(f"batch, the number of streams, must be an integer of at least 1, got {batch!r}")
        if time_axis not in ("auto", 0, 1, None):
            raise G2Error(f"time_axis must be 'auto', 0, 1 or None, got {time_axis!r}")
        refuse_scripted(model)
        own = copied(model, {}).eval()
        layers = {name: one for name, one in own.named_modules() if isinstance(one, nn.RNNBase | nn.RNNCellBase)}
        if not layers:
            raise G2Error(
                f"found no recurrent layer (LSTM, GRU, RNN or a cell of them) inside {type(model).__name__}, so it has "
                "no state to keep; call the model itself"
            )
        for name, layer in layers.items():
            if getattr(layer, "bidirectional", False):
                raise G2Error(
                    f"{name or 'a bidirectional layer'} can't stream: its second direction begins at the end of the "
                    "sequence; call the model itself on whole sequences"
                )
        self.batch, self._lock = batch, threading.Lock()
        first = next((one for one in layers.values() if isinstance(one, nn.RNNBase)), None)
        self.time_axis: int | None = None if first is None else int(first.batch_first)
        if time_axis != "auto":
            self.time_axis = None if time_axis is None else int(time_axis)
        device, dtype = like_of(next(iter(layers.values())))
        self._like = torch.empty(0, device=device, dtype=dtype)
        self._layers = {name: Kept(one, name, batch, threads) for name, one in layers.items()}
        made: dict[nn.Module, nn.Module] = {layers[name]: kept for name, kept in self._layers.items()}
        if batch == 1 and (device, dtype) == PACKED:
            linears = [one for one in own.modules() if type(one) is CompressedLinear]
            made |= {one: PackedLinear(one, threads) for one in linears}
        self._model = replace_all(own, made)
        self._attributes = [(module, dict(vars(module))) for module in self._model.modules()]
        packed = {id(b) for one in self._model.modules() if isinstance(one, EncodedMatrix) for b in one.buffers()}
        self._buffers = [(one, one.clone()) for one in self._model.buffers() if id(one) not in packed]
        over_time = [name for name, one in self._model.named_modules() if _may_mix_steps(one)]
        if self.time_axis is not None and over_time:
            warnings.warn(
                f"if {', '.join(over_time)} reads across time, this stream differs from whole sequences, because it "
                "sees one step alone; compare the two",
                stacklevel=3,
            )

    def step(self, x: Vector, *others: Any, **named: Any) -> Output:
        """Reads one step of each stream; returns the model's output of that step as an array, or a dict of arrays.

        Args:
            x: the step.
            *others: further arguments of the model's forward, which it gets as they are.
            **named: the same by name.
        """
        value = self.shaped(x)
        with self._lock, torch.no_grad():
            for layer in self._layers.values():
                layer.was_called = False
            try:
                output = self._model(value, *others, **named)
            except Exception as error:
                if not isinstance(error, G2Error):
                    error.add_note(
                        f"The session called forward with shape {tuple(value.shape)} and time_axis={self.time_axis}; "
                        "stream(model, time_axis=...) changes it, and step(x, ...) hands further arguments on."
                    )
                raise
            return self._shown(output)

    def shaped(self, x: Vector) -> Tensor:
        """One step as the model's forward gets it: with the dimensions of batch and time."""
        value = self._tensor(x)
        value = value if self.batch > 1 else value.unsqueeze(0)
        if not value.dim() or len(value) != self.batch:
            raise G2Error(f"a step of {self.batch} streams has the shape ({self.batch}, ...), got {tuple(value.shape)}")
        return value if self.time_axis is None else value.unsqueeze(self.time_axis)

    def sequence(self, x: Any) -> Output:
        """Reads many steps, (T, ...); returns what that many calls of `step` would, stacked."""
        steps = [self.step(one) for one in x]
        if not steps:
            raise G2Error("a sequence needs at least one step, got none")
        return _stacked(steps)

    def get_state(self) -> States:
        """Copies of the last states of each layer by its name, as its own forward returns them; empty at the start."""
        with self._lock:
            found = {name: layer.state for name, layer in self._layers.items() if layer.state is not None}
        return {name: tuple(self._unbatched(one, -2) for one in states) for name, states in found.items()}

    def set_state(self, states: Mapping[str, Sequence[Vector]]) -> None:
        """Sets the states from which the next step continues; layers that are not named start anew."""
        given = {}
        for name, each in states.items():
            if name not in self._layers:
                raise G2Error(f"there is no recurrent layer {name!r}; the layers: {', '.join(map(repr, self._layers))}")
            tensors = tuple(self._tensor(one) for one in each)
            given[name] = tuple(one.unsqueeze(-2) if self.batch == 1 else one for one in tensors)
            self._layers[name].check(given[name])
        with self._lock:
            for module, attributes in self._attributes:  # what a model keeps by itself
                vars(module).clear()
                vars(module).update(attributes)
            for buffer, value in self._buffers:
                buffer.copy_(value)
            for name, layer in self._layers.items():
                layer.state = given.get(name)

    def reset(self) -> None:
        """Starts anew."""
        self.set_state({})

    def _tensor(self, x: Any) -> Tensor:
        try:
            value = x.detach() if isinstance(x, Tensor) else torch.from_numpy(np.array(x))
        except (TypeError, ValueError):
            raise G2Error(f"a step must be an array or a tensor of numbers, got {type(x).__name__}") from None
        return value.to(self._like) if value.is_floating_point() else value.to(self._like.device, torch.int64)

    def _shown(self, output: Any) -> Output:
        if isinstance(output, Mapping):
            return {name: self._shown(value) for name, value in output.items() if value is not None}
        if isinstance(output, tuple | list):
            return self._shown(output[0])
        if not isinstance(output, Tensor):
            raise G2Error(f"the model's forward must return tensors, got {type(output).__name__}")
        leading = (1, self.batch) if self.time_axis == 0 else (self.batch, 1)
        # Of two dimensions the second may be features; those of (B, 1) could be either, and stay.
        is_sequence = output.dim() > 2 or (self.time_axis == 0 and self.batch > 1)
        if self.time_axis is not None and is_sequence and tuple(output.shape[:2]) == leading:
            output = output.squeeze(self.time_axis)
        return self._unbatched(output, 0)

    def _unbatched(self, value: Tensor, axis: int) -> NDArray[Any]:
        value = value.squeeze(axis) if self.batch == 1 and value.dim() else value
        value = value.float() if value.dtype == torch.bfloat16 else value
        array: NDArray[Any] = value.detach().cpu().numpy().copy()
        return array


def _may_mix_steps(module: nn.Module) -> bool:
    return isinstance(module, nn.MultiheadAttention) or (isinstance(module, nn.Conv1d) and module.kernel_size != (1,))


def _stacked(outputs: list[Any]) -> Output:
    if isinstance(outputs[0], dict):
        return {name: _stacked([one[name] for one in outputs]) for name in outputs[0]}
    return np.stack(outputs)
