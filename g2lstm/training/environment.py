"""What training changes in the Python process, and puts back at the end: accelerate's state, denormals, signals."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, is_initialized
from accelerate.utils import InitProcessGroupKwargs

from g2lstm.errors import G2Error
from g2lstm.training.processes import init_method

_PATIENCE = timedelta(hours=2)  # other processes wait this long for the first one, which prepares the data
_ONE_AT_A_TIME = threading.Lock()


class Interrupted(Exception):  # noqa: N818  it is no error
    """A signal stopped training after its state was saved."""


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Refuses a second training run in this Python process: the two would share torch's random numbers."""
    if not _ONE_AT_A_TIME.acquire(blocking=False):
        raise G2Error(
            "another training run is active in this Python process; wait for it to end, or use a second process"
        )
    try:
        yield
    finally:
        _ONE_AT_A_TIME.release()


@contextmanager
def own_accelerator(precision: str) -> Iterator[Accelerator]:
    """An accelerator with its own settings; accelerate would keep those of the first one in this Python process."""
    if precision == "fp16" and not torch.accelerator.is_available():
        raise G2Error('train.precision = "fp16" needs a GPU, but there is none; use "bf16" or "fp32"')
    callers = _accelerate_states()
    saved = [dict(state) for state in callers]
    for state in callers:
        state.clear()
    try:
        yield Accelerator(
            # Accelerate connects processes on CPUs only when told to use CPUs.
            cpu=not torch.accelerator.is_available(),
            mixed_precision="no" if precision == "fp32" else precision,
            kwargs_handlers=[InitProcessGroupKwargs(init_method=init_method(), timeout=_PATIENCE)],
        )
    finally:
        for state in _accelerate_states():
            state.clear()
        for state, values in zip(callers, saved, strict=True):
            state.update(values)


def _accelerate_states() -> list[dict[str, Any]]:
    """The dictionaries in which accelerate keeps its settings: each is shared by all instances of a class."""
    return [vars(AcceleratorState()), vars(GradientState())] if is_initialized() else []


@contextmanager
def denormals_flushed() -> Iterator[None]:
    """Treats denormal numbers as zero, in this thread and those it starts."""
    was_on = (torch.tensor([1e-310], dtype=torch.float64) * 1.0).item() == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(was_on)


class Signals:
    """Notices Ctrl-C and SIGTERM, so that training can stop after the current update.

    Args:
        on_first: called at the first signal.

    Attributes:
        came: whether there was a signal.
    """

    def __init__(self, on_first: Callable[[], None]) -> None:
        self.came = False
        self._on_first = on_first

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """Notices the first signal; the second one raises KeyboardInterrupt at once."""
        if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, self._notice) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                if handler is not None:  # one that was not set from Python can't be set again
                    signal.signal(number, handler)

    def _notice(self, _number: int, _frame: FrameType | None) -> None:
        if self.came:
            raise KeyboardInterrupt
        self.came = True
        self._on_first()
