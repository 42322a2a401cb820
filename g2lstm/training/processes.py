"""Several processes training together: how they find each other, and what they exchange; tensors only, no pickle.

Torchrun's agent keeps one store of addresses for as long as it lives. Restarted processes would find the addresses of
the dead ones there, and fail to connect (https://github.com/pytorch/pytorch/issues/135712). The number of restarts
can't tell them apart, because each node counts its own. So the processes first agree on a name for this start, and
keep their addresses under that name.
"""

import atexit
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from torch import distributed
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # not in its __all__
from torch.distributed.rendezvous import register_rendezvous_handler, rendezvous

from g2lstm.errors import G2Error
from g2lstm.training.checkpoint import pack, unpack

_SECONDS_BETWEEN_CALLS = 0.1


@cache
def init_method() -> str:
    """The `init_method` for `torch.distributed.init_process_group`; RANK and the like come from the environment."""
    register_rendezvous_handler("g2lstm", _meet)
    atexit.register(_leave)
    return "g2lstm://"


def _meet(_url: str, *, timeout: timedelta) -> Iterator[tuple[Store, int, int]]:
    # Imported after the group exists, as DDP would, it holds the group in default arguments, and `_leave` can't end it.
    import torch.distributed.nn.functional  # noqa: F401

    store, rank, size = next(rendezvous("env://", timeout=timeout))
    yield PrefixStore(agree(store, rank, size, timeout), store), rank, size


def _leave() -> None:
    """Ends gloo's threads while Python still runs; one that needs Python later would abort the process."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def agree(store: Store, rank: int, size: int, timeout: timedelta) -> str:
    """A name that all processes of this start share, whatever earlier ones left in the store.

    The first process invents the name, and answers a word from each of the others. They call it by whichever name is in
    the store until their word, which is new, is answered: dead processes don't answer.
    """
    if rank == 0:
        name = uuid4().hex
        store.set("g2lstm/first", name)
        for other in range(1, size):
            word = store.get(f"g2lstm/{name}/{other}").decode()
            store.set(f"g2lstm/{word}", name)
        return name
    word, deadline = uuid4().hex, time.monotonic() + timeout.total_seconds()
    while not store.check([f"g2lstm/{word}"]):
        if time.monotonic() > deadline:
            raise G2Error(
                f"process {rank} of {size} has waited {timeout} for the first one, at "
                f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}; check that it was started, and its "
                "log"
            )
        name = store.get("g2lstm/first").decode()
        store.set(f"g2lstm/{name}/{rank}", word)
        time.sleep(_SECONDS_BETWEEN_CALLS)
    return store.get(f"g2lstm/{word}").decode()


def sums(accelerator: Accelerator, values: Sequence[float]) -> list[float]:
    """The sum of each value over all processes."""
    if accelerator.num_processes == 1:
        return list(values)
    return accelerator.reduce(_tensor(accelerator, values), "sum").tolist()


def of_first(accelerator: Accelerator, values: Sequence[float]) -> list[float]:
    """The first process's values: all processes must decide alike, or they would wait for each other for ever."""
    if accelerator.num_processes == 1:
        return list(values)
    return broadcast(_tensor(accelerator, values)).tolist()


def gathered(accelerator: Accelerator, state: dict[str, Any]) -> list[dict[str, Any]]:
    """The states of all processes, ordered by rank; a state holds whatever a checkpoint can hold."""
    if accelerator.num_processes == 1:
        return [state]
    content = pack(state)
    own = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(accelerator.device)
    sizes = accelerator.gather(torch.tensor([len(content)], device=accelerator.device)).tolist()
    every = accelerator.gather(accelerator.pad_across_processes(own)).view(len(sizes), -1).cpu()
    return [unpack(row[:size].numpy().tobytes()) for row, size in zip(every, sizes, strict=True)]


def noise_seed(seed: int, rank: int, step: int = 0) -> int:
    """The seed of a process's own noise and dropout from `step` on; any two streams are independent."""
    return int(np.random.SeedSequence((seed, rank, step)).generate_state(1, np.uint64)[0])


@contextmanager
def deaths_explained() -> Iterator[None]:
    """Turns the loss of another process into a clear error; torch has no exception class for what gloo raises."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if not isinstance(error, torch.distributed.DistError) and "gloo" not in text and "by peer" not in text:
            raise
        raise G2Error(
            "another process of this training run has died, so this one stops too; see that process's output for the "
            f"reason, then continue from the last checkpoint with --resume ({text.splitlines()[0]})"
        ) from error


def _tensor(accelerator: Accelerator, values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, device=accelerator.device)
