"""How time and memory are measured."""

import numpy as np
import psutil
import pytest

from g2lstm.lab.bench import measure
from g2lstm.runs.compressed import interleaved


def allocate(megabytes):
    np.ones(megabytes * 2**20, np.uint8)


@pytest.mark.slow  # a process of its own imports torch
def test_peak_memory_is_what_a_function_takes_beyond_its_warm_up():
    larger = np.ones(500 * 2**20, np.uint8)  # in this process, which must not be counted
    assert 240 < measure.peak_memory(allocate, (80,), (256,)) < 275  # pages of libraries come and go
    del larger


@pytest.mark.slow  # a process of its own imports torch
def test_a_process_that_fails_is_an_error_here():
    with pytest.raises(ValueError, match="maximum supported dimension"):
        measure.peak_memory(allocate, (8,), ("much",))


def test_rounds_are_interleaved_and_the_first_is_not_counted():
    order = []
    jobs = {name: lambda name=name: order.append(name) for name in "ab"}
    seconds = interleaved(jobs, 3, fill=0.0)
    assert order == ["a", "b"] * 4
    assert {name: len(times) for name, times in seconds.items()} == {"a": 3, "b": 3}


def test_long_jobs_take_fewer_rounds_but_three():
    seconds = interleaved({"a": lambda: None}, 9, most=0.0)
    assert len(seconds["a"]) == 3


def test_the_ratio_is_the_median_of_those_of_each_round():
    found = measure.timings({"ours": [2.0, 9.0, 1.0], "peer": [1.0, 3.0, 1.0]}, "peer")
    assert found == {"ours": (2.0, 2.0), "peer": (1.0, 1.0)}


def test_a_row_in_a_table():
    row = {"shape": (3, 2), "name": "ours", "ms": 12.345, "peak": None}
    fields = [measure.Field("shape", "B,I"), measure.Field("name", "name"), measure.Field("ms", "ms", ".1f")]
    assert [field.text(row) for field in (*fields, measure.Field("peak", "MB", ".0f"))] == ["3,2", "ours", "12.3", "-"]


def test_others_are_busy_only_meanwhile():
    with measure.busy_beside(2):
        others = [one for one in psutil.Process().children() if "while True" in " ".join(one.cmdline())]
        assert len(others) == 2
    assert not any(one.is_running() for one in others)
