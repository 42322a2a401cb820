"""The backends by name, and which one `auto` is."""

import torch

from g2lstm.errors import G2Error
from g2lstm.nn import kernel, native, reference, stock
from g2lstm.nn.gate import GateRule
from g2lstm.nn.layer import Backend
from g2lstm.nn.stock import compiles_with_gradients

BACKENDS = ("auto", "reference", "stock", "native")


def choose(backend: str, device: torch.device, training: bool, rule: GateRule) -> Backend:
    """The function that runs a layer.

    `auto` is the native kernel for training on a CPU, and for hard gates there, which no fused LSTM knows, and for
    gradients under `torch.compile`, which cannot trace the fused one's; torch's fused LSTM everywhere else, but for
    hard gates on other devices, which are left to the plain loop.
    """
    if backend == "reference":
        return reference.run_layer
    if backend == "stock":
        return stock.run_layer
    if backend == "native":
        if device.type != "cpu":
            raise G2Error(
                f"backend 'native' runs on the CPU, but the input is on '{device}'; "
                "use backend='auto', which takes torch's fused LSTM there, or move the layer and its input to the CPU"
            )
        return native.run_layer
    if device.type == "cpu" and (training or rule.hard or compiles_with_gradients()):
        return native.run_layer
    return reference.run_layer if rule.hard else stock.run_layer


def describe() -> dict[str, str]:
    """For each backend what it is here, and why the native one is not compiled if it is not."""
    found = kernel.find()
    native_now = found.description if found.library else f"torch operations, slower ({found.description})"
    return {
        "reference": "the paper's equations as a plain loop",
        "stock": "torch's fused LSTM: " + ", ".join(_fused_libraries()),
        "native": native_now,
        "auto": "training, and hard gates, on the CPU: native; hard gates elsewhere: reference; all else: stock",
    }


def _fused_libraries() -> list[str]:
    names = []
    if torch.backends.mkldnn.is_available():
        names.append("oneDNN on the CPU")
    if torch.backends.cudnn.is_available():
        names.append("cuDNN on CUDA")
    if torch.backends.mps.is_available():
        names.append("MPS")
    return names or ["torch's own loops"]
