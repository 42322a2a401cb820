"""Counts of gate values: those of a direct count, whatever the pieces they came in."""

import math

import pytest
import torch
from torch import nn

from g2lstm import G2LSTM, G2Error
from g2lstm.look import GateHistogram, watch
from g2lstm.tasks.reading import Place


def histogram_of(*pieces):
    histogram = GateHistogram(pieces[0].size(-1), is_memory=True)
    for piece in pieces:
        histogram.add(piece)
    return histogram


@pytest.mark.parametrize(("rows", "units"), [(1, 1), (3, 7), (129, 300), (700, 33), (2, 200_000)])
def test_counts_are_those_of_a_direct_count(rows, units, monkeypatch):
    monkeypatch.setattr("g2lstm.look.counts._BLOCK", 5000)  # several blocks
    values = torch.sigmoid(4 * torch.randn(rows, units))
    some = values.view(-1)[::7]
    some.copy_(torch.arange(len(some)).remainder(101) / 100)  # edges of bins, 0 and 1
    histogram = histogram_of(values[: rows // 2], values[rows // 2 :])
    direct = torch.histc((values * 100).floor().clamp(max=99).double(), 100, 0, 100).long()
    assert histogram.counts.tolist() == direct.tolist()
    assert histogram.steps == rows
    lives = rows / -values.double().clamp(1e-6, 1 - 1e-6).log2().sum(0)
    assert histogram.half_lives() == pytest.approx(
        lives.quantile(torch.tensor([0.1, 0.5, 0.9]).double()).tolist(), rel=1e-3
    )
    assert histogram.values == values.numel()
    assert histogram.below == (values < 0.1).double().mean().item()
    assert histogram.above == (values >= 0.9).double().mean().item()
    assert histogram.mean == pytest.approx(values.double().mean().item())
    assert histogram.distance == pytest.approx(torch.minimum(values, 1 - values).double().mean().item(), rel=1e-5)


@pytest.mark.parametrize("edge", [0.1, 0.9])
def test_the_edges_are_exact(edge):
    at = torch.tensor(edge)
    before, after = (torch.nextafter(at, torch.tensor(end)) for end in (0.0, 1.0))
    counts = histogram_of(torch.stack([before, at, after]).view(3, 1)).counts
    bin_of_edge = round(edge * 100)
    assert (counts[bin_of_edge - 1].item(), counts[bin_of_edge].item()) == (1, 2)


def test_rows_of_padding_are_left_out():
    values = torch.rand(9, 2, 4)
    padded = values.clone()
    padded[5:, 1] = torch.nan
    histogram, expected = histogram_of(padded), histogram_of(values[:5].flatten(0, 1), values[5:, 0])
    assert histogram.steps == 14
    assert histogram.counts.tolist() == expected.counts.tolist()
    assert histogram.mean == pytest.approx(expected.mean)
    assert histogram.half_lives() == pytest.approx(expected.half_lives())
    padded[0, 0, 0] = torch.inf
    assert histogram_of(padded).steps == 13
    nothing = histogram_of(torch.full((2, 5), torch.nan), torch.empty(0, 5))
    assert nothing.steps == nothing.counts.sum() == 0


@pytest.mark.parametrize("value", [-0.001, 1.0001, 7.0, -1e30])
@pytest.mark.parametrize("unit", [0, 18])
def test_values_that_cannot_be_gates_are_refused(value, unit):
    values = torch.rand(10, 19)
    values[6, unit] = value
    with pytest.raises(G2Error, match="a gate lies between 0 and 1, got values from"):
        histogram_of(values)
    assert histogram_of(torch.tensor([[-0.0, 1.0]])).counts[[0, 99]].tolist() == [1, 1]


def test_any_precision_and_layout():
    values = torch.rand(12, 20)
    turned, half = values.t().contiguous().t(), values.bfloat16()
    assert histogram_of(turned).counts.tolist() == histogram_of(values).counts.tolist()
    assert histogram_of(half).counts.tolist() == histogram_of(half.float()).counts.tolist()


def test_entropy_is_that_of_each_units_decision():
    always, never = torch.full((8, 1), 0.7), torch.zeros(8, 1)
    coin = torch.tensor([0.5, 0.4999] * 4).unsqueeze(1)  # a half is open, as for hard gates
    rare = torch.tensor([0.9] + [0.1] * 7).unsqueeze(1)
    assert histogram_of(torch.cat([always, never], 1)).entropy == 0
    assert histogram_of(coin).entropy == pytest.approx(1)
    bits = -(math.log2(1 / 8) / 8 + 7 / 8 * math.log2(7 / 8))
    assert histogram_of(torch.cat([rare, always], 1)).entropy == pytest.approx(bits / 2)


def test_half_life():
    steady = torch.full((50, 1), 0.5 ** (1 / 7))
    assert histogram_of(steady).half_lives() == pytest.approx([7, 7, 7], rel=1e-5)
    slow, fast = torch.full((4, 1), 0.5**0.01), torch.full((4, 1), 0.25)
    assert histogram_of(torch.cat([slow, fast], 1)).half_lives((0.0, 1.0)) == pytest.approx([0.5, 100], rel=1e-3)
    # what is left after n steps is the product of the gates, which is what the half-life foretells
    gates = torch.rand(400, 1, dtype=torch.float64)
    (life,) = histogram_of(gates).half_lives((0.5,))
    assert gates.log2().sum().item() == pytest.approx(-400 / life, rel=1e-3)
    closed_once = torch.cat([torch.zeros(1, 1), torch.full((99, 1), 0.9999)])
    assert histogram_of(closed_once).half_lives((0.5,))[0] == pytest.approx(100 / 19.95, rel=1e-3)
    assert histogram_of(torch.ones(5, 1)).half_lives((0.5,))[0] == pytest.approx(math.log(2) * 1e6, rel=0.1)


def test_half_life_of_binary_gates():
    """A gate that is open with probability p keeps a memory for n steps with probability p^n."""
    opened = (torch.arange(100) % 4 > 0).float().unsqueeze(1)  # three times of four
    (life,) = histogram_of(opened).half_lives((0.5,))
    assert 0.75**life == pytest.approx(0.5)
    closed = torch.zeros(100, 1)
    assert histogram_of(torch.cat([opened, closed], 1)).half_lives((0.0,))[0] < 0.1


def test_mistakes():
    with pytest.raises(G2Error, match="no gates were counted"):
        _ = GateHistogram(3).mean
    with pytest.raises(G2Error, match="the gates of 3 units, got 4"):
        GateHistogram(3).add(torch.rand(2, 4))
    closed = GateHistogram(3)
    closed.add(torch.rand(2, 3))
    with pytest.raises(G2Error, match="only the histogram of a forget gate"):
        closed.half_lives()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lower = G2LSTM(5, 6, bidirectional=True)
        self.upper = nn.LSTM(12, 4, 2)

    def forward(self, x):
        return self.upper(self.lower(x)[0])[0]


def test_any_model_can_be_watched():
    model = Model().eval()
    inputs = [torch.randn(length, 2, 5) for length in (3, 7, 4)]
    with watch(model) as statistics:
        for x in inputs:
            model(x)
        assert [histograms["input"].steps for histograms in statistics.values()] == [28, 28, 28, 28]
    assert [(place.name, place.direction) for place in statistics] == [
        ("lower", "forward"),
        ("lower", "backward"),
        ("upper.l0", "forward"),
        ("upper.l1", "forward"),
    ]
    gates = [model.lower(x, return_gates=True)[2] for x in inputs]
    for index, direction in enumerate(("forward", "backward")):
        histograms = statistics[Place("lower", direction, f"lower, {direction}")]
        for gate, histogram in histograms.items():
            expected = histogram_of(*(getattr(each, gate)[index] for each in gates))
            assert histogram.counts.tolist() == expected.counts.tolist()
            assert histogram.mean == pytest.approx(expected.mean)
    summary = statistics.summary()
    assert summary[1]["title"] == "lower, backward"
    assert set(summary[3]["gates"]["forget"]) - set(summary[3]["gates"]["input"]) == {"half_life_steps"}
    model.train()
    with watch(model.lower) as other:
        model.lower(inputs[0])
        model.lower.forward(inputs[0])
    assert next(iter(other.values()))["output"].steps == 12


def test_watching_keeps_no_gates():
    layer = G2LSTM(5, 6).eval()
    with watch(layer), torch.no_grad():
        kept = layer._gate_listener.__self__
        layer(torch.randn(4, 2, 5))
        assert kept == []


def test_packed_sequences_have_no_padding():
    layer = G2LSTM(5, 6, bidirectional=True).eval()
    packed = nn.utils.rnn.pack_sequence([torch.randn(n, 5) for n in (6, 3, 1)])
    with watch(layer) as statistics:
        layer(packed)
    assert [histograms["forget"].steps for histograms in statistics.values()] == [10, 10]
