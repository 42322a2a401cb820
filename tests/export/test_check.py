"""The check that every export goes through: what is wrong is found, and what is right passes."""

import math

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from g2lstm.compression.encodings import LowRank
from g2lstm.compression.model import compress, encoded_matrices
from g2lstm.errors import G2Error
from g2lstm.export import check as checking
from g2lstm.export import lstm
from g2lstm.export.check import check
from g2lstm.export.onnx import export_onnx
from g2lstm.nn.record import evaluating
from g2lstm.tasks.lm.model import LanguageModel
from g2lstm.tasks.mt import onnx as mt_onnx
from g2lstm.tasks.mt.model import TranslationModel


@pytest.fixture
def language_model():
    model = LanguageModel(23, 6, 9, 2).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


def changed(path, name, change):
    """A file with one of its constants changed."""
    model = onnx.load(path)
    [tensor] = [one for one in model.graph.initializer if one.name == name]
    tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)), name))
    onnx.save(model, path)


@pytest.mark.parametrize("change", [lambda a: a * 1.001, lambda a: a * float("nan"), lambda a: a * float("inf")])
def test_a_wrong_number_is_found(language_model, tmp_path, change):
    [path, _] = export_onnx(language_model, tmp_path / "model.onnx").files
    changed(path, "embedding.weight", lambda array: array * 1)
    agreement = check(language_model.onnx_exporter(), {"model": path}, "float32")
    assert 0 < agreement.difference < agreement.tolerance < 1e-4
    changed(path, "embedding.weight", change)
    with pytest.raises(
        G2Error, match="does not agree with the model: .* differs by .* is allowed; nothing was written"
    ):
        check(language_model.onnx_exporter(), {"model": path}, "float32")


def test_packed_weights_that_are_wrong_are_found_behind_int8_activations(tmp_path):
    """Rounding vectors to int8 hides small mistakes, so the same graph is looked at without it first."""
    model = compress(LanguageModel(23, 6, 9, 2), "gates=int8; cell=int8")
    [path, _] = export_onnx(model, tmp_path / "model.onnx", activations="int8").files
    name = "+".join(f"layers.0.weight_hh_l0.{letter}" for letter in "ifgo")
    with evaluating(model):
        check(model.onnx_exporter(), {"model": path}, "int8")
        changed(path, f"{name}.scales", lambda array: array * 1.001)
        with pytest.raises(G2Error, match="does not agree"):
            check(model.onnx_exporter(), {"model": path}, "int8")


@pytest.mark.parametrize("tied", [True, False])
def test_what_int8_activations_may_change(tied):
    torch.manual_seed(0)
    dense = LanguageModel(23, 6, 9, 2, tied=tied)
    with torch.no_grad():
        dense.embedding.weight.mul_(40)  # so that some number of a row is above 1
    model = compress(dense, "gates=svd:3; embedding=svd:4,int8; softmax=svd:2")
    norms = []
    for matrix in encoded_matrices(model).values():
        norms.append(np.linalg.norm(matrix.decode(), axis=1).max())
        if isinstance(matrix, LowRank):
            left, right = (np.linalg.norm(one.decode(), axis=1).max() for one in (matrix.left, matrix.right))
            norms[-1] += 4 * left * right
    greatest = np.abs(model.embedding.encoded.encoding.decode()).max()
    assert greatest > 1
    expected = 6 * max(norms) * greatest / (127 * math.sqrt(12))
    assert checking._rounding_to_int8(model.onnx_exporter()) == pytest.approx(float(expected), rel=1e-5)


def test_a_wrong_order_of_gates_leaves_nothing_behind(language_model, tmp_path, monkeypatch):
    monkeypatch.setattr(lstm, "_ONNX_ORDER", (0, 1, 2, 3))
    with pytest.raises(G2Error, match="does not agree"):
        export_onnx(language_model, tmp_path / "new" / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_lengths_that_are_not_respected_are_found(tmp_path, monkeypatch):
    run = mt_onnx.run
    monkeypatch.setattr(mt_onnx, "run", lambda graph, x, states, layers, sequences=None: run(graph, x, states, layers))
    with pytest.raises(G2Error, match="does not agree"):
        export_onnx(TranslationModel(9, 9, 4, 5), tmp_path / "model.onnx")


def test_a_model_that_is_broken_itself(language_model, tmp_path):
    with torch.no_grad():
        language_model.softmax_bias[3] = torch.nan
    with pytest.raises(G2Error, match="the model's own log_probabilities is not finite, so its weights are broken"):
        export_onnx(language_model, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_none_never_agree(wrong):
    """Approximations of sigmoid and tanh may hide a NaN on the way."""
    assert checking._difference("output", np.array([0.0, wrong]), np.zeros(2)) == math.inf


def test_a_file_that_the_runtime_cannot_read(language_model, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(G2Error, match="ONNX Runtime .* can't run the export"):
        check(language_model.onnx_exporter(), {"model": path}, "float32")


def test_a_hard_gate_near_its_edge_gets_another_chance(tmp_path, monkeypatch):
    """A flip in one draw is rounding, in every draw it is a mistake."""
    model = LanguageModel(23, 6, 9, 2, eval_gate="hard").eval()
    export_onnx(model, tmp_path / "model.onnx")
    differences, calls = [1.0, 1.0, 0.0], []

    def difference(*arguments):
        calls.append(arguments)
        return differences[0] if len(differences) == 1 else differences.pop(0)

    monkeypatch.setattr(checking, "_difference", difference)
    check(model.onnx_exporter(), {"model": tmp_path / "model.onnx"}, "float32")
    differences[:] = [1.0]
    with pytest.raises(G2Error, match="does not agree"):
        check(model.onnx_exporter(), {"model": tmp_path / "model.onnx"}, "float32")


def test_only_the_size_of_the_model_decides_what_is_allowed(tmp_path):
    tolerances = []
    for hidden in (4, 400):
        model = LanguageModel(23, 6, hidden, 2)
        tolerances.append(export_onnx(model, tmp_path / "model.onnx", force=True).tolerance)
    terms = [100 + (6 + h) + (h + 6) + 6 for h in (4, 400)]
    assert tolerances == [pytest.approx(2 * n * 2**-24) for n in terms]
