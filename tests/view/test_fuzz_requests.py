"""Whatever is sent to the page's server, the answer is a page, an answer or a refusal, never a bug of ours."""

import json
import re
import socket
import urllib.request
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import JSON, SHORT, changed, damaged, fuzzed

QUESTION = {"run": "g2", "text": "the cat sat .", "gate": "soft"}
NUMBERS = {
    "mean": 0.5, "below_0.1": 0, "above_0.9": 0, "entropy_bits": 0, "distance_to_nearer_end": 0, "values": 1,
    "counts": [1] * 100,
}  # fmt: skip
LAYER = {"name": "", "direction": "", "title": "", "gates": dict.fromkeys(["input", "forget", "output"], NUMBERS)}
COUNTS = json.dumps({"mode": "", "data": {"tokens": {"text": 1}}, "layers": [LAYER]})
PATHS = ["/api/read", "/api/units", "/api/histograms", "/api/runs", "/", "/plotly/plotly.min.js", "/nothing"]
LATIN = st.text(st.characters(min_codepoint=1, max_codepoint=255, exclude_characters="\r\n"), max_size=30)


def check(answer):
    assert answer.status_code < 500 or answer.status_code == 503, answer.text
    if answer.status_code >= 400:
        assert answer.json()["error"]


@fuzzed()
def test_any_request_is_answered(client, data):
    body = json.dumps(changed(data, {**QUESTION, "layer": 0, "position": 1})).encode()
    if data.draw(st.booleans()):
        body = damaged(data, body)
    headers = {"content-type": "application/json"}
    if data.draw(st.integers(0, 3)) == 0:
        name = data.draw(st.sampled_from(["host", "origin", "content-length", "content-type", "if-none-match"]))
        headers[name] = data.draw(LATIN).encode("latin-1")
    path, method = data.draw(st.sampled_from(PATHS)), data.draw(st.sampled_from(["POST", "POST", "GET", "PUT"]))
    check(client.request(method, path, content=body, headers=headers))


@SHORT
@given(JSON)
def test_any_json_is_answered(client, value):
    for path in PATHS[:3]:
        check(client.post(path, content=json.dumps(value), headers={"content-type": "application/json"}))


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "//", "http://\u2100.example", "\xff"])
def test_origins_that_are_none(client, origin):
    answer = client.get("/api/runs", headers={"origin": origin.encode("utf-8")})
    assert answer.status_code == 403


@pytest.mark.parametrize(
    "body",
    [
        rb'{"run": "g2", "text": "a", "gate": "soft", "\ud800": 1}',
        rb'{"run": "\ud800", "text": "a", "gate": "soft"}',
        rb'{"run": "g2", "text": "a", "gate": "\ud800"}',
        b'{"run": "g2", "text": "a", "gate": "soft", "' + b"k" * 60_000 + b'": 1}',
        b'{"run": "g2", "text": "a", "gate": "soft", "layer": ' + b"9" * 5000 + b"}",
    ],
)
def test_bodies_that_are_hard_to_repeat(client, body):
    for path in PATHS[:2]:
        answer = client.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 404, 422)
        assert len(answer.json()["error"]) < 1000


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000,
        COUNTS.replace('"output"', '"other"'),
        COUNTS.replace('"title": ""', '"title": 1'),
        COUNTS.replace('"title": ""', '"title": "\\ud800"'),
        COUNTS.replace("[1,", "[-1,"),
        COUNTS.replace("[1,", '["1",'),
        COUNTS.replace("[1,", "["),
        COUNTS.replace("[1,", f"[{10**99},"),
        '{"mode": NaN, "data": 1, "layers": 1}',
        "3",
        '{"mode": 1}',
        '"\\ud800"',
    ],
)
def test_counts_that_no_command_wrote(client, paths, content):
    answer = histograms_from(client, paths, content)
    assert answer.status_code == 400
    assert re.search("is (damaged|not valid JSON): .*; write it again with `g2lstm gates", answer.json()["error"])


def test_counts_that_a_command_wrote(client, paths):
    assert histograms_from(client, paths, COUNTS).json() == json.loads(COUNTS) | {"explained": []}


def histograms_from(client, paths, content):
    file = paths[0] / "gates" / "gates.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(content)
    try:
        return client.post("/api/histograms", json={"run": "g2"})
    finally:
        file.unlink()
        file.parent.rmdir()


def test_bytes_that_are_no_request(address):
    """Through a socket, as the server itself parses them."""
    place = urlsplit(address)
    requests = [
        b"\0" * 100,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"POST /api/read HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n{}",
        b"POST /api/read HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\n{}",
        b"POST /api/read HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    ]
    for request in requests:
        answer = exchange(place, request)
        assert not answer or 400 <= int(answer.split()[1]) < 500, (request[:60], answer[:200])
        assert b"root:" not in answer
    with urllib.request.urlopen(address, timeout=600) as answer:
        assert answer.status == 200  # the server still runs


def exchange(place, request):
    """All that the server answers before it closes the connection, which it may do in the midst of a request."""
    answer = b""
    with socket.create_connection((place.hostname, place.port), timeout=600) as connection, suppress(ConnectionError):
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(65536):
            answer += part
    return answer
