"""Threads of the compiled session: they change no result, several sessions share them, a forked process has its own."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from g2lstm.compression.encodings import LowRank
from g2lstm.compression.kernel import KernelSession
from g2lstm.compression.session import Layer, Term
from tests.compression.stacks import assert_within_bounds, layer, matrix, softmax


def wide(form, rng):
    """Large enough for three threads."""
    return [layer(96, 512, form, rng), layer(512, 512, form, rng)]


@pytest.mark.parametrize("form", ["dense", "int8", "int4"])
def test_sequences_equal_steps_and_threads_change_nothing(form):
    rng = np.random.default_rng(6)
    layers = wide(form, rng)
    x = rng.normal(size=(30, 96)).astype(np.float32)
    alone = KernelSession(layers, threads=1)
    expected = np.stack([alone.step(one) for one in x])
    states = alone.get_state()
    alone.reset()
    assert np.array_equal(alone.sequence(x), expected)
    for threads in (2, 3):
        session = KernelSession(layers, threads=threads)
        assert session.threads == threads
        for _ in range(3):  # a race shows now and then only
            session.reset()
            first = session.sequence(x[:13])
            rest = [session.step(one) for one in x[13:]]
            assert np.array_equal(np.concatenate([first, rest]), expected)
            assert np.array_equal(session.get_state(), states)
    assert session.sequence(x[:0]).shape == (0, 512)


def test_low_rank_with_threads():
    rng = np.random.default_rng(7)
    thin = LowRank(matrix("int8", 600, 300, rng), matrix("int8", 300, 600, rng))
    terms = tuple(Term(thin, source, gate) for source in ("h", "x") for gate in range(4))
    layers = [Layer(600, terms, rng.normal(size=2400).astype(np.float32))]
    sessions = [KernelSession(layers, threads=threads) for threads in (1, 2)]
    assert [one.threads for one in sessions] == [1, 2]
    x = rng.normal(size=(20, 600)).astype(np.float32)
    assert np.array_equal(*(one.sequence(x) for one in sessions))
    assert_within_bounds(sessions[1], layers, x[:3])


@pytest.mark.parametrize("form", ["int8", "low rank int8 int8"])
def test_a_softmax_with_threads(form):
    rng = np.random.default_rng(17)
    layers, top = [layer(20, 300, form, rng)], softmax(10_007, 300, form, rng)
    if form != "int8":
        top = Layer.softmax(LowRank(matrix("int8", 10_007, 90, rng), matrix("int8", 90, 300, rng)), top.bias)
    x = rng.normal(size=(5, 20)).astype(np.float32)
    sessions = [KernelSession(layers, "", threads, top) for threads in (1, 2, 3)]
    assert [session.threads for session in sessions] == [1, 2, 3]
    first, *others = (session.sequence(x) for session in sessions)
    assert all(np.array_equal(first, other) for other in others)
    assert np.array_equal(sessions[0].sequence(x)[2], [sessions[1].step(one) for one in x][2])


def test_sessions_at_the_same_time():
    """There is one team of threads: whoever comes second works alone. One session's calls follow each other."""
    rng = np.random.default_rng(8)
    layers = wide("int8", rng)
    x = rng.normal(size=(40, 96)).astype(np.float32)
    expected = KernelSession(layers, threads=1).sequence(x)
    results = {}

    def read(name):
        session = KernelSession(layers, threads=2)
        results[name] = session.sequence(x)

    readers = [threading.Thread(target=read, args=(name,)) for name in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert len(results) == 4
    assert all(np.array_equal(result, expected) for result in results.values())


def test_one_session_in_several_threads():
    """Calls follow each other, whichever thread they come from: as many steps are made as were asked for."""
    rng = np.random.default_rng(20)
    layers = [layer(3, 40, "int8", rng)]
    session, x = KernelSession(layers), np.ones(3, np.float32)
    steps = [[], [], []]

    def read(found):
        found.extend(session.step(x) for _ in range(50))

    readers = [threading.Thread(target=read, args=(found,)) for found in steps]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    expected = KernelSession(layers).sequence(np.ones((150, 3)))
    assert sorted(out.tobytes() for found in steps for out in found) == sorted(out.tobytes() for out in expected)


FORK = """
import os, threading
import numpy as np
from tests.compression.test_team import KernelSession, wide
layers, x = wide("int8", np.random.default_rng(0)), np.ones((20, 96), np.float32)
session, other = KernelSession(layers, threads=2), KernelSession(layers, threads=2)
expected = session.sequence(x)
stop = threading.Event()
def read():
    while not stop.is_set():
        other.sequence(x)
reader = threading.Thread(target=read, daemon=True)
reader.start()
for turn in range(20):  # at any moment: workers at work, asleep, or about to be
    child = os.fork()
    session.reset()
    same = np.array_equal(session.sequence(x), expected)
    if child == 0:
        tasks = "/proc/self/task"
        has_worker = not os.path.exists(tasks) or len(os.listdir(tasks)) > 1
        os._exit(0 if same and has_worker else 1)
    assert same and os.waitpid(child, 0)[1] == 0
    if turn == 10:
        stop.set()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot fork here")
def test_a_forked_process_has_workers_of_its_own():
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=1200, cwd=Path(__file__).parents[2])
