"""Requests that must not be answered, and what every answer carries."""

import pytest

from g2lstm.view.connections import MAX_BODY

QUESTION = {"run": "g2", "text": "the cat", "gate": "soft"}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8150", "localhost:9", "[::1]:9", "LOCALHOST"])
def test_our_own_names_are_answered(client, host):
    assert client.get("/api/runs", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "[::1", "192.0.2.1", "a b"]
)
def test_other_hosts_are_refused(client, host):
    answer = client.get("/api/runs", headers={"host": host})
    assert answer.status_code == 421
    assert "does not answer to the host" in answer.json()["error"]
    assert client.post("/api/read", json=QUESTION, headers={"host": host}).status_code == 421


def test_addresses_in_numbers_where_the_host_was_chosen(make_client):
    client = make_client(hosts=("my-machine",), any_address=True)
    assert [client.get("/", headers={"host": host}).status_code for host in ("192.0.2.1:80", "my-machine")] == [
        200,
        200,
    ]
    assert client.get("/", headers={"host": "evil.example"}).status_code == 421


def test_pages_of_other_sites_are_refused(client):
    refused = client.post("/api/read", json=QUESTION, headers={"origin": "http://evil.example"})
    assert refused.status_code == 403
    assert client.post("/api/read", json=QUESTION, headers={"origin": "null"}).status_code == 403
    assert client.post("/api/read", json=QUESTION, headers={"origin": "http://127.0.0.1"}).status_code == 200


def test_a_large_request_is_refused_before_it_is_read(client):
    assert client.post("/api/read", json={**QUESTION, "text": "a" * MAX_BODY}).status_code == 413
    assert client.get("/api/runs", headers={"content-length": "9" * 5000}).status_code == 413

    def pieces():
        for _ in range(1000):
            yield b"x" * 4096
            seen.append(1)

    seen = []
    answer = client.post("/api/read", content=pieces(), headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert "larger than" in answer.json()["error"]


@pytest.mark.parametrize("path", ["/", "/page.js", "/api/runs", "/nothing"])
def test_headers(client, path):
    check_headers(client.get(path).headers)
    check_headers(client.get(path, headers={"host": "evil.example"}).headers)


def check_headers(headers):
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] == "no-cache"
    assert "access-control-allow-origin" not in headers
