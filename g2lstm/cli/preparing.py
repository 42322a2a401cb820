"""A bar while large texts are prepared, whichever command asks for them."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from g2lstm.cli.output import error_console
from g2lstm.cli.progress import bar

_LOGGER = logging.getLogger("g2lstm.data.parts")


class _Shown(logging.Handler):
    """Turns what the log tells of a part into a step of the bar or, where no bar can be drawn, into a line."""

    def __init__(self, show: Callable[[str, int, int], None]) -> None:
        super().__init__()
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        assert isinstance(record.args, tuple)
        text, done, total = record.args
        self._show(f"preparing {text}", int(str(done)), int(str(total)))
        if not error_console().is_terminal:
            error_console().print(record.getMessage(), highlight=False, markup=False, soft_wrap=True)


@contextmanager
def preparing_shown() -> Iterator[None]:
    """Shows the preparation of texts inside, if they are large enough to take a while."""
    with bar() as show:
        handler, level = _Shown(show), _LOGGER.level
        _LOGGER.addHandler(handler)
        _LOGGER.setLevel(logging.INFO)
        try:
            yield
        finally:
            _LOGGER.removeHandler(handler)
            _LOGGER.setLevel(level)
