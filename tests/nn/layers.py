"""Layers, inputs and gradients for the tests of the layer."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from g2lstm import G2LSTM

T, B, I, H = 6, 5, 4, 7
LENGTHS = [4, 6, 1, 6, 3]


@dataclass(frozen=True)
class Case:
    """One point of the layer's surface: constructor arguments, and how it is called."""

    name: str
    layer: dict[str, Any] = field(default_factory=dict)
    packed: bool = False
    unbatched: bool = False
    states: bool = True

    def __str__(self) -> str:
        return self.name


SURFACE = [
    Case("plain"),
    Case("no_states", states=False),
    Case("two_layers", {"num_layers": 2}),
    Case("no_bias", {"bias": False}),
    Case("batch_first", {"batch_first": True}),
    Case("bidirectional", {"bidirectional": True}),
    Case("bidirectional_two_layers", {"bidirectional": True, "num_layers": 2}),
    Case("projection", {"proj_size": 3}),
    Case("projection_no_bias", {"proj_size": 3, "bias": False}),
    Case("unbatched", unbatched=True),
    Case("unbatched_batch_first", {"batch_first": True}, unbatched=True),
    Case("packed", packed=True),
    Case("packed_no_states", packed=True, states=False),
    Case("packed_bidirectional_projection", {"bidirectional": True, "num_layers": 2, "proj_size": 3}, packed=True),
    Case("projection_bidirectional", {"proj_size": 3, "bidirectional": True, "num_layers": 2}),
]


GRU_SURFACE = [case for case in SURFACE if "proj_size" not in case.layer]


def make_input(
    case: Case, dtype: torch.dtype = torch.float64, kind: type[nn.Module] = nn.LSTM
) -> tuple[Any, Any, list[Tensor]]:
    """Input, states, and the tensors among them that want gradients."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype, generator=generator).requires_grad_()

    layers = case.layer.get("num_layers", 1) * (2 if case.layer.get("bidirectional") else 1)
    width = case.layer.get("proj_size", 0) or H
    leaves: list[Tensor]
    if case.packed:
        leaves = [draw(length, I) for length in LENGTHS]
        x = pack_sequence(leaves, enforce_sorted=False)
    elif case.unbatched:
        leaves = [draw(T, I)]
        x = leaves[0]
    else:
        leaves = [draw(B, T, I) if case.layer.get("batch_first") else draw(T, B, I)]
        x = leaves[0]
    if not case.states:
        return x, None, leaves
    batch = () if case.unbatched else (B,)
    h = draw(layers, *batch, width)
    if issubclass(kind, nn.GRU):
        return x, h, [*leaves, h]
    hx = (h, draw(layers, *batch, H))
    return x, hx, [*leaves, *hx]


def make_noise(
    case: Case, gates: str = "if", dtype: torch.dtype = torch.float64, soft_rate: float = 0.0
) -> list[Tensor]:
    """Noise for each layer and direction: logistic, dense; infinite where a binary gate stays soft."""
    generator = torch.Generator().manual_seed(2)
    layers = case.layer.get("num_layers", 1) * (2 if case.layer.get("bidirectional") else 1)
    steps = (sum(LENGTHS),) if case.packed else ((T,) if case.unbatched else (T, B))
    draws = [torch.rand(*steps, len(gates) * H, dtype=dtype, generator=generator) for _ in range(layers)]
    return [draw.logit().masked_fill(draw * 100 % 1 < soft_rate, torch.inf) for draw in draws]


def flat(output: Any) -> list[Tensor]:
    """All tensors of a layer's output."""
    out, states = output
    return [out.data if isinstance(out, PackedSequence) else out, *([states] if isinstance(states, Tensor) else states)]


def values_and_gradients(
    layer: torch.nn.Module, case: Case, dtype: torch.dtype = torch.float64, **call: Any
) -> list[Tensor]:
    """Everything a caller can see of one call: output, states, and the gradients of input, states, parameters."""
    x, hx, leaves = make_input(case, dtype, layer.__class__)
    outputs = flat(layer(x, hx, **call))
    generator = torch.Generator().manual_seed(3)
    weights = [torch.randn(o.shape, dtype=dtype, generator=generator) for o in outputs]
    loss = sum((o * w).sum() for o, w in zip(outputs, weights, strict=True))
    gradients = torch.autograd.grad(loss, [*leaves, *layer.parameters()])
    return [*(o.detach() for o in outputs), *gradients]


def assert_same(ours: list[Tensor], theirs: list[Tensor], rtol: float = 1e-7, atol: float = 1e-10) -> None:
    """Element by element; the absolute tolerance is for sums that cancel to nearly nothing."""
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


def make_layer(case: Case, dtype: torch.dtype = torch.float64, kind: Any = G2LSTM, **options: Any) -> Any:
    """The same weights for the same case, whatever the options."""
    torch.manual_seed(4)
    return kind(I, H, **case.layer, **options, dtype=dtype)
