"""The compiled session against float64: every form, odd sizes, every build, and what it refuses."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2lstm.compression import kernel
from g2lstm.compression.encodings import Entropy, Grid, Integers, Levels, LowRank, panels
from g2lstm.compression.kernel import KernelSession, Product, open_session, pack_layer
from g2lstm.compression.session import Layer, PlainSession, Term
from g2lstm.errors import G2Error
from g2lstm.nn import kernel as nn_kernel
from g2lstm.nn.kernel import Found
from tests.compression.stacks import FACTORS, FORMS, assert_within_bounds, layer, matrix, mixed, random_state, softmax
from tests.grids import pairwise
from tests.nn.builds import only

LOW_RANK = [f"low rank {left} {right}" for left, right in FACTORS]


@pytest.fixture(scope="module", params=nn_kernel.BUILDS, autouse=True)
def build(request):
    """Every test with every build: those for lesser processors run on a better one."""
    with only(request.param):
        yield request.param


def check(layers, steps=3, seed=0, hard="", threads=1, softmax=None):
    rng = np.random.default_rng(seed)
    session = KernelSession(layers, hard, threads, softmax)
    session.set_state(random_state(layers, rng))
    x = rng.normal(size=(steps, layers[0].inputs)).astype(np.float32)
    assert_within_bounds(session, layers, x, hard, softmax)


@pairwise(
    ["build"],
    build=nn_kernel.BUILDS,
    form=[*FORMS, *LOW_RANK],
    sizes=[(1, 1), (9, 2), (8, 31), (70, 33), (401, 64)],
)
def test_each_form_is_within_its_bound(build, form, sizes):
    check([layer(*sizes, form, np.random.default_rng(1))])


@given(st.integers(1, 70), st.integers(1, 70), st.sampled_from([*FORMS, *LOW_RANK]), st.integers(0, 2**32))
@settings(max_examples=40)
def test_odd_sizes(inputs, hidden, form, seed):
    check([layer(inputs, hidden, form, np.random.default_rng(seed))], steps=1, seed=seed)


def test_a_large_layer_and_layers_of_different_widths():
    rng = np.random.default_rng(2)
    check([mixed(401, 1150, rng), layer(1150, 40, "int4", rng)], steps=2)
    check([mixed(5, 70, rng), mixed(70, 3, rng), layer(3, 47, "int8", rng)], steps=6)


def test_residual_layers():
    rng = np.random.default_rng(3)
    deep = [replace(mixed(47, 47, rng), residual=True) for _ in range(3)]
    check(deep, steps=6)
    check([layer(5, 47, "int8", rng), *deep, layer(47, 9, "int4", rng)], steps=6)


LARGEST = [("int8", code) for code in (-128, 127)]
LARGEST += [("grid", code) for code in (-8, 7, -4, -3, -2)]
LARGEST += [("int4", code) for code in (7, -4, -7, 3, 1)]


@pairwise(["build"], build=nn_kernel.BUILDS, codes=LARGEST, columns=[255, 300, 140_000])
def test_the_largest_sums_do_not_overflow(build, codes, columns):
    """Sums are kept in 32 bits: all codes and all elements at their largest."""
    form, code = codes
    codes = np.full((1, columns), code, np.int8)
    scale = 0.5 / abs(code) / columns
    if form == "int8":
        weights = Integers(codes, np.full(1, scale, np.float32))
    elif form == "grid":
        weights = Grid(codes, scale)
    else:
        weights = Integers(codes, np.full((1, -(-columns // 4096)), scale, np.float16), 4, 4096)
    terms = tuple(Term(weights, "x", gate) for gate in range(4))
    one = [Layer(columns, terms, np.zeros(4, np.float32))]
    for sign in (1, -1):
        assert_within_bounds(KernelSession(one), one, np.full((1, columns), sign, np.float32))


@pytest.mark.parametrize("group", [8, 24, 4096])
def test_group_sizes_and_tiny_scales(group):
    """The smallest float16 numbers are denormal, and denormal numbers are flushed inside the kernel: not these."""
    rng = np.random.default_rng(3)
    codes = rng.integers(-8, 8, (12, 100)).astype(np.int8)
    scales = (rng.uniform(-1, 1, (12, -(-100 // group))) * 2**-14).astype(np.float16)
    scales[:2] = 2**-24
    gates = enumerate(zip(np.split(codes, 4), np.split(scales, 4), strict=True))
    terms = tuple(Term(Integers(*one, 4, group), "x", gate, 2**14) for gate, one in gates)
    one = [Layer(100, terms, np.zeros(12, np.float32))]
    session = KernelSession(one)
    assert_within_bounds(session, one, rng.normal(size=(2, 100)).astype(np.float32))
    assert np.abs(session.get_state()[0][1]).min() > 0


@pytest.mark.parametrize("form", [*FORMS, *LOW_RANK])
def test_a_softmax_in_each_form(form):
    rng = np.random.default_rng(15)
    layers = [layer(5, 70, "int8", rng)]
    for rows in (1, 33, 1003):
        check(layers, softmax=softmax(rows, 70, form, rng))


@pytest.mark.parametrize("form", [*FORMS, *LOW_RANK])
def test_a_linear_map_in_each_form(form):
    """A softmax without layers below it gives its logits."""
    rng = np.random.default_rng(18)
    for rows in (1, 33, 1003):
        top = softmax(rows, 70, form, rng)
        x = rng.normal(size=(3, 70)).astype(np.float32)
        factors = [factor.decode().astype(np.float64) for factor in top.terms[0].matrix.factors()]
        exact, most = x.astype(np.float64).T, np.abs(x).max(1)
        for factor in factors:
            exact, most = factor @ exact, np.abs(factor).sum(1).max() * most
        found = [session([], softmax=top).sequence(x) for session in (KernelSession, PlainSession)]
        bound = len(factors) * most / 65278 + 1e-5 * (1 + most)
        for one in found:
            assert (np.abs(one - exact.T - top.bias) <= bound[:, None]).all()


def words(heights, columns, rng):
    """Embeddings whose rows need fewer and fewer bits."""
    codes = [
        np.vstack([np.full((1, columns), most), rng.integers(-most, most, (height - 1, columns), endpoint=True)])
        for most, height in heights
    ]
    return Entropy(np.concatenate(codes).astype(np.int8), np.full(4, 0.02 / columns, np.float32), 50)


def test_a_softmax_in_parts_of_different_bits(build):
    """Whose result is that of one block with the same codes, to the bit."""
    rng = np.random.default_rng(20)
    panel = kernel.find().library.g2lstm_stack_panel()
    layers = [layer(5, 70, "int8", rng)]
    matrix = words([(90, 300), (7, 700), (3, 512), (1, 333)], 70, rng)
    top = Layer.softmax(matrix, rng.normal(size=len(matrix.codes)).astype(np.float32))
    parts = kernel.pack_softmax(top, panel)
    assert [part.products[0].form for part in parts] == [panels.INT8, panels.INT4, panels.INT3, panels.INT2]
    assert sum(part.outputs for part in parts) == len(matrix.codes)
    for threads in (1, 3):
        check(layers, steps=2, softmax=top, threads=threads)
    apart = KernelSession(layers, softmax=top).sequence(np.ones((2, 5)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Entropy, "parts", lambda self, _: [slice(0, len(self.codes))])
        assert np.array_equal(KernelSession(layers, softmax=top).sequence(np.ones((2, 5))), apart)


def test_parts_that_do_not_fit_are_refused(monkeypatch):
    rng = np.random.default_rng(21)
    layers = [layer(5, 9, "int8", rng)]
    matrix = words([(90, 200), (3, 201)], 9, rng)
    top = Layer.softmax(matrix, np.zeros(401, np.float32))
    first, last = kernel.pack_softmax(top, kernel.find().library.g2lstm_stack_panel())
    for parts in ([last, first], [first._replace(outputs=first.outputs - 1), last], [first._replace(inputs=8), last],
                  [first, pack_layer(layer(9, 9, "int8", rng), 32)]):  # fmt: skip
        monkeypatch.setattr(kernel, "pack_softmax", lambda *_, parts=parts: parts)
        with pytest.raises(G2Error, match="can't take .* bytes of weights: their description does not fit"):
            KernelSession(layers, softmax=top)


def test_a_softmax_sums_to_one_whatever_its_logits():
    rng = np.random.default_rng(16)
    layers = [layer(5, 9, "int8", rng)]
    for shift, spread in ((0, 1), (-1e4, 1), (1e4, 1), (0, 300)):
        bias = (shift + spread * rng.normal(size=50_021)).astype(np.float32)
        top = Layer.softmax(matrix("int8", len(bias), 9, rng), bias)
        session = KernelSession(layers, softmax=top)
        out = session.step(np.ones(5))
        # A logit of 1e4 is off by up to 5e-4 in float32.
        np.testing.assert_allclose(np.exp(out.astype(np.float64)).sum(), 1, atol=1e-6 + 1e-7 * (abs(shift) + spread))
        assert_within_bounds(session, layers, np.ones((1, 5)), softmax=top)
    session = KernelSession(layers, softmax=top)
    assert np.isnan(session.step(np.array([1, np.nan, 3, 4, 5]))).all()


def test_low_rank_is_kept_thin():
    """Two thin matrices of 8 columns are packed, not one of 512."""
    rng = np.random.default_rng(4)
    thin = LowRank(matrix("int8", 512, 8, rng), matrix("int8", 8, 512, rng))
    packed = pack_layer(Layer(512, (Term(thin, "x"),), np.zeros(2048, np.float32)), panel=32)
    biases_and_scales = 2048 * 4 + 512 * 4 + 32 * 4
    assert len(packed.data) == 512 * 8 + 32 * 512 + biases_and_scales


@pytest.mark.parametrize(
    ("codes", "bits", "form", "grouped"),
    [
        ((-1, 0), 2, panels.INT2, panels.GROUPED_INT2),
        ((-3, 3), 2, panels.ODD2, panels.GROUPED_ODD2),
        ((-3, 2), 3, panels.INT3, panels.GROUPED_INT3),
        ((-7, 5), 3, panels.ODD3, panels.GROUPED_ODD3),
        ((-4, 7), 4, panels.INT4, panels.GROUPED_INT4),
        ((0, 8), 8, panels.INT8, panels.DENSE),
        ((-9, 9), 8, panels.INT8, panels.DENSE),
    ],
)
def test_codes_take_the_bits_they_need(codes, bits, form, grouped):
    """Whatever the matrix says of itself: a grid of few levels and an int8 matrix of small codes are packed alike."""
    codes = np.tile(np.array(codes, np.int8), (32, 32))
    for one in (Grid(codes, 0.2), Integers(codes, np.full(32, 0.2, np.float32))):
        terms = tuple(Term(one, "x", gate) for gate in range(4))
        packed = pack_layer(Layer(64, terms, np.zeros(128, np.float32)), panel=32)
        assert packed.products == [Product(form, 0, gate, 0) for gate in range(4)]
        assert len(packed.data) == 128 * 64 * bits // 8 + 2 * 128 * 4
    in_groups = Levels(codes, np.full((32, 2), 0.25, np.float16), 16, 32).panels(32, 3.0)
    assert (in_groups.form, in_groups.group) == (grouped, 0 if grouped == panels.DENSE else 32)
    size = 32 * 64 * 4 if grouped == panels.DENSE else 32 * 64 * bits // 8 + 2 * 64 + 128
    assert in_groups.data.shape == (1, size)


def test_groups_that_fewer_bits_could_not_be_read_in():
    """Three bits are read 32 columns at a time, so codes that would fit them take four in groups of eight."""
    small = Integers(np.full((3, 20), 2, np.int8), np.ones((3, 3), np.float16), 4, 8)
    assert small.panels(32).form == panels.GROUPED_INT4
    check([Layer(20, tuple(Term(small, "x", gate) for gate in range(4)), np.zeros(12, np.float32))])


@pytest.mark.parametrize("hard", ["if", "ifo"])
def test_hard_gates(hard):
    """Dense weights, whose errors turn no gate; at exactly 0 a gate is open."""
    rng = np.random.default_rng(5)
    check([layer(20, 37, "dense", rng), layer(37, 5, "dense", rng)], hard=hard)
    bare = [Layer(1, (), np.repeat(np.array([0, -1e-7, 1, 0], np.float32), 3))]
    session = KernelSession(bare, hard)
    session.set_state([(np.zeros(3), np.ones(3))])
    out = session.step([1.0])
    c = np.float32(np.tanh(1.0))
    np.testing.assert_allclose(session.get_state()[0][1], [c] * 3, rtol=1e-6)
    np.testing.assert_allclose(out, np.tanh([c] * 3) * (1 if hard == "ifo" else 0.5), rtol=1e-6)
    for gate in (0, 1):  # a NaN in a gate alone
        term = Term(matrix("int8", 3, 1, rng), "x", gate)
        session = KernelSession([Layer(1, (term,), np.zeros(12, np.float32))], hard)
        assert np.isnan(session.step([np.nan])).all()


def test_states_are_carried_and_copied():
    rng = np.random.default_rng(9)
    layers = [layer(4, 35, "int8", rng), layer(35, 3, "int4", rng)]
    session, x = KernelSession(layers), rng.normal(size=(6, 4)).astype(np.float32)
    whole = session.sequence(x)
    session.reset()
    session.sequence(x[:3])
    half = session.get_state()
    session.step(x[0])
    session.set_state(half)
    for pair, again in zip(half, session.get_state(), strict=True):
        assert np.array_equal(pair, again)
    assert np.array_equal(session.sequence(x[3:]), whole[3:])
    first = session.step(x[0])
    kept = first.copy()
    session.step(x[1])
    assert np.array_equal(first, kept)  # each step has an array of its own


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", ["int8", "int4", "low rank int8 int4"])
def test_a_nan_shows_until_the_reset(form, bad):
    rng = np.random.default_rng(10)
    layers = [layer(5, 33, form, rng), layer(33, 3, form, rng)]
    session, x = KernelSession(layers), rng.normal(size=(2, 5)).astype(np.float32)
    expected = session.sequence(x)
    assert np.isnan(session.step([bad, 1, 2, 3, 4])).all()
    assert np.isnan(session.step(x[0])).all()
    session.reset()
    assert np.array_equal(session.sequence(x), expected)
    hard = KernelSession(layers, hard="ifo")
    assert np.isnan(hard.step([1, 2, bad, 3, 4])).all()


def test_denormal_numbers_of_the_caller_are_left_alone():
    KernelSession([layer(5, 3, "int8", np.random.default_rng(18))]).step(np.ones(5, np.float32))
    assert np.full(64, 1e-40, np.float32).sum() > 0


@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e-20, 1e20])
def test_tiny_and_huge_vectors(scale):
    rng = np.random.default_rng(11)
    one = [layer(40, 6, "int8", rng)]
    x = (rng.normal(size=(1, 40)) * scale).astype(np.float32)
    assert np.isfinite(KernelSession(one).sequence(x)).all()
    if scale < 1:
        assert_within_bounds(KernelSession(one), one, x)


def test_without_the_kernel_the_session_is_plain(monkeypatch):
    layers = [layer(3, 4, "int8", np.random.default_rng(13))]
    assert isinstance(open_session(layers), KernelSession)
    monkeypatch.setattr(kernel, "find", lambda: Found(None, "not compiled: for this test"))
    assert isinstance(open_session(layers), PlainSession)
    with pytest.raises(G2Error, match="the kernel for packed weights is not compiled: for this test; use open_session"):
        KernelSession(layers)


def test_it_refuses_what_does_not_fit(monkeypatch):
    rng = np.random.default_rng(14)
    layers = [layer(3, 4, "int8", rng)]
    for threads in (0, -1, 2.5, "a"):
        with pytest.raises(G2Error, match=f"threads must be an integer of at least 1, got {threads!r}"):
            KernelSession(layers, threads=threads)
    good = pack_layer(layers[0], kernel.find().library.g2lstm_stack_panel())
    wrong = good.products[0]
    for change in (
        {"data": good.data[:-64]},
        {"data": np.concatenate([good.data, good.data[:64]])},
        {"products": good.products[:-1]},
        *({"products": [wrong._replace(**{field: value}), *good.products[1:]]} for field, value in
          [("form", 12), ("form", -1), ("source", 2), ("source", -1), ("target", 4), ("target", -1)]),
        {"products": [wrong._replace(form=panels.GROUPED_INT4, group=12), *good.products[1:]]},
        {"products": [wrong._replace(form=panels.GROUPED_ODD2, group=24), *good.products[1:]]},
        {"products": [wrong._replace(form=panels.GROUPED_INT3, group=48), *good.products[1:]]},
        {"factors": [wrong._replace(target=0)]},
        {"gates": 1},
        {"gates": 0},
        {"outputs": 40},
        {"residual": True},
    ):  # fmt: skip
        monkeypatch.setattr(kernel, "pack_layer", lambda *_, change=change: good._replace(**change))
        with pytest.raises(G2Error, match="can't take .* bytes of weights: their description does not fit"):
            KernelSession(layers)


def gru_stack(form, rng):
    """Two layers; of the candidate, W_x x is gate 2 and W_h h gate 3."""
    for inputs in (13, 37):
        one = layer(inputs, 37, form, rng)
        kept = [term for term in one.terms if (term.source, term.gate) not in {("x", 3), ("h", 2)}]
        yield replace(one, terms=tuple(kept), is_gru=True)


@pytest.mark.parametrize("form", [*FORMS, *LOW_RANK])
def test_grus_against_numpy_and_torch_in_float64(form):
    """The kernel is within 16 bits of NumPy's session, and that is torch's GRU."""
    rng = np.random.default_rng(0)
    layers, x = list(gru_stack(form, rng)), rng.normal(size=(20, 13))
    exact, found = PlainSession(layers, dtype=np.float64), KernelSession(layers, threads=2)
    wanted = exact.sequence(x)
    np.testing.assert_allclose(found.sequence(x), wanted, rtol=0, atol=2e-5 if form == "dense" else 2e-3)
    np.testing.assert_allclose(found.get_state()[1][0], exact.get_state()[1][0], rtol=0, atol=2e-3)
    gru, state = torch.nn.GRU(13, 37, 2, dtype=torch.float64), {}
    for k, one in enumerate(layers):
        for source, part in (("x", "ih"), ("h", "hh")):
            own = sorted((term for term in one.terms if term.source == source), key=lambda term: term.gate)
            rows = [torch.from_numpy(term.matrix.decode()).double() * term.factor for term in own]
            state[f"weight_{part}_l{k}"] = torch.cat(rows)
        r, z, n, m = torch.from_numpy(one.bias).double().chunk(4)
        state[f"bias_ih_l{k}"], state[f"bias_hh_l{k}"] = torch.cat([r, z, n]), torch.cat([0 * r, 0 * z, m])
    gru.load_state_dict(state)
    with torch.no_grad():
        np.testing.assert_allclose(gru(torch.from_numpy(x))[0], wanted, rtol=0, atol=1e-6)


def test_hard_gates_of_a_gru():
    """A gate may flip where its pre-activation is near 0, so one step is compared, with room for one unit."""
    rng = np.random.default_rng(0)
    layers, x = list(gru_stack("int8", rng))[:1], rng.normal(size=13)
    exact, found = PlainSession(layers, "if", dtype=np.float64), KernelSession(layers, "if")
    for session in (exact, found):
        session.set_state([(np.linspace(-1, 1, 37),)])
    assert (np.abs(exact.step(x) - found.step(x)) > 1e-3).sum() <= 1
    assert np.abs(exact.step(x) - PlainSession(layers).step(x)).max() > 0.01
