"""Products with encoded matrices, and their rows, in ONNX Runtime against what the matrices stand for."""

import numpy as np
import onnxruntime
import pytest
import torch

from g2lstm.compression.encodings import Grid, Integers
from g2lstm.compression.layers import Weight
from g2lstm.compression.spec import Spec, encode
from g2lstm.export.graph import FLOAT, INTEGER, Graph
from g2lstm.export.weights import expanded, lookup, product

FORMS = {
    "dense": None,
    "five levels": "round:0.2,clip:0.4",
    "many levels": "round:0.1",
    "fine levels": "round:0.001",
    "int8": "int8",
    "int4": "int4",
    "low rank": "svd:3",
    "low rank int8": "svd:3,int8",
    "low rank int4": "svd:3,int4",
}
PACKED = {"five levels", "int4", "low rank int4"}  # with float32 activations; by the product at least
ALSO_PACKED = {"many levels", "int8", "low rank int8"}  # with int8 activations


def matrix(form, rows, columns, name="w", factor=1.0):
    values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows * columns))
    return Weight(name, encode(values, Spec.parse(f"gates={FORMS[form]}").gates if FORMS[form] else None), factor)


def dense(*matrices):
    return np.concatenate([one.encoding.decode().astype(np.float64) * one.factor for one in matrices])


def run(graph, *outputs, **inputs):
    for value in outputs:
        graph.output(value, f"out_{value}", FLOAT)
    content = graph.model()
    for output in content.graph.output:
        output.type.tensor_type.ClearField("shape")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return content, onnxruntime.InferenceSession(content.SerializeToString(), options).run(None, inputs)


def operators(model):
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("columns", [5, 32, 37, 150])
@pytest.mark.parametrize("form", FORMS)
def test_product(form, columns):
    one = matrix(form, 7, columns, factor=1 / 0.9)
    x = np.random.default_rng(0).standard_normal((4, 2, columns)).astype(np.float32)
    graph = Graph()
    bias = np.arange(7, dtype=np.float32)
    y = product(graph, graph.input("x", FLOAT, "a", "b", columns), [one], bias)
    model, [got] = run(graph, y, x=x)
    expected = x @ dense(one).T + bias
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    assert ("MatMulNBits" in operators(model)) == (form in PACKED) == (not graph.is_plain)
    assert [one.domain for one in model.opset_import] == ["", "com.microsoft"][: 1 if graph.is_plain else 2]
    assert bool(graph.expanded) == (form not in PACKED | {"dense", "low rank"})


@pytest.mark.parametrize("form", sorted(PACKED | ALSO_PACKED))
def test_int8_activations_are_near(form):
    one = matrix(form, 9, 70)
    x = np.random.default_rng(0).uniform(-1, 1, (3, 70)).astype(np.float32)
    graph = Graph("int8")
    y = product(graph, graph.input("x", FLOAT, "a", 70), [one])
    model, [got] = run(graph, y, x=x)
    expected = x @ dense(one).T
    assert set(operators(model)) == {"MatMulNBits", "Identity"}
    assert not graph.expanded
    difference = np.abs(got - expected).max() / np.abs(expected).max()
    assert 1e-5 < difference < 2e-2


def test_a_matrix_of_low_rank_is_never_multiplied_out():
    graph = Graph()
    y = product(graph, graph.input("x", FLOAT, "a", 40), [matrix("low rank", 50, 40)])
    model, _ = run(graph, y, x=np.zeros((1, 40), np.float32))
    assert sorted(tuple(one.dims) for one in model.graph.initializer) == [(3, 50), (40, 3)]


@pytest.mark.parametrize("activations", ["float32", "int8"])
@pytest.mark.parametrize("columns", [5, 64, 70])
@pytest.mark.parametrize("form", FORMS)
def test_rows(form, columns, activations):
    one = matrix(form, 11, columns)
    graph = Graph(activations)
    tokens = np.array([[3, 0, 10], [3, 5, 1]])
    _, [got] = run(graph, lookup(graph, graph.input("t", INTEGER, "a", "b"), one), t=tokens)
    np.testing.assert_allclose(got, dense(one)[tokens], rtol=1e-6, atol=1e-6)
    assert got.shape == (2, 3, columns)


