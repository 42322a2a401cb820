"""`Guard`: checks every request, and adds security headers to every answer."""

import asyncio
import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from g2lstm.view import connections

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
                return await asyncio.wait_for(receive(), connections.REQUEST_SECONDS)
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
