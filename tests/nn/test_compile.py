"""The layer under `torch.compile` with gradients, and under the transforms of `torch.func`."""

import pytest
import torch

from g2lstm import G2LSTM
from tests.nn.layers import B, H, I, T

slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("backend", "training"),
    [
        ("auto", True),
        ("stock", False),
        *(pytest.param(*case, marks=slow) for case in [("auto", False), ("stock", True)]),
        *(pytest.param("reference", training, marks=slow) for training in (True, False)),
    ],
)
def test_gradients_under_compile(backend, training):
    layer = G2LSTM(I, H, 2, method="sigmoid", backend=backend).train(training)
    x = torch.randn(3, B, I, requires_grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)

    def gradients(module):
        return torch.autograd.grad(module(x)[0].square().sum(), [x, *layer.parameters()])

    for ours, theirs in zip(gradients(compiled), gradients(layer), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@slow
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_the_default_compiler(training):
    layer, x = G2LSTM(I, H, method="sigmoid").train(training), torch.randn(T, B, I)
    torch._dynamo.reset()
    out = torch.compile(layer, fullgraph=True)(x)[0]
    torch.testing.assert_close(out, layer(x)[0], rtol=1e-4, atol=1e-5)
    out.sum().backward()


@pytest.mark.parametrize("backend", ["auto", "stock", "reference"])
def test_functional_gradients(backend):
    layer, x = G2LSTM(I, H, backend=backend), torch.randn(T, B, I)
    weights = {name: value.detach() for name, value in layer.named_parameters()}

    def loss(weights):
        torch.manual_seed(5)
        return torch.func.functional_call(layer, weights, (x,))[0].square().sum()

    ours = torch.func.grad(loss)(weights)
    torch.manual_seed(5)
    theirs = torch.autograd.grad(layer(x)[0].square().sum(), list(layer.parameters()))
    for a, b in zip(ours.values(), theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
