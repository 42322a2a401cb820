"""Measures `g2lstm view`: the first view, one sentence, and many clients at once; on this machine only.

It starts the server itself, on a free port of 127.0.0.1, and ends it again. No sentence is asked for twice, so that no
answer comes from the cache. The clients wait for each answer before the next question, as people do, but do not think.

    python benchmarks/view_load.py runs/ptb-small [--clients 50] [--seconds 30] [--json]
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

WORDS = 30
FIRST_VIEW = ("/", "/theme.js", "/page.css", "/page.js", "/column.js", "/dom.js", "/heat.js", "/more.js", "/server.js")
FIRST_VIEW += ("/plot.js", "/split.js", "/units.js", "/api/runs")


@dataclass
class Outcome:
    """What the clients saw."""

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Client:
    """One connection that stays open."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def __aenter__(self) -> "Client":
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        await self.writer.wait_closed()

    async def ask(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        """The status and the body of an answer, which must be whole."""
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        self.writer.write(head.encode() + content)
        await self.writer.drain()
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), await self.reader.readexactly(int(headers["content-length"]))


def start(run: Path) -> tuple[subprocess.Popen[str], int]:
    """The server and its port."""
    command = [sys.executable, "-m", "g2lstm", "view", str(run), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    line = server.stdout.readline()
    if not line.startswith("http://127.0.0.1:"):
        raise SystemExit("the server did not start")
    return server, int(urlsplit(line.split()[0]).port or 0)


def memory(process: int) -> float:
    """Of a process, in MB."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


def sentence(words: list[str], generator: random.Random) -> str:
    """Thirty words that the model knows, in an order that no one has asked for."""
    return " ".join(generator.choices(words, k=WORDS))


async def wait_until_ready(port: int) -> tuple[str, list[str]]:
    """The run's name, and words of its examples."""
    while True:
        async with Client(port) as client:
            run = json.loads((await client.ask("/api/runs"))[1])["runs"][0]
        if run["state"] == "failed":
            raise SystemExit(run["message"])
        if run["state"] == "ready":
            words = sorted({word for text in run["examples"] for word in text.split()})
            return run["name"], words or ["a", "b", "c"]
        await asyncio.sleep(0.1)


async def first_view(port: int) -> float:
    """Seconds until everything that the page needs at first has come, one file after the other."""
    began = time.perf_counter()
    async with Client(port) as client:
        for path in FIRST_VIEW:
            status, _ = await client.ask(path)
            assert status == 200, (path, status)
    return time.perf_counter() - began


async def one_visitor(port: int, run: str, words: list[str], count: int) -> list[float]:
    """Seconds for each of so many sentences, one after the other."""
    generator, seconds = random.Random(1), []
    async with Client(port) as client:
        for _ in range(count):
            began = time.perf_counter()
            status, _ = await client.ask("/api/read", question(run, sentence(words, generator)))
            assert status == 200, status
            seconds.append(time.perf_counter() - began)
    return seconds


def question(run: str, text: str) -> dict[str, str]:
    """What the page asks for a sentence."""
    return {"run": run, "text": text, "gate": "soft"}


async def many_visitors(
    port: int, run: str, words: list[str], clients: int, seconds: float, process: int
) -> tuple[Outcome, list[float]]:
    """All clients ask until the time is over; meanwhile the memory is looked at ten times."""
    outcome, end = Outcome(), time.perf_counter() + seconds

    async def visit(number: int) -> None:
        generator = random.Random(1000 + number)
        try:
            async with Client(port) as client:
                while time.perf_counter() < end:
                    began = time.perf_counter()
                    text = sentence(words, generator)
                    status, body = await client.ask("/api/read", question(run, text))
                    outcome.seconds.append(time.perf_counter() - began)
                    if status != 200 or json.loads(body)["tokens"] is None:
                        outcome.errors.append(f"status {status}: {body[:100]!r}")
        except (OSError, EOFError, ValueError) as error:
            outcome.errors.append(repr(error))

    async def watch() -> list[float]:
        found = []
        for _ in range(10):
            await asyncio.sleep(seconds / 10)
            found.append(memory(process))
        return found

    sizes, *_ = await asyncio.gather(watch(), *(visit(number) for number in range(clients)))
    return outcome, sizes


async def measure(run: Path, clients: int, seconds: float) -> dict[str, Any]:
    """All of it, as plain data."""
    server, port = start(run)
    try:
        name, words = await wait_until_ready(port)
        view = [await first_view(port) for _ in range(5)]
        alone = await one_visitor(port, name, words, 40)
        before = memory(server.pid)
        outcome, sizes = await many_visitors(port, name, words, clients, seconds, server.pid)
    finally:
        server.terminate()
        server.wait()
    ordered = sorted(outcome.seconds)
    return {
        "run": str(run),
        "first_view_seconds": statistics.median(view),
        "sentence_seconds": {"words": WORDS, "median": statistics.median(alone), "worst": max(alone)},
        "clients": clients,
        "seconds": seconds,
        "answers": len(ordered),
        "answers_per_second": len(ordered) / seconds,
        "errors": len(outcome.errors),
        "first_errors": outcome.errors[:3],
        "answer_seconds": {
            "median": statistics.median(ordered),
            "p99": ordered[int(0.99 * (len(ordered) - 1))],
            "worst": ordered[-1],
        },
        "memory_mb": {"before": before, "during": sizes},
    }


def main() -> None:
    """Prints what was measured; ends with 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = asyncio.run(measure(options.run, options.clients, options.seconds))
    sizes = found["memory_mb"]["during"]
    growth = sizes[-1] / sizes[1] - 1  # the first tenth fills the cache
    bars = {
        "first view under 1 s": found["first_view_seconds"] < 1,
        f"{WORDS} words under 0.5 s": found["sentence_seconds"]["median"] < 0.5,
        "no error": found["errors"] == 0,
        "memory flat (5 %)": growth < 0.05,
    }
    if options.json:
        print(json.dumps({**found, "bars": bars}))
    else:
        alone, crowd = found["sentence_seconds"], found["answer_seconds"]
        print(f"first view       {1000 * found['first_view_seconds']:.0f} ms")
        print(
            f"one visitor      {1000 * alone['median']:.0f} ms, at worst {1000 * alone['worst']:.0f} ms, {WORDS} words"
        )
        print(f"{found['clients']} clients       {found['answers']} answers, {found['errors']} errors")
        print(
            f"                 median {crowd['median']:.2f} s, p99 {crowd['p99']:.2f} s, worst {crowd['worst']:.2f} s"
        )
        print(f"memory           {sizes[1]:.0f} MB early, {sizes[-1]:.0f} MB at the end")
        for name, is_met in bars.items():
            print(f"{'met   ' if is_met else 'MISSED'}           {name}")
        for error in found["first_errors"]:
            print(error)
    sys.exit(0 if all(bars.values()) else 1)


if __name__ == "__main__":
    main()
