"""Ctrl-C and termination, noted while training and heeded after the update that is under way."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Signals:
    """Notes signals where that is possible: in the main thread.

    Args:
        on_first: called when the first one comes.

    Attributes:
        came: whether one came.
    """

    def __init__(self, on_first: Callable[[], None]) -> None:
        self.came = False
        self._on_first = on_first

    @contextmanager
    def noted(self) -> Iterator[None]:
        """The first is noted, the second ends the process at once; at the end the handlers are as before."""
        if threading.current_thread() is not threading.main_thread():  # only that one may handle signals
            yield
            return

        def note(number: int, _frame: FrameType | None) -> None:
            if self.came:
                raise KeyboardInterrupt
            self.came = True
            self._on_first()

        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, note) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                if handler is not None:  # one that was not set from Python cannot be set again
                    signal.signal(number, handler)
