"""A bar while large texts are prepared, whichever command asks for them."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from g2lstm.cli.output import error_console
from g2lstm.cli.progress import bar

_LOGGER = logging.getLogger("g2lstm.text.parts")


class _Shown(logging.Handler):
    """Turns what the log tells of a part into a step of a bar or, where no bar can be drawn, into a line."""

    def __init__(self) -> None:
        super().__init__()
        self._drawn = ExitStack()
        self._show: Callable[[str, int, int], None] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        assert isinstance(record.args, tuple)
        text, done, total = (str(argument) for argument in record.args)
        if self._show is None:
            self._show = self._drawn.enter_context(bar())
        self._show(f"preparing {text}", int(done), int(total))
        if not error_console().is_terminal:
            error_console().print(record.getMessage(), highlight=False, markup=False, soft_wrap=True)
        if done == total:  # the next bar is of other work
            self.erase()

    def erase(self) -> None:
        """Takes the bar off the screen."""
        self._drawn.close()
        self._show = None


@contextmanager
def preparing_shown() -> Iterator[None]:
    """Shows the preparation of texts inside, if they are large enough to take a while."""
    handler, level = _Shown(), _LOGGER.level
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        handler.erase()
        _LOGGER.removeHandler(handler)
        _LOGGER.setLevel(level)
