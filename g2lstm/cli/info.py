"""`g2lstm info`: what this installation has."""

import json
import platform

import torch
from rich.table import Table

from g2lstm.cli.options import Json
from g2lstm.cli.output import console
from g2lstm.nn import kernel
from g2lstm.version import __version__


def info(
    as_json: Json = False,
) -> None:
    """Says which versions, LSTM backends and compiled kernels are here, and why one is not."""
    facts = {
        "g2lstm": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
    backends = describe_backends()
    kernels = {"packed weights": kernel.find().description}
    if as_json:
        print(json.dumps({**facts, "backends": backends, "kernels": kernels}))
        return
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        table.add_row(name, str(value))
    for name, value in backends.items():
        table.add_row(f"backend {name}", value)
    for name, value in kernels.items():
        table.add_row(f"kernel for {name}", value)
    console().print(table)


def describe_backends() -> dict[str, str]:
    """What each backend is here, and if the native one is not compiled, why."""
    found = kernel.find()
    fused = {
        "oneDNN on the CPU": torch.backends.mkldnn.is_available(),
        "cuDNN on CUDA": torch.backends.cudnn.is_available(),
        "MPS": torch.backends.mps.is_available(),
    }
    names = [name for name, is_here in fused.items() if is_here] or ["torch's own loops"]
    return {
        "reference": "the paper's equations as a plain loop",
        "stock": "torch's fused LSTM: " + ", ".join(names),
        "native": found.description if found.library else f"torch operations, slower ({found.description})",
        "auto": "native on the CPU for training and hard gates; elsewhere reference for hard gates; otherwise stock",
    }
