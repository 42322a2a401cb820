"""`g2lstm info`: what this installation has."""

import json
import platform

import torch
from rich.table import Table

from g2lstm.cli.options import Json
from g2lstm.cli.output import console
from g2lstm.nn import kernel
from g2lstm.nn.backends import describe
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
    backends = describe()
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
