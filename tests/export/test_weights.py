"""Products with encoded matrices, and their rows, against what the matrices stand for; in torch and in ONNX Runtime."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from g2lstm.compression.encodings import Grid, Integers
from g2lstm.compression.recurrent import Weight
from g2lstm.compression.spec import Spec, encode
from g2lstm.export.part import Part
from g2lstm.export.trace import trace
from g2lstm.export.weights import Matrix, Notes
from tests.export.sessions import open_session, run
from tests.requirements import needs_new_onnx

FORMS = {
    "dense": None,
    "five levels": "round:0.2,clip:0.4",
    "many levels": "round:0.1",
    "fine levels": "round:0.001",
    "int8": "int8",
    "int4": "int4",
    "int3": "int3",
    "int2": "int2",
    "int2 by 32": "int2,group:32",
    "three levels": "levels:3",
    "entropy": "bits:1.5",
    "entropy, zipf": "bits:4,zipf",
    "low rank": "svd:3",
    "low rank int8": "svd:3,int8",
    "low rank int4": "svd:3,int4",
}
PACKED = {
    "five levels",
    "int4",
    "int3",
    "int2",
    "int2 by 32",
    "three levels",
    "entropy",
    "low rank int4",
}  # with float32 activations; by the product at least
ALSO_PACKED = {"many levels", "int8", "entropy, zipf", "low rank int8"}  # with int8 activations


def weight(form, rows, columns, name="w", factor=1.0):
    values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows * columns))
    return Weight(name, encode(values, Spec.parse(f"gates={FORMS[form]}").gates if FORMS[form] else None), factor)


def dense(*weights):
    return np.concatenate([one.encoding.decode().astype(np.float64) * one.factor for one in weights])


def uniform(*shape):
    return torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32))


class Both(Part):
    """The rows of a matrix, and the product with it, as a tied model has them."""

    def __init__(self, matrix):
        columns = matrix.rows(torch.tensor([0])).size(-1)
        super().__init__(nn.ModuleList([matrix]), {"tokens": torch.arange(4), "x": uniform(3, columns)})

    def compute(self, inputs):
        return {
            "rows": self.model[0].rows(inputs["tokens"]),
            "product": self.model[0].product()(inputs["x"]),
        }


@pytest.mark.parametrize("activations", ["float32", "int8"])
@pytest.mark.parametrize("columns", [5, 32, 37, 150])
@pytest.mark.parametrize("form", FORMS)
def test_product_and_rows(form, columns, activations):
    one = weight(form, 11, columns, factor=1 / 0.9)
    notes = Notes(activations)
    matrix = Matrix([one], notes)
    x, tokens = uniform(4, 2, columns), torch.tensor([[3, 0, 10], [3, 5, 1]])
    expected = x.numpy() @ dense(one).T
    np.testing.assert_allclose(matrix.product()(x), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    packed = PACKED | (ALSO_PACKED if activations == "int8" else set())
    assert bool(notes.expanded) == (form not in packed | {"dense", "low rank"})
    np.testing.assert_allclose(matrix.rows(tokens), dense(one)[tokens], rtol=1e-6, atol=1e-6)


GRAPHS = itertools.product(["dense", "five levels", "int8", "low rank int4", "fine levels"], ["float32", "int8"])
BY_DEFAULT = {("dense", "int8"), ("int8", "int8"), ("low rank int4", "float32")}


@needs_new_onnx
@pytest.mark.parametrize(
    ("form", "activations"),
    [pytest.param(*graph, marks=() if graph in BY_DEFAULT else pytest.mark.slow) for graph in GRAPHS],
)
def test_in_a_graph(form, activations, tmp_path):
    """What torch computes with the packed weights is what ONNX Runtime computes; a matrix is stored once."""
    one = weight(form, 60, 37)
    matrix = Matrix([one], Notes(activations))
    part = Both(matrix)
    graph = trace(part, activations)
    (tmp_path / "graph.onnx").write_bytes(graph.model.SerializeToString())
    tokens, x = np.array([1, 2, 0, 59, 3]), uniform(2, 37).numpy()
    got = run(open_session(tmp_path / "graph.onnx"), tokens=tokens, x=x)
    np.testing.assert_allclose(got["rows"], dense(one)[tokens], rtol=1e-6, atol=1e-6)
    is_packed = form in PACKED | (ALSO_PACKED if activations == "int8" else set())
    expected, tolerance = x @ dense(one).T, 3e-2 if is_packed and activations == "int8" else 1e-5
    np.testing.assert_allclose(got["product"], expected, rtol=0, atol=tolerance * np.abs(expected).max())
    assert ("MatMulNBits" in [node.op_type for node in graph.model.graph.node]) == is_packed == (not graph.is_plain)
    assert [one.domain for one in graph.model.opset_import] == ["", "com.microsoft"][: 1 if graph.is_plain else 2]
    stored = sum(buffer.numel() * buffer.element_size() for buffer in matrix.buffers())
    assert len(graph.model.SerializeToString()) < stored + 4000


def test_a_matrix_of_low_rank_is_never_multiplied_out():
    matrix = Matrix([weight("low rank", 50, 40)], Notes())
    assert sorted(tuple(one.shape) for one in matrix.buffers()) == [(3, 40), (50, 3)]
    assert not matrix.is_float


def test_neighbours_are_multiplied_at_once():
    """i, f of five levels and g, o of int4 are one product, with a temperature in some of them."""
    forms = ("five levels", "five levels", "int4", "int4")
    weights = [weight(form, 6 + n, 70, f"w{n}", 1 + n) for n, form in enumerate(forms)]
    matrix, x = Matrix(weights, Notes()), uniform(3, 70)
    assert len(matrix.parts) == 1
    np.testing.assert_allclose(matrix.product()(x), x.numpy() @ dense(*weights).T, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(matrix.rows(), dense(*weights), rtol=1e-6, atol=1e-6)


def test_strangers_are_multiplied_apart_and_in_order():
    forms = ("low rank", "int4", "dense", "fine levels", "dense")
    weights = [weight(form, 6 + n, 33, f"w{n}", 1 + n) for n, form in enumerate(forms)]
    notes, x = Notes(), uniform(3, 33)
    matrix = Matrix(weights, notes)
    assert len(matrix.parts) == 5
    np.testing.assert_allclose(matrix.product()(x), x.numpy() @ dense(*weights).T, rtol=1e-5, atol=1e-4)
    assert list(notes.expanded) == ["w3"]


def test_groups_that_no_block_fits():
    rng = np.random.default_rng(0)
    encoding = Integers(rng.integers(-8, 8, (5, 50), dtype=np.int8), rng.random((5, 3)).astype(np.float16), 4, 20)
    notes = Notes()
    got = Matrix([Weight("w", encoding)], notes).product()(torch.eye(50))
    np.testing.assert_allclose(got.T, encoding.decode(), rtol=1e-6)
    assert list(notes.expanded) == ["w"]


@pytest.mark.parametrize(("lowest", "highest", "packed"), [(-8, 7, True), (-9, 7, False), (-8, 8, False)])
def test_codes_at_the_ends(lowest, highest, packed):
    codes = np.array([[lowest, 0, highest, -1]], np.int8)
    for activations in ("float32", "int8"):
        matrix = Matrix([Weight("w", Grid(codes, 0.5))], Notes(activations))
        np.testing.assert_array_equal(matrix.product()(torch.eye(4))[:, 0], codes[0] * 0.5)
        assert matrix.parts[0].bits == (4 if packed else 8)
        assert matrix.parts[0].is_packed == (packed or activations == "int8")
