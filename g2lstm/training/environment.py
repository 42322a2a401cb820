"""Where training runs: the processes that share the work, their accelerator, denormal numbers and signals."""

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch

# DDP would import it once the group exists. Then default arguments hold the group, and `_leave` can't end it.
import torch.distributed.nn.functional
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import InitProcessGroupKwargs
from torch import distributed

from g2lstm.errors import G2Error
from g2lstm.training.checkpoint import pack, unpack

_PATIENCE = timedelta(hours=2)  # other processes wait this long for the first one, which prepares the data
_ONE_AT_A_TIME = threading.Lock()


class Interrupted(Exception):  # noqa: N818  it is no error
    """A signal stopped training after its state was saved."""


@contextmanager
def own_accelerator(precision: str) -> Iterator[Accelerator]:
    """A fresh accelerator; accelerate would otherwise keep the settings of the first one in this Python process."""
    if precision == "fp16" and not torch.accelerator.is_available():
        raise G2Error('train.precision = "fp16" needs a GPU, but there is none; use "bf16" or "fp32"')
    _check_restarts()
    if not _ONE_AT_A_TIME.acquire(blocking=False):  # the two would also share torch's random numbers
        raise G2Error(
            "another training run is active in this Python process; wait for it to end, or use a second process"
        )
    atexit.register(_leave)
    shared = [AcceleratorState._shared_state, GradientState._shared_state]  # by all instances of the class
    callers = [dict(state) for state in shared]
    for state in shared:
        state.clear()
    try:
        yield Accelerator(
            # Accelerate connects processes on CPUs only when told to use CPUs.
            cpu=not torch.accelerator.is_available(),
            mixed_precision="no" if precision == "fp32" else precision,
            kwargs_handlers=[InitProcessGroupKwargs(timeout=_PATIENCE)],
        )
    finally:
        for state, values in zip(shared, callers, strict=True):
            state.clear()
            state.update(values)
        _ONE_AT_A_TIME.release()


@contextmanager
def denormals_flushed() -> Iterator[None]:
    """Treats denormal numbers as zero, in this thread and those it starts."""
    was_on = (torch.tensor([1e-310], dtype=torch.float64) * 1.0).item() == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(was_on)


@contextmanager
def signals_noticed(on_first: Callable[[], None]) -> Iterator[threading.Event]:
    """An event that the first Ctrl-C or SIGTERM sets; the second one raises KeyboardInterrupt at once."""
    came = threading.Event()

    def notice(*_: object) -> None:
        if came.is_set():
            raise KeyboardInterrupt
        came.set()
        on_first()

    is_main = threading.current_thread() is threading.main_thread()  # only this one may handle signals
    before = {number: signal.signal(number, notice) for number in (signal.SIGINT, signal.SIGTERM) if is_main}
    try:
        yield came
    finally:
        for number, handler in before.items():
            if handler is not None:  # one that was not set from Python can't be set again
                signal.signal(number, handler)


def _check_restarts() -> None:
    """Raises if torchrun would let restarted processes read the addresses of the dead ones (pytorch issue 135712)."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and os.environ["TORCHELASTIC_MAX_RESTARTS"] != "0":
        raise G2Error(
            "torchrun can't restart processes that share its store of addresses; set "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its environment, or start it with --max-restarts 0"
        )


def _leave() -> None:
    """Ends gloo's threads while Python still runs; a thread that needed Python later would abort the process."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def sums(accelerator: Accelerator, values: Sequence[float]) -> list[float]:
    """The sum of each value over all processes."""
    if accelerator.num_processes == 1:
        return list(values)
    return accelerator.reduce(torch.tensor(values, dtype=torch.float64, device=accelerator.device), "sum").tolist()


def of_first(accelerator: Accelerator, *values: float) -> list[float]:
    """The first process's values: all processes must decide alike, or they would wait for each other forever."""
    return sums(accelerator, [value if accelerator.is_main_process else 0.0 for value in values])


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
    """The seed of a process's own noise and dropout from `step` on, in 64 bits: two processes hardly ever share it."""
    return int(np.random.SeedSequence((seed, rank, step)).generate_state(1, np.uint64)[0])


@contextmanager
def deaths_explained() -> Iterator[None]:
    """Raises a clear error if another process has died; torch has no exception class for what gloo raises."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if not isinstance(error, distributed.DistError) and "gloo" not in text and "by peer" not in text:
            raise
        raise G2Error(
            "another process of this training run has died, so this one stops too; see that process's output for the "
            f"reason, then continue from the last checkpoint with --resume ({text.splitlines()[0]})"
        ) from error
