"""`Guard`: what every request must pass, and the security headers of every answer."""

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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

    Another site can make its own name point to this machine, and its scripts then reach this server under that name.
    So only names known to be ours are answered. (Starlette's TrustedHostMiddleware can't read IPv6 hosts and has no
    rule for numeric addresses.)

    Args:
        app: what answers the other requests.
        hosts: our names, without ports.
        any_address: also accept any numeric address; no foreign name can be one.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str], *, any_address: bool = False) -> None:
        self.app = app
        self.hosts = frozenset(host.lower() for host in hosts)
        self.any_address = any_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the start and end of the server."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":  # there are no websockets here
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        body: bytes | None = b""
        refusal: tuple[int, str] | None = None
        if not self._is_ours(host):
            refusal = 421, f"this server does not answer to the host {host[:100]!r}; see --host"
        elif origin is not None and _place_of(origin) != host.lower():
            refusal = 403, "requests from pages of other sites are refused"
        elif (body := await _read_body(headers.get("content-length"), receive)) is None:
            refusal = 413, f"the request is larger than {MAX_BODY} bytes"

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        if refusal is not None:
            status, text = refusal
            answer = JSONResponse({"error": text}, status, headers={"connection": "close"})
            await answer(scope, receive, send_safely)
            return
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive_again() -> Message:
            return next(messages, None) or await receive()

        await self.app(scope, receive_again, send_safely)

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self.hosts or (self.any_address and _is_address(name))


def _place_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _read_body(declared: str | None, receive: Receive) -> bytes | None:
    """The whole body; None if it is too large, without reading the rest."""
    if declared is not None and (not declared.isdecimal() or len(declared) > 9 or int(declared) > MAX_BODY):
        return None
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        body += message.get("body", b"")
        if len(body) > MAX_BODY:
            return None
        more = message.get("more_body", False)
    return body
