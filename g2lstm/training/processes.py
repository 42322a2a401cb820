"""What several processes tell each other: a few numbers at each step, and their states; as tensors, never pickled."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast

from g2lstm.errors import G2Error
from g2lstm.training.checkpoint import pack, unpack


def sums(accelerator: Accelerator, values: Sequence[float]) -> list[float]:
    """The sum of each value over all processes."""
    if accelerator.num_processes == 1:
        return list(values)
    return accelerator.reduce(_tensor(accelerator, values), "sum").tolist()


def of_first(accelerator: Accelerator, values: Sequence[float]) -> list[float]:
    """What the first process has: all must decide alike, or they would wait for each other for ever."""
    if accelerator.num_processes == 1:
        return list(values)
    return broadcast(_tensor(accelerator, values)).tolist()


def gathered(accelerator: Accelerator, state: dict[str, Any]) -> list[dict[str, Any]]:
    """The states of all processes, in their order; made of what a checkpoint can hold."""
    if accelerator.num_processes == 1:
        return [state]
    content = pack(state)
    own = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(accelerator.device)
    sizes = accelerator.gather(torch.tensor([len(content)], device=accelerator.device)).tolist()
    every = accelerator.gather(accelerator.pad_across_processes(own)).view(len(sizes), -1).cpu()
    return [unpack(row[:size].numpy().tobytes()) for row, size in zip(every, sizes, strict=True)]


def noise_seed(seed: int, rank: int, step: int = 0) -> int:
    """Of a process's own stream of noise and dropout, which has nothing in common with that of any other.

    Args:
        seed: of the recipe.
        rank: of the process.
        step: at which the stream begins.
    """
    return int(np.random.SeedSequence((seed, rank, step)).generate_state(1, np.uint64)[0])


@contextmanager
def deaths_told() -> Iterator[None]:
    """That another process is gone becomes a clear error; torch has no class of its own for what gloo raises then."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if not isinstance(error, torch.distributed.DistError) and "gloo" not in text and "by peer" not in text:
            raise
        raise G2Error(
            "another process of this training has ended, so this one ends too; its own message says why, and --resume "
            f"goes on from the last checkpoint ({text.splitlines()[0]})"
        ) from error


def _tensor(accelerator: Accelerator, values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, device=accelerator.device)
