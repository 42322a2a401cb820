"""Connections to the page's server: half requests are not kept for long, and never keep others out."""

import asyncio
import errno
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import ExitStack, contextmanager, suppress
from urllib.parse import urlsplit

import pytest
import uvicorn

from g2lstm.view import connections

HALF = {
    "nothing": b"",
    "headers": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n",
    "body": b"POST /api/read HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 50\r\n\r\n{",
    "second request": b"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET / HTTP/1.1\r\n",
}


def connect(address):
    place = urlsplit(address)
    return socket.create_connection((place.hostname, place.port), timeout=600)


ANSWERS = {"body": b"HTTP/1.1 408", "second request": b"HTTP/1.1 200"}  # to what is whole
LIMITS = (0.2, 2, 20)  # seconds: on a busy machine even a whole request may arrive too late for the first of them


@pytest.mark.parametrize("name", HALF)
def test_half_a_request_is_not_kept(address, monkeypatch, name):
    for seconds in LIMITS:
        monkeypatch.setattr(connections, "REQUEST_SECONDS", seconds)
        answer = all_answered(address, HALF[name])
        if answer or name not in ANSWERS:
            break
    assert answer.startswith(ANSWERS.get(name, b""))


def all_answered(address, sent):
    """What comes until the server closes the connection."""
    answer = b""
    with connect(address) as connection, suppress(ConnectionError):
        connection.sendall(sent)
        while part := connection.recv(65536):
            answer += part
    return answer


def test_more_bytes_give_no_more_time(address, monkeypatch):
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.3)
    with connect(address) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            drip(connection)


def drip(connection):
    for _ in range(6000):
        time.sleep(0.05)
        connection.sendall(b"X: y\r\n")


def test_half_requests_keep_nobody_out(address, monkeypatch):
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 10)
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 600)  # or these would be closed anyway
    with ExitStack() as stack:
        held = [stack.enter_context(connect(address)) for _ in range(40)]
        for connection in held:
            connection.send(b"GET / HTTP/1.1\r\n")
        with urllib.request.urlopen(f"{address}api/runs", timeout=600) as answer:
            assert answer.status == 200
        assert all(map(is_closed, held[:20]))  # the oldest go first


def is_closed(connection):
    connection.settimeout(20)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_request_that_is_being_answered_makes_no_room(monkeypatch):
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 600)

    async def waiting(scope, receive, send):
        begun.set()
        while not others.is_set():
            await asyncio.sleep(0.01)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"at last"})

    begun, others = threading.Event(), threading.Event()
    with serving(waiting) as address, ExitStack() as stack:
        first = stack.enter_context(connect(address))
        first.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        begun.wait()
        held = [stack.enter_context(connect(address)) for _ in range(9)]
        assert is_closed(held[0])  # the oldest that only waits
        others.set()
        assert first.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_request_that_takes_long_is_answered(monkeypatch):
    """Only waiting for a request is limited."""

    async def slow(scope, receive, send):
        await asyncio.sleep(1.5 * connections.REQUEST_SECONDS)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"at last"})

    with serving(slow) as address:
        for seconds in LIMITS:
            monkeypatch.setattr(connections, "REQUEST_SECONDS", seconds)
            if answer := all_answered(address, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"):
                break
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"at last\r\n0\r\n\r\n")  # in chunks


@contextmanager
def serving(app):
    config = connections.configured(app)
    config.lifespan = "off"
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


def test_a_lack_of_descriptors_is_said_once(caplog):
    async def fail():
        loop = asyncio.get_running_loop()
        connections.without_repetition(loop)
        for _ in range(100):
            loop.call_exception_handler({"message": "accept", "exception": OSError(errno.EMFILE, "too many")})
        loop.call_exception_handler({"message": "something else"})

    with caplog.at_level(logging.ERROR):
        asyncio.run(fail())
    assert [record.getMessage() for record in caplog.records] == [
        "no more connections are possible for now: too many",
        "something else",
    ]


@pytest.mark.slow
def test_few_descriptors_make_a_page_slow_but_not_unreachable(paths, tmp_path):
    """More half requests than the process may have open: they time out, others get in, and little is said of it."""
    code = """
import resource, uvicorn
from g2lstm.cli.main import main
from g2lstm.view import connections

def limited(*arguments, **options):
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    run(*arguments, **options)

connections.REQUEST_SECONDS, run, uvicorn.Server.run = 1.0, uvicorn.Server.run, limited
main()
"""
    with open(tmp_path / "messages", "w") as messages:
        process = subprocess.Popen(
            [sys.executable, "-c", code, "view", paths[0], "--port", "0"],
            stdout=subprocess.PIPE, stderr=messages, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    try:
        address = process.stdout.readline().split()[0]
        while "loading" in states(address):  # which opens files too
            time.sleep(0.1)
        with ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(connect(address)).send(b"GET / HTTP/1.1\r\n")
            assert states(address) == ["ready"]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=600)
    told = (tmp_path / "messages").read_text()
    assert told == "no more connections are possible for now: Too many open files\n"


def states(address):
    with urllib.request.urlopen(f"{address}api/runs", timeout=600) as answer:
        return [run["state"] for run in json.load(answer)["runs"]]
