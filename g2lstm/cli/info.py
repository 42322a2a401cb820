"""`g2lstm info`: what this installation has."""

import platform

from g2lstm.cli.shared import Json, console, print_json, table
from g2lstm.version import __version__


def info(as_json: Json = False) -> None:
    """Show the versions, LSTM backends and compiled kernels of this installation, and why one is missing."""
    import torch

    from g2lstm.nn import kernel

    facts: dict[str, str | int] = {
        "g2lstm": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
    backends, kernels = describe_backends(), {"packed weights": kernel.find().description}
    if as_json:
        print_json({**facts, "backends": backends, "kernels": kernels})
        return
    rows = [(name, str(value)) for name, value in facts.items()]
    rows += [(f"backend {name}", text) for name, text in backends.items()]
    rows += [(f"kernel for {name}", text) for name, text in kernels.items()]
    console().print(table(("what", "here"), rows, left=2))


def describe_backends() -> dict[str, str]:
    """What each backend is on this machine and, if the native one is not compiled, why."""
    import torch

    from g2lstm.nn import kernel

    found = kernel.find()
    libraries = {"oneDNN": torch.backends.mkldnn, "cuDNN": torch.backends.cudnn, "MPS": torch.backends.mps}
    names = [name for name, library in libraries.items() if library.is_available()] or ["torch's own loops"]
    return {
        "reference": "the paper's equations as a plain loop",
        "stock": "torch's fused LSTM: " + ", ".join(names),
        "native": found.description
        if found.library
        else f"torch operations, which take 1.5 to 2.5 times as long ({found.description})",
        "auto": "native on the CPU for training and hard gates; elsewhere reference for hard gates; otherwise stock",
    }
