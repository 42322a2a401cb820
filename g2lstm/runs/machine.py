"""What computes: versions, threads, processor and kernels. The last bits of a result depend on all of these."""

import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch

from g2lstm.nn import kernel
from g2lstm.version import __version__


def machine() -> dict[str, str | int]:
    """The facts about this process that can change a result in its last bits, by name."""
    return {
        "g2lstm": __version__,
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "processor": f"{_processor()}, {torch.backends.cpu.get_cpu_capability()}",
        "kernel": kernel.find().description,
    }


def changes(before: Mapping[str, object]) -> list[str]:
    """How this process differs from facts that were kept, in words: "threads 2 instead of 1"."""
    known = {name: (now, before[name]) for name, now in machine().items() if name in before}
    return [f"{name} {now} instead of {then}" for name, (now, then) in known.items() if now != then]


def _processor() -> str:
    with suppress(OSError), Path("/proc/cpuinfo").open() as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
        if names:
            return names[0]
    return platform.processor() or platform.machine()
