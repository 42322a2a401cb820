"""The compiled count and the plain one: both those of a direct count, whatever the width, the threads, the build."""

import pytest
import torch

from g2lstm import G2Error
from g2lstm.look import counting
from g2lstm.nn.kernel import BUILDS, Found


@pytest.fixture(params=["plain", *BUILDS])
def count(request, monkeypatch):
    """Each of the ways to count; of the compiled ones those that this processor can run."""
    capability, names = torch.backends.cpu.get_cpu_capability(), list(BUILDS)
    if request.param == "plain":
        monkeypatch.setattr(counting, "find", lambda: Found(None, "taken away"))
        yield counting.count
        return
    if capability not in names or names.index(request.param) < names.index(capability):
        pytest.skip(f"this processor ({capability}) cannot run it")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: request.param)
    counting.find.cache_clear()
    assert counting.find().description == f"compiled for {request.param}"
    yield counting.count
    counting.find.cache_clear()


def gates(rows, units):
    values = torch.sigmoid(4 * torch.randn(rows, units))
    values.view(-1)[::7] = torch.arange(len(values.view(-1)[::7])).remainder(101) / 100  # edges of bins, 0 and 1
    return values


def check(found, values):
    exact = values.double()
    direct = torch.histc((values * 100).floor().clamp(max=99).double(), 100, 0, 100).long()
    assert found.counts.tolist() == direct.tolist()
    assert found.steps == len(values)
    assert found.ones.tolist() == (values >= 0.5).sum(0).tolist()
    assert found.upper == pytest.approx(exact[exact >= 0.5].sum().item(), rel=1e-5)
    torch.testing.assert_close(found.sums, exact.sum(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.halvings, -exact.clamp(1e-6, 1 - 1e-6).log2().sum(0), rtol=1e-4, atol=1e-4)


def test_the_kernel_is_compiled_here():
    assert counting.find().library is not None, counting.find().description


@pytest.mark.parametrize("units", [1, 3, 7, 8, 16, 17, 33, 300])
@pytest.mark.parametrize("rows", [1, 3, 4, 129, 700])
def test_a_direct_count_finds_the_same(count, rows, units):
    values = gates(rows, units)
    check(count(values, is_memory=True), values)
    assert count(values).halvings.tolist() == [0] * units


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(count, threads):
    values = gates(1001, 301)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        check(count(values, is_memory=True), values)
    finally:
        torch.set_num_threads(before)


def test_rows_that_are_not_finite_are_left_out(count):
    values = gates(40, 19)
    holed = values.clone()
    holed[3], holed[5, 18], holed[7, 0] = torch.nan, torch.nan, torch.inf
    kept = [row for row in range(40) if row not in (3, 5, 7)]
    check(count(holed, is_memory=True), values[kept])
    nothing = count(torch.full((2, 5), torch.nan), is_memory=True)
    assert nothing.steps == nothing.counts.sum() == nothing.sums.sum() == nothing.halvings.sum() == 0
    assert count(torch.empty(0, 5)).steps == 0


@pytest.mark.parametrize("value", [-0.001, 1.0001, 7.0, -1e30])
@pytest.mark.parametrize("place", [0, 18])
def test_what_is_no_gate_is_refused(count, value, place):
    values = gates(10, 19)
    values[6, place] = value
    with pytest.raises(G2Error, match="a gate lies between 0 and 1, got values from"):
        count(values)
    assert count(torch.tensor([[-0.0, 1.0]])).counts[[0, 99]].tolist() == [1, 1]


def test_any_precision_and_layout(count):
    values = gates(12, 20)
    check(count(values.t().contiguous().t(), is_memory=True), values)
    half = values.bfloat16()
    check(count(half, is_memory=True), half.float())
