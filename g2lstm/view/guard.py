"""`Guard`: what every request passes first, and what every answer tells the browser."""

import ipaddress
import json
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 64 * 1024  # bytes; a sentence of the greatest length fits many times

_HEADERS = {
    # Plotly adds styles of its own to the page, hence the inline styles; scripts come from our files only.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """Refuses requests that are addressed to someone else, come from another site's page, or are too large.

    A page elsewhere can make its own name point to this machine, and its scripts then reach this server with that name
    as the host: so only names that are known to be ours are answered.

    Args:
        app: what answers the other requests.
        hosts: names that are ours, without ports.
        any_address: accept every address written in numbers too; no foreign name can be one.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str], *, any_address: bool = False) -> None:
        self.app = app
        self.hosts = frozenset(host.lower() for host in hosts)
        self.any_address = any_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the start and end of the server."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # nothing here speaks anything else
            return
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._is_ours(host):
            await _refuse(send, 421, f"this server does not answer to the host {host[:100]!r}; see --host")
            return
        if origin is not None and _place_of(origin) != host.lower():
            await _refuse(send, 403, "requests from pages of other sites are refused")
            return
        body = await _read_body(headers.get("content-length"), receive)
        if body is None:
            await _refuse(send, 413, f"the request is larger than {MAX_BODY} bytes")
            return
        is_given = False

        async def receive_again() -> Message:
            nonlocal is_given
            if is_given:
                return await receive()
            is_given = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        await self.app(scope, receive_again, send_safely)

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self.hosts:
            return True
        return self.any_address and _is_address(name)


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
    """The whole body; None if it is too large, of which no more than that is read."""
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


async def _refuse(send: Send, status: int, message: str) -> None:
    body = json.dumps({"error": message}).encode()
    headers = {**_HEADERS, "content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    start = {"type": "http.response.start", "status": status}
    await send({**start, "headers": [(name.encode(), value.encode()) for name, value in headers.items()]})
    await send({"type": "http.response.body", "body": body})
