"""The search for a spec: within its bound, reproducible, resumable, and clear about what it can't do."""

import json
from itertools import combinations

import pytest
import torch
from torch import nn

from g2lstm import G2LSTM, G2Error, compress, prepare_, save, search
from g2lstm.compression.curve import Option, Unit, deviation_from, path, spec_of
from g2lstm.compression.model import encoded_matrices
from g2lstm.compression.search import Search
from g2lstm.compression.spec import Spec
from g2lstm.compression.targets import find_targets

FEW = ("int8", "int4", "int2", "bits:2,zipf")


class Tagger(nn.Module):
    """A model as others write them, with tied weights, a convolution and outputs in a dict."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.front = nn.Conv1d(16, 16, 3, padding=1)
        self.lstm = nn.LSTM(16, 16)
        self.ours = G2LSTM(16, 16)
        self.head = nn.Linear(16, 30)
        self.head.weight = self.embedding.weight

    def forward(self, tokens, scale=1.0):
        x = self.front(self.embedding(tokens).permute(1, 2, 0)).permute(2, 0, 1)
        out, (h, _) = self.ours(self.lstm(x)[0])
        return {"scores": self.head(out) * scale, "states": [h], "length": len(tokens)}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Tagger().eval()


TOKENS = torch.randint(30, (9, 4), generator=torch.Generator().manual_seed(1))


def test_the_smallest_file_within_a_deviation(model, tmp_path):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    calls = []
    found = search(model, TOKENS, max_loss=0.05, encodings=FEW, show=lambda *what: calls.append(what))
    small = compress(model, str(found.spec))
    deviation = deviation_from(model, [TOKENS])
    assert 0 < deviation(small) <= 0.05
    assert found.point.measured == pytest.approx(deviation(small), rel=1e-4)
    save(small, tmp_path / "small.safetensors")
    assert found.point.size == (tmp_path / "small.safetensors").stat().st_size < found.before
    smaller = [point for point in found.curve if point.size < found.point.size]
    assert all(one.measured is None or one.measured > 0.05 for one in smaller)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert {what for what, _, _ in calls} == {"measuring matrices", "measuring choices"}
    assert all(0 < done <= total for _, done, total in calls)
    assert "chosen" in repr(found)
    assert repr(found).endswith(str(found.spec))
    again = compress(model, data=[TOKENS], max_loss=0.05)
    assert deviation(again) <= 0.05


def test_expected_and_measured_losses_agree(model):
    """Deviations of single matrices add up as squares."""
    found = search(model, TOKENS, max_loss=0.03, encodings=("int8", "int6", "int4"))
    known = [(point.expected, point.measured) for point in found.curve if point.measured is not None]
    assert len(known) > 2
    for expected, measured in known:
        assert expected == pytest.approx(measured, rel=0.4)


def test_the_best_model_within_a_budget(model, tmp_path):
    sizes = []
    for budget in (15_000, 12_000, 9_000):
        found = search(model, [(TOKENS,), {"tokens": TOKENS, "scale": 2.0}], budget=budget, encodings=FEW)
        save(compress(model, found.spec), tmp_path / "small.safetensors")
        sizes.append((tmp_path / "small.safetensors").stat().st_size)
        assert sizes[-1] == found.point.size <= budget
    assert sizes == sorted(sizes, reverse=True)


def test_a_metric(model):
    targets = TOKENS.roll(-1, 0)

    def metric(one, batch):
        tokens, expected = batch
        return nn.functional.cross_entropy(one(tokens)["scores"].flatten(0, 1), expected.flatten())

    found = search(model, [(TOKENS, targets)], metric, max_loss=0.01, encodings=FEW)
    with torch.no_grad():
        before, after = (float(metric(one, (TOKENS, targets))) for one in (model, compress(model, found.spec)))
    assert (after - before) / before == pytest.approx(found.point.measured, abs=1e-6)
    assert found.point.measured <= 0.01
    negative = search(
        model, [0], lambda one, _: float(metric(one, (TOKENS, targets))) - 100, max_loss=1e-4, encodings=FEW
    )
    assert negative.point.measured <= 1e-4


def test_the_spec_makes_the_same_choice_again(model):
    """Every unit gets an encoding of its own, tied weights and a convolution too."""
    matrices = find_targets(model).matrices
    finder = Search(model, lambda one: 1.0)
    pattern = ["keep", "int8", "int4", "levels:3", "int2", "bits:2.0"]
    for shift in range(6):
        choice = {unit: pattern[(index + shift) % 6] for index, unit in enumerate(finder.units)}
        spec = Spec.parse(str(spec_of(choice, matrices)))
        found = encoded_matrices(compress(model, spec))
        for unit, encoding in choice.items():
            for name in unit.matrices:
                expected = finder._encoded(name, encoding)
                assert name not in found or (found[name].decode() == expected.decode()).all()
                assert (name in found) or encoding == "keep"
    assert str(spec_of(dict.fromkeys(finder.units, "int4"), matrices)).startswith(
        "gates=int4; cell=int4; embedding=int4"
    )


def test_a_journal_continues_a_search(model, tmp_path):
    journal = tmp_path / "search.json"
    counted = []

    def metric(one, _):
        counted.append(1)
        if len(counted) == 20:
            raise KeyboardInterrupt
        return one(TOKENS)["scores"].square().mean()

    with pytest.raises(KeyboardInterrupt):
        search(model, [0], metric, max_loss=0.01, encodings=FEW, journal=journal)
    kept = json.loads(journal.read_text())["losses"]
    assert len(kept) == 19
    found = search(model, [0], metric, max_loss=0.01, encodings=FEW, journal=journal)
    done = len(counted)
    again = search(model, [0], metric, max_loss=0.01, encodings=FEW, journal=journal)
    assert (len(counted), again.spec) == (done, found.spec)  # nothing had to be measured
    whole = search(model, [0], metric, max_loss=0.01, encodings=FEW)
    assert whole.spec == found.spec
    assert len(counted) - done == done - 1  # what was interrupted was all that was measured twice
    with torch.no_grad():
        model.head.bias.add_(1)
    search(model, [0], metric, max_loss=0.01, encodings=FEW, journal=journal)  # of other weights: all anew
    assert len(counted) > 2 * done
    journal.write_text("[]")
    with pytest.raises(G2Error, match="is not the journal of a search: .*; delete it"):
        search(model, [0], metric, max_loss=0.01, encodings=FEW, journal=journal)


def units(*names):
    return [Unit(name, "linear", (name,)) for name in names]


def test_no_choice_beats_those_on_the_curve():
    generator = torch.Generator().manual_seed(0)
    a, b, c = units("a", "b", "c")
    options = {}
    for unit in (a, b, c):
        sizes = torch.randperm(90, generator=generator)[:4].sort(descending=True).values.tolist()
        losses = torch.rand(4, generator=generator).sort().values.tolist()
        options[unit] = [
            Option("keep", 100, 0.0),
            *(Option(f"e{size}", size, one) for size, one in zip(sizes, losses, strict=True)),
        ]
    of = {(unit, one.encoding): one for unit, own in options.items() for one in own}

    def total(choice):
        chosen = [of[unit, encoding] for unit, encoding in choice.items()]
        return sum(one.size for one in chosen), sum(one.loss for one in chosen)

    curve = [total(choice) for choice in path(options)]
    assert curve[0] == (300, 0.0)
    assert curve == sorted(curve, reverse=True, key=lambda point: (point[0], -point[1]))
    everything = [
        total({a: one.encoding, b: other.encoding, c: third.encoding})
        for one in options[a]
        for other in options[b]
        for third in options[c]
    ]
    assert min(everything)[0] == curve[-1][0]
    for (size, loss), (smaller, higher) in combinations(curve, 2):
        for other_size, other_loss in everything:
            if smaller < other_size < size:  # no point lies below the line between two of the curve
                line = loss + (higher - loss) * (size - other_size) / (size - smaller)
                on_hull = min((point for point in curve if point[0] <= other_size), key=lambda p: -p[0])
                assert other_loss >= min(line, on_hull[1]) - 1e-9 or other_loss >= loss - 1e-9


def test_noise_below_zero_and_equal_sizes():
    a, b = units("a", "b")
    options = {
        a: [Option("keep", 10, 0.0), Option("x", 8, 0.0), Option("y", 8, 0.5), Option("z", 2, 0.0)],
        b: [Option("keep", 10, 0.0), Option("x", 5, 1.0)],
    }
    assert [tuple(choice.values()) for choice in path(options)] == [("keep", "keep"), ("z", "keep"), ("z", "x")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give either max_loss or budget"),
        ({"max_loss": 0.1, "budget": 5}, "give either max_loss or budget"),
        ({"max_loss": 0}, "max_loss must be a number above 0, got 0"),
        ({"max_loss": float("nan")}, "max_loss must be a number above 0, got nan"),
        ({"budget": "2MB"}, "budget must be a number above 0, got '2MB'"),
        ({"budget": 100}, r"no choice fits into 100 bytes: the least that these encodings reach is \d+,\d{3}; raise"),
        ({"budget": 10**9}, "already fit into 1,000,000,000; lower the budget"),
        ({"max_loss": 1e-9}, "no encoding keeps the loss within 0.000%: the cheapest, int8 for .*, already loses"),
        ({"max_loss": 0.1, "encodings": ["small"]}, "'gates=levels:5; .*' is not an encoding to try"),
        ({"max_loss": 0.1, "encodings": ["int9"]}, "int9"),
    ],
)
def test_bounds_that_make_no_sense(model, options, message):
    with pytest.raises(G2Error, match=message):
        search(model, TOKENS, **{"encodings": ["int8", "int4"], **options})


def test_data_and_metrics_that_make_no_sense(model):
    def refused(message, data=TOKENS, metric=None, one=model):
        with pytest.raises(G2Error, match=message):
            search(one, data, metric, max_loss=0.1, encodings=["int8"])

    refused("data has no batches", [])
    refused(r"Tagger can't take batch 1, a tensor \(2, 3, 4, 5\) of torch.float32: ", [TOKENS, torch.zeros(2, 3, 4, 5)])
    refused(r"can't take batch 0, \(a tensor .*, str, int\): .*a tuple of arguments or a dict", [(TOKENS, "x", 3)])
    refused("the metric is NaN for the model itself", [0], lambda *_: float("nan"))
    values = iter([2.0])
    refused("the metric is NaN for .*: int8; it must be a number", [0], lambda *_: next(values, float("nan")))
    refused("the metric must be a number, got 'good'", [0], lambda *_: "good")
    refused("the metric of the model itself is 0.0; a loss relative to it", [0], lambda *_: 0.0)
    refused("the metric of the model itself is inf", [0], lambda *_: float("inf"))
    refused("found no recurrent layer", torch.zeros(2, 3), None, nn.Linear(3, 3))

    silent = nn.Sequential(nn.LSTM(3, 3), nn.Identity())
    silent.forward = lambda x: x.long()
    refused("the model has no floating-point outputs", torch.ones(2, 3), None, silent)
    silent.forward = lambda x: x * float("nan")
    refused("the outputs of the model itself are NaN or infinite", torch.ones(2, 3), None, silent)
    with pytest.raises(G2Error, match="give either a spec, got 'int8', or data to search for one; not both"):
        compress(model, "int8", data=TOKENS, max_loss=0.1)
    with pytest.raises(G2Error, match="a search needs data"):
        compress(model, max_loss=0.1)
    prepare_(model, "int8")
    refused("prepared for one spec already; call g2lstm.unprepare_")


def test_an_encoding_that_diverges_is_left_out(model):
    def metric(one, _):
        rows = [row for parameter in one.parameters() if parameter.dim() > 1 for row in parameter.flatten(1)]
        return float("inf") if min(len(torch.unique(row)) for row in rows) <= 3 else 1.0

    found = search(model, [0], metric, max_loss=0.9, encodings=["int8", "levels:3"])
    assert "levels" not in str(found.spec)
