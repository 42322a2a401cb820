"""Shows a progress bar while a data set is downloaded or a large text is prepared, in any command."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from g2lstm.cli.output import error_console
from g2lstm.cli.progress import bar

_LOGGER = logging.getLogger("g2lstm.text")


class _Shown(logging.Handler):
    """Turns each log record into a step of a bar or, where no bar can be drawn, into a line."""

    def __init__(self) -> None:
        super().__init__()
        self._drawn = ExitStack()
        self._show: Callable[[str, int, int], None] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        assert isinstance(record.args, tuple)
        what, done, total = (str(argument) for argument in record.args)
        if self._show is None:
            self._show = self._drawn.enter_context(bar())
        self._show(what, int(done), int(total))
        if not error_console().is_terminal:
            error_console().print(record.getMessage(), highlight=False, markup=False, soft_wrap=True)
        if done == total:  # the next bar is for other work
            self.erase()

    def erase(self) -> None:
        """Removes the bar from the screen."""
        self._drawn.close()
        self._show = None


@contextmanager
def preparing_shown() -> Iterator[None]:
    """Shows downloads and preparations that take a while."""
    handler, level = _Shown(), _LOGGER.level
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        handler.erase()
        _LOGGER.removeHandler(handler)
        _LOGGER.setLevel(level)