@pytest.mark.parametrize("activations", ["float32", "int8"])
@pytest.mark.parametrize("form", FORMS)
def test_a_tied_matrix_is_stored_once(form, activations):
    one = matrix(form, 60, 37)
    graph = Graph(activations)
    rows = lookup(graph, graph.input("t", INTEGER, "a"), one)
    after_rows = graph.constant_bytes
    y = product(graph, graph.input("x", FLOAT, "a", 37), [one])
    assert graph.constant_bytes - after_rows < 0.1 * after_rows or form.startswith("low rank")
    x = np.random.default_rng(0).uniform(-1, 1, (2, 37)).astype(np.float32)
    _, [got_rows, got] = run(graph, rows, y, t=np.array([1, 2]), x=x)
    np.testing.assert_allclose(got_rows, dense(one)[[1, 2]], rtol=1e-6, atol=1e-6)
    tolerance = 1e-5 if activations == "float32" else 3e-2
    expected = x @ dense(one).T
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def test_neighbours_are_multiplied_at_once():
    """i, f of five levels and g, o of int4 are one product, with a temperature in some of them."""
    forms = ("five levels", "five levels", "int4", "int4")
    matrices = [matrix(form, 6 + n, 70, f"w{n}", 1 + n) for n, form in enumerate(forms)]
    graph = Graph()
    x = np.random.default_rng(0).standard_normal((3, 70)).astype(np.float32)
    model, [got] = run(graph, product(graph, graph.input("x", FLOAT, "a", 70), matrices), x=x)
    assert operators(model) == ["MatMulNBits", "Identity"]
    np.testing.assert_allclose(got, x @ dense(*matrices).T, rtol=1e-5, atol=1e-4)


def test_strangers_are_multiplied_apart_and_in_order():
    forms = ("low rank", "int4", "dense", "fine levels", "dense")
    matrices = [matrix(form, 6 + n, 33, f"w{n}", 1 + n) for n, form in enumerate(forms)]
    graph = Graph()
    x = np.random.default_rng(0).standard_normal((3, 33)).astype(np.float32)
    _, [got] = run(graph, product(graph, graph.input("x", FLOAT, "a", 33), matrices), x=x)
    np.testing.assert_allclose(got, x @ dense(*matrices).T, rtol=1e-5, atol=1e-4)
    assert graph.expanded == ["w3"]


def test_expanded():
    matrices = [matrix(form, 3 + n, 37, f"w{n}", 1 + n) for n, form in enumerate(FORMS) if "low" not in form]
    graph = Graph()
    _, [got] = run(graph, expanded(graph, matrices))
    np.testing.assert_allclose(got, dense(*matrices), rtol=1e-6, atol=1e-6)


def test_groups_that_no_block_fits():
    rng = np.random.default_rng(0)
    encoding = Integers(rng.integers(-8, 8, (5, 50), dtype=np.int8), rng.random((5, 3)).astype(np.float16), 4, 20)
    graph = Graph()
    x = np.eye(50, dtype=np.float32)
    _, [got] = run(graph, product(graph, graph.input("x", FLOAT, "a", 50), [Weight("w", encoding)]), x=x)
    np.testing.assert_allclose(got.T, encoding.decode(), rtol=1e-6)
    assert graph.expanded == ["w"]


@pytest.mark.parametrize(("lowest", "highest", "packed"), [(-8, 7, 4), (-9, 7, None), (-8, 8, None)])
def test_codes_at_the_ends(lowest, highest, packed):
    codes = np.array([[lowest, 0, highest, -1]], np.int8)
    graph = Graph()
    y = product(graph, graph.input("x", FLOAT, "a", 4), [Weight("w", Grid(codes, 0.5))])
    model, [got] = run(graph, y, x=np.eye(4, dtype=np.float32))
    np.testing.assert_array_equal(got[:, 0], codes[0] * 0.5)
    assert ("MatMulNBits" in operators(model)) == (packed is not None)
    graph = Graph("int8")
    product(graph, graph.input("x", FLOAT, "a", 4), [Weight("w", Grid(codes, 0.5))])
    [node] = graph.model().graph.node
    assert {one.name: one.i for one in node.attribute}["bits"] == (packed or 8)
