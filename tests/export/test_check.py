"""The check that every export goes through: what is wrong is found, and what is right passes."""

import math

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from g2lstm.compression.encodings import LowRank
from g2lstm.compression.model import compress, encoded_matrices
from g2lstm.errors import G2Error
from g2lstm.export import check as checking
from g2lstm.export import layers
from g2lstm.export.check import check
from g2lstm.export.onnx import export_onnx
from g2lstm.nn.record import evaluating
from g2lstm.tasks.lm.model import LanguageModel
from tests.requirements import needs_new_onnx

pytestmark = needs_new_onnx


def sharp_model():
    torch.manual_seed(0)
    model = LanguageModel(23, 6, 9, 2).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


@pytest.fixture
def language_model():
    return sharp_model()


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """What an export of the language model holds."""
    return export_onnx(sharp_model(), tmp_path_factory.mktemp("export") / "model.onnx").files[0].read_bytes()


@pytest.fixture
def path(graph, tmp_path):
    """A file of this test's own, with that graph."""
    path = tmp_path / "model.onnx"
    path.write_bytes(graph)
    return path


def changed(path, name, change):
    """A file with one of its constants changed."""
    model = onnx.load(path)
    tensor = next(one for one in model.graph.initializer if one.name.startswith(name))
    tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)), tensor.name))
    onnx.save(model, path)


def part_of(model):
    """The model's one part, with the shapes that an export would find."""
    return model.onnx_exporter().parts()["model"]


@pytest.mark.parametrize("change", [lambda a: a * 1.001, lambda a: a * float("nan"), lambda a: a * float("inf")])
def test_a_wrong_number_is_found(language_model, path, change):
    changed(path, "embedding.weight", lambda array: array * 1)
    agreement = check(part_of(language_model), path, "float32")
    assert 0 < agreement.difference < agreement.tolerance < 1e-4
    changed(path, "embedding.weight", change)
    with pytest.raises(
        G2Error, match="does not agree with the model: .* differs by .* is allowed; nothing was written"
    ):
        check(part_of(language_model), path, "float32")


def test_packed_weights_that_are_wrong_are_found_behind_int8_activations(tmp_path):
    """Rounding vectors to int8 hides small mistakes, so the same graph is looked at without it first."""
    model = compress(LanguageModel(23, 6, 9, 1), "gates=int8; cell=int8")
    [path, _] = export_onnx(model, tmp_path / "model.onnx", activations="int8").files
    with evaluating(model):
        check(part_of(model), path, "int8")
        changed(path, "layers.0.layers.0.0.w_h.parts.0.scales", lambda array: array * 1.001)
        with pytest.raises(G2Error, match="does not agree"):
            check(part_of(model), path, "int8")


def test_what_int8_activations_may_change():
    torch.manual_seed(0)
    model = compress(LanguageModel(23, 6, 9, 2), "gates=svd:3; embedding=svd:4,int8; softmax=svd:2")
    norms = []
    for matrix in encoded_matrices(model).values():
        norms.append(np.linalg.norm(matrix.decode(), axis=1).max())
        if isinstance(matrix, LowRank):
            left, right = (np.linalg.norm(one.decode(), axis=1).max() for one in (matrix.left, matrix.right))
            norms[-1] += 4 * left * right
    expected = 6 * max(norms) * 2.5 / (127 * math.sqrt(12))
    assert checking._rounding_to_int8(model, 2.5) == pytest.approx(float(expected), rel=1e-5)


@torch.no_grad()
def test_the_largest_input_is_seen(language_model):
    language_model.embedding.weight[3, 2] = -17.0
    with checking._largest_input(language_model) as largest:
        language_model(torch.tensor([[1], [3]]))
    assert max(largest) == 17.0
    with checking._largest_input(language_model) as largest:
        language_model(torch.tensor([[1], [2]]))
    assert max(largest) == 1.0


def test_a_wrong_order_of_gates_leaves_nothing_behind(language_model, tmp_path, monkeypatch):
    monkeypatch.setitem(layers._ORDERS, "LSTM", (0, 1, 2, 3))
    with pytest.raises(G2Error, match="does not agree"):
        export_onnx(language_model, tmp_path / "new" / "model.onnx")
    assert not list(tmp_path.iterdir())


class Packing(nn.Module):
    """Reads sequences of different lengths, the longest first."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 5)

    def forward(self, x, lengths):
        return self.lstm(pack_padded_sequence(x, lengths, enforce_sorted=False))[1][0]


def test_lengths_that_are_not_respected_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(layers, "_lengths", lambda x, batch_sizes: torch.full([x.size(1)], x.size(0)))
    with pytest.raises(G2Error, match="does not agree"):
        export_onnx(Packing(), tmp_path / "model.onnx", (torch.randn(4, 2, 3), torch.tensor([4, 2])))


def test_a_model_that_is_broken_itself(language_model, path):
    with torch.no_grad():
        language_model.softmax_bias[3] = torch.nan
    with pytest.raises(G2Error, match="the model's own log_probabilities is not finite, so its weights are broken"):
        check(part_of(language_model), path, "float32")


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_none_never_agree(wrong):
    """Approximations of sigmoid and tanh may hide a NaN on the way."""
    assert checking._difference("output", np.array([0.0, wrong]), np.zeros(2)) == math.inf


def test_a_file_that_the_runtime_cannot_read(language_model, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(G2Error, match="ONNX Runtime .* can't run the export"):
        check(part_of(language_model), path, "float32")


def test_a_hard_gate_near_its_edge_gets_another_chance(language_model, path, monkeypatch):
    """A flip in one draw is rounding, in every draw it is a mistake."""
    for layer in language_model.lstms:
        layer.eval_gate = "hard"
    differences, calls = [1.0, 1.0, 0.0], []

    def difference(*arguments):
        calls.append(arguments)
        return differences[0] if len(differences) == 1 else differences.pop(0)

    monkeypatch.setattr(checking, "_difference", difference)
    check(part_of(language_model), path, "float32")
    differences[:] = [1.0]
    with pytest.raises(G2Error, match="does not agree"):
        check(part_of(language_model), path, "float32")


def test_only_the_size_of_the_model_decides_what_is_allowed(language_model, path):
    tolerances = [checking._rounding(LanguageModel(23, 6, hidden, 2)) for hidden in (4, 400, 9)]
    terms = [100 + (6 + h) + (h + 6) + 6 for h in (4, 400, 9)]
    assert tolerances == [pytest.approx(2 * n * 2**-24) for n in terms]
    assert check(part_of(language_model), path, "float32").tolerance == tolerances[-1]
