"""How time and memory are measured."""

import numpy as np

from g2lstm.lab.bench import measure


def allocate(megabytes):
    np.ones(megabytes * 2**20, np.uint8)


def test_peak_memory_is_what_a_function_takes_beyond_its_warm_up():
    peak = measure.peak_memory(allocate, (8,), (64,))
    assert peak is None or 60 < peak < 80  # None where the system does not tell


def test_where_the_system_does_not_tell_the_function_runs_all_the_same(monkeypatch, tmp_path):
    called, sent = [], []
    monkeypatch.setattr(measure, "_HIGH_WATER", tmp_path / "no" / "proc")
    monkeypatch.setattr(measure.torch, "set_num_threads", lambda _: None)
    sender = type("Sender", (), {"send": staticmethod(sent.append)})
    measure._measure_peak(sender, 1, called.append, ("warm-up",), ("measured",))
    assert (called, sent) == (["warm-up", "measured"], [None])


def test_rounds_are_interleaved_and_the_first_is_not_counted():
    order = []
    jobs = {name: lambda name=name: order.append(name) for name in "ab"}
    seconds = measure.interleaved(jobs, 3, fill=0.0)
    assert order == ["a", "b"] * 4
    assert {name: len(times) for name, times in seconds.items()} == {"a": 3, "b": 3}


def test_the_ratio_is_the_median_of_those_of_each_round():
    assert measure.median_ratio([2.0, 9.0, 1.0], [1.0, 3.0, 1.0]) == 2.0
