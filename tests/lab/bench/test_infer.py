"""The contestants of `g2lstm bench infer` compute the same, and its table says what was not measured."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch

from g2lstm.errors import G2Error
from g2lstm.lab.bench import infer, peers
from g2lstm.lab.bench.infer import CANDIDATES, IN_C, OURS, PEERS, Stack, make_candidate, make_stack, measure_stacks
from tests.cli.command import run as command

TINY = Stack(6, 32, 2)


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setattr(infer, "_PAUSE", 0.0)
    monkeypatch.setattr(infer, "_BURST", 1e-4)
    monkeypatch.setenv("G2LSTM_CACHE", str(tmp_path / "cache"))


def expected(lstm, inputs, steps):
    x = torch.from_numpy(np.resize(inputs, (steps, *inputs.shape[1:])))
    return lstm(x)[0][-1].numpy()


@pytest.mark.parametrize("name", list(PEERS))
def test_peers_compute_the_stack(name):
    if "OpenVINO" in name:
        pytest.importorskip("openvino")
    lstm, inputs = make_stack(TINY)
    inputs = inputs[:5]
    run = PEERS[name](lstm, inputs)
    for steps, in_all in ((3, 3), (4, 7), (1, 8)):  # states and inputs go on from call to call
        found = run(steps)
        wanted = expected(lstm, inputs, in_all)
        assert found.shape == wanted.shape
        off = np.abs(found - wanted).max()
        # Eight bits show; gates in a wrong order would show more.
        assert 1e-4 < off < 0.1 if "int8" in name else off < 1e-5


def test_ours_compute_the_stack_and_know_their_bytes():
    lstm, inputs = make_stack(TINY)
    sizes = {}
    for name, spec in OURS.items():
        run, sizes[name] = make_candidate(name, lstm, inputs)
        run(3)
        if spec is None or "int8" in name:
            np.testing.assert_allclose(run(2), expected(lstm, inputs, 5), atol=1e-5 if spec is None else 0.6)
    weights, rows = (6 + 32 + 32 + 32) * 128, 2 * 2 * 128
    assert sizes["ours, float32"] == 4 * (weights + rows)
    assert sizes["ours, int8"] == weights + 4 * rows + 4 * rows  # scales, biases
    assert list(sizes.values()) == sorted(sizes.values(), reverse=True)


@pytest.mark.parametrize("name", ["C, int8", *(pytest.param(one, marks=pytest.mark.slow) for one in list(IN_C)[1:])])
def test_c_computes_the_stack(name):
    if shutil.which("cc") is None:
        pytest.skip("there is no cc")
    lstm, inputs = make_stack(TINY)
    run, size = make_candidate(name, lstm, inputs)
    session, _ = make_candidate(name.replace("C,", "ours,").removesuffix(", plain -O2"), lstm, inputs)
    assert run(3).shape == (32,)
    session(3)
    np.testing.assert_allclose(run(70), session(70), atol=1e-3)  # beyond the last of the inputs
    assert 0 < size < 4 * (6 + 32 + 32 + 32) * 128


def test_c_needs_a_compiler_that_compiles(monkeypatch):
    for program, message in ((None, "there is no C compiler, cc"), ("/bin/false", "cc can't compile it: ")):
        monkeypatch.setattr("shutil.which", lambda name, program=program: program)
        with pytest.raises(G2Error, match=message):
            make_candidate("C, int8", *make_stack(TINY))


def test_the_table(monkeypatch):
    for name in IN_C:
        monkeypatch.setitem(IN_C, name, ("gates=int8", ("-O0",)))
    shown = []
    reports = list(measure_stacks(2, (TINY, Stack(3, 4, 1)), lambda *progress: shown.append(progress)))
    rows = [row for report in reports for row in report.rows]
    assert [row["name"] for row in rows] == [*CANDIDATES] * 2
    assert [row["stack"] for row in rows[:: len(CANDIDATES)]] == ["6→32×2", "3→4×1"]
    assert [(done, total) for what, done, total in shown if what == "rounds"] == [(0, 2), (1, 2), (2, 2)] * 2
    for k in (0, len(CANDIDATES)):
        fastest = min(
            (row for row in rows[k : k + len(PEERS)] if not row["missing"]), key=lambda row: row["microseconds"]
        )
        assert fastest["ratio"] == 1
    present = [row for row in rows if not row["missing"]]
    may_miss = {*IN_C, "OpenVINO float32"}  # where there is no compiler, or nobody wants to compare
    assert {row["name"] for row in rows} - {row["name"] for row in present} <= may_miss
    assert all(row["microseconds"] > 0 and row["ratio"] > 0 for row in present)
    sizes = [row["stored_bytes"] for row in rows[: len(CANDIDATES)]]
    assert [size is None for size in sizes][: -len(IN_C)] == [True] * len(PEERS) + [False] * len(OURS)
    assert str(Stack(650, 650, 2)) == "650×2"


def test_what_is_not_there_says_so(monkeypatch):
    for name in ("onnxruntime", "openvino"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delattr(torch.ao.quantization, "quantize_dynamic")
    monkeypatch.setattr(infer, "STACKS", (TINY,))
    monkeypatch.setattr("shutil.which", lambda name: None)
    done = command("bench", "infer", "--rounds", "1", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {"threads", "kernel", "stack", "name"} <= set(rows[0])
    missing = {row["name"]: row["missing"] for row in rows if row["missing"]}
    assert list(missing) == [*list(PEERS)[1:], *IN_C]
    assert missing["C, int8"] == "not available: there is no C compiler, cc"
    assert all(row["microseconds"] is None for row in rows if row["missing"])
    assert "no longer has dynamic quantisation" in missing["torch dynamic int8"]
    assert "pip install 'g2lstm[export]'" in missing["ONNX Runtime dynamic int8"]
    assert missing["OpenVINO float32"] == (
        "not available: openvino is not installed; `pip install openvino` to compare with it"
    )
    shown = command("bench", "infer", "--rounds", "1").stdout
    assert "ONNX Runtime float32: not available: ONNX Runtime needs the packages of the extra 'export'" in shown
    assert "ours, small" in shown


def test_a_graph_that_was_not_quantised_is_no_peer(monkeypatch):
    from onnxruntime import quantization

    monkeypatch.setattr(
        quantization, "quantize_dynamic", lambda before, after, **_: after.write_bytes(before.read_bytes())
    )
    with pytest.raises(G2Error, match="does not quantise the operator LSTM: its graph has LSTM"):
        peers.onnx_runtime(*make_stack(TINY), quantised=True)
