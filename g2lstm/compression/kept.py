"""The layers of a model inside a session: recurrent ones that keep their states, and linear ones on packed weights."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from g2lstm.compression.kernel import open_session
from g2lstm.compression.layers import session_layers, why_no_session
from g2lstm.compression.modules import CompressedLinear, EncodedMatrix
from g2lstm.compression.session import Layer, Session
from g2lstm.errors import G2Error

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

    Args:
        layer: the layer.
        name: in the model, for messages.
        batch: the number of streams.
        threads: see `ModelSession`.

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
    """A compressed linear layer inside a session, which multiplies one vector straight from its codes.

    Args:
        layer: the layer.
        threads: see `ModelSession`.
    """

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
