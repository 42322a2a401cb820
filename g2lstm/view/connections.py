"""Whom the page's server answers: which requests it accepts, how many connections it keeps, and how long."""

import asyncio
import errno
import ipaddress
import logging
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
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


MAX_BODY = 64 * 1024  # bytes; many times the longest sentence

_HEADERS = {
    # Plotly adds inline styles to the page; scripts come from our files only.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # after an upgrade the browser asks again; an ETag saves the transfer
}


class Guard:
    """Refuses requests that are addressed to someone else, come from another site's page, or are too large.

    Another site can point its own name at this machine; its scripts can then reach this server under that name. So we
    answer only to names known to be ours. (Starlette's TrustedHostMiddleware can't read IPv6 hosts and has no rule for
    numeric addresses.)

    Args:
        app: what answers the other requests.
        hosts: our names, without ports.
        any_address: also accept any numeric address, which no other site can have as its name.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str], *, any_address: bool = False) -> None:
        self.app = app
        self.hosts = frozenset(host.lower() for host in hosts)
        self.any_address = any_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the start and end of the server; there are no websockets here."""

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        async def receive_in_time() -> Message:
            try:
                return await asyncio.wait_for(receive(), REQUEST_SECONDS)
            except TimeoutError:
                raise HTTPException(408, "the request did not arrive in time", {"connection": "close"}) from None

        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await (self._refusal(scope["path"], Headers(scope=scope)) or self.app)(scope, receive_in_time, send_safely)

    def _refusal(self, path: str, headers: Headers) -> JSONResponse | None:
        host, origin, length = headers.get("host", ""), headers.get("origin"), headers.get("content-length", "0")
        if not self._is_ours(_split(f"//{host}")[1]):
            return _refuse(421, f"this server does not answer to the host {host[:100]!r}; see --host")
        if origin is not None and _split(origin)[0] != host.lower():
            return _refuse(403, "requests from pages of other sites are refused")
        # A request is never longer than it says; one in chunks doesn't say.
        is_short = length.isdecimal() and len(length) < 10 and int(length) <= MAX_BODY
        if not is_short or "transfer-encoding" in headers:
            return _refuse(413, f"the request is larger than {MAX_BODY} bytes, or does not say how large it is")
        if "\0" in path:  # no file has such a name; before version 1, starlette fails when it looks for one
            return _refuse(404, "there is no such page")
        return None

    def _is_ours(self, name: str) -> bool:
        if name in self.hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.any_address


def _split(address: str) -> tuple[str, str]:
    """The host of an address with and without its port; empty if there is none."""
    try:
        parts = urlsplit(address)
        return parts.netloc.lower(), parts.hostname or ""
    except ValueError:
        return "", ""


def _refuse(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status, headers={"connection": "close"})
