"""How many connections the page's server keeps, and how long: half a request must not keep anyone out."""

import asyncio
import errno
import logging
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 100  # beyond these, the one that has waited longest for its request makes room
REQUEST_SECONDS = 10.0  # from the beginning of a request to the end of its headers, and as much for its body

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LOGGER = logging.getLogger(__name__)


def configured(app: ASGIApp) -> uvicorn.Config:
    """How uvicorn runs the application."""
    quiet = {"log_level": "error", "access_log": False}  # anyone can send what is worth a warning, again and again
    return uvicorn.Config(app, http=Connection, backlog=128, timeout_graceful_shutdown=2, **quiet)  # type: ignore[arg-type]


class Connection(H11Protocol):
    """A connection that is closed if its next request does not arrive in time."""

    _timer: asyncio.TimerHandle | None = None
    _since = 0.0  # when it began to wait

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Waits for the first request, and closes others if there are too many connections."""
        super().connection_made(transport)
        self._wait()
        # Many can come at once, before those that were closed are gone from the set.
        kept = [each for each in self.connections if isinstance(each, Connection) and not each.transport.is_closing()]
        idle = sorted((each for each in kept if each._is_waiting), key=lambda each: each._since)
        for each in idle[: max(len(kept) - MAX_CONNECTIONS, 0)]:
            each.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Waits for the rest, if this is not the end of a request's headers; more bytes give no more time."""
        super().data_received(data)
        if not self._is_waiting:
            self._stop()
        elif self._timer is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits no longer."""
        self._stop()
        super().connection_lost(exc)

    @property
    def _is_waiting(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _wait(self) -> None:
        self._since = self.loop.time()
        self._timer = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def without_repetition(loop: asyncio.AbstractEventLoop) -> None:
    """Says once that the system allows no more connections; asyncio would say so thousands of times per second."""
    is_said = False

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal is_said
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in _NO_ROOM:
            loop.default_exception_handler(context)
        elif not is_said:
            is_said = True
            _LOGGER.error("no more connections are possible for now: %s", error.strerror)

    loop.set_exception_handler(handle)
