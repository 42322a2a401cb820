"""Histograms over training time: what training writes is what the picture shows."""

import numpy as np
import pytest
import torch

from g2lstm import G2LSTM, record_gates
from g2lstm.look.pictures.training import draw_history, gate_history
from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.task import Validation, histograms
from g2lstm.training.progress import Metrics, TrainingProgress
from tests.look.toys import language_run


def write(run, *validations):
    with Metrics(run) as metrics:
        for step, (tokens, gates) in enumerate(validations):
            progress = TrainingProgress(step=step, tokens=tokens, epoch=1, seconds=2.0)
            metrics.on_validation(progress, Validation(1.0, {"x": 2.0}, 1.0, gates), is_best=False)


@pytest.fixture
def run(tmp_path):
    return RunDirectory(language_run(tmp_path))


def test_what_is_written_is_read(run):
    early, late = {"input": [1, 3, 0, 0], "forget": [0, 0, 0, 9]}, {"input": [2, 0, 0, 2], "forget": [0, 1, 1, 0]}
    write(run, (0, early), (500, early), (500, late), (2000, late))
    history = gate_history(run.metrics())
    assert history.tokens.tolist() == [0, 500, 2000]
    assert history.shares["input"].tolist() == [[25, 75, 0, 0], [50, 0, 0, 50], [50, 0, 0, 50]]  # the later at 500
    assert history.shares["forget"].tolist() == [[0, 0, 0, 100], [0, 50, 50, 0], [0, 50, 50, 0]]
    assert history.token_edges.tolist() == [0, 250, 1250, 2750]
    assert history.top == 100
    assert [line["kind"] for line in run.metrics()] == ["valid", "gates"] * 4


def test_a_beginning_where_all_gates_are_alike_does_not_take_the_colours(run):
    even, alike = [5] * 20, [0] * 9 + [50, 50] + [0] * 9
    later = [(100_000 * k, {"input": [6, *even[2:], 4], "forget": even}) for k in range(1, 10)]
    write(run, (0, {"input": alike, "forget": alike}), *later)
    history = gate_history(run.metrics())
    assert history.shares["input"].max() == 50
    assert history.top < 7
    figure = draw_history({"one": history})
    assert figure.axes[0].collections[0].norm.vmax == history.top
    assert figure.axes[-1].get_ylabel() == "% of values, in bins of 0.05"
    assert figure.axes[1].collections[0].colorbar.extend == "max"


def test_runs_without_counts_have_no_history(run):
    assert gate_history(run.metrics()) is None
    write(run, (0, {}), (10, {}))
    assert [line["kind"] for line in run.metrics()] == ["valid", "valid"]
    assert gate_history(run.metrics()) is None
    write(run, (20, {"input": [1], "forget": [1]}))
    assert gate_history(run.metrics()) is None  # one validation is no history
    run.append_metrics({"kind": "gates", "step": 9, "tokens": 9, "seconds": 1.0})
    assert gate_history(run.metrics()) is None


def test_numbers_that_training_never_wrote_are_no_history(run):
    write(run, (0, {"input": [0, -4], "forget": [0, 0]}), (10, {"input": [0, 0], "forget": [0, 0]}))
    assert gate_history(run.metrics()) is None
    write(run, (20, {"input": [-1, 1e99], "forget": [3, 2]}), (30, {"input": [1, 1e300], "forget": [1, 1]}))
    run.append_metrics({"kind": "gates", "step": 1, "tokens": float("nan"), "seconds": 1.0, "input/0": 1, "input/1": 1})
    history = gate_history(run.metrics())
    assert history.tokens.tolist() == [0, 20]
    assert all(np.isfinite(each).all() and (each >= 0).all() for each in history.shares.values())


def test_training_counts_the_gates_of_all_layers():
    model = torch.nn.Sequential(G2LSTM(4, 6, bidirectional=True, batch_first=True)).eval()
    packed = torch.nn.utils.rnn.pack_sequence([4 * torch.randn(n, 4) for n in (5, 2)])
    with torch.no_grad(), record_gates(model) as record:
        model[0](packed)
    found = histograms(record)
    for gate in ("input", "forget"):
        values = torch.cat([each.flatten() for each in getattr(record["0"][0], gate)])
        values = values[values.isfinite()]
        assert len(values) == 2 * 7 * 6
        assert found[gate] == [sum(k <= 20 * v < k + 1 for v in values.tolist()) for k in range(20)]
    assert histograms(None) == {"input": [0] * 20, "forget": [0] * 20}


def test_the_picture_has_the_shares(run):
    gates = {"input": [1, 3, 0, 0], "forget": [0, 0, 0, 9]}
    write(run, (0, gates), (1_000_000, {**gates, "input": [0, 0, 2, 2]}))
    history = gate_history(run.metrics())
    figure = draw_history({"a $ b": history, "two": history})
    panels = np.array(figure.axes[:4]).reshape(2, 2)
    for row, gate in zip(panels, ("input", "forget"), strict=True):
        for axes in row:
            (mesh,) = axes.collections
            np.testing.assert_array_equal(np.asarray(mesh.get_array()), history.shares[gate].T)
    assert panels[0, 0].get_title().startswith("a $ b")
    assert panels[0, 0].get_xlim() == pytest.approx((0, 1.5))
    assert "evaluation" in figure.get_suptitle()
