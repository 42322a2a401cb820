"""Encodings: what each does to a matrix, that it is within its bound, and what is refused."""

import itertools
import math
import zlib

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

from g2lstm.compression.encodings import Dense, Encoding, Entropy, Entry, Grid, Integers, Levels, LowRank
from g2lstm.compression.spec import Spec, encode
from g2lstm.errors import G2Error

SHAPES = arrays.array_shapes(min_dims=2, max_dims=2, max_side=70)
GREATEST_HALF = 65504.0


def matrices(greatest: float) -> st.SearchStrategy[Tensor]:
    """Matrices with numbers of every size up to the greatest, 0 and subnormal ones included."""
    greatest = float(np.float32(greatest))
    numbers = st.floats(-greatest, greatest, width=32)
    return arrays.arrays(np.float32, SHAPES, elements=numbers).map(torch.from_numpy)


def normal(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns) * 0.3


def ulps(got: Tensor, expected: np.ndarray) -> float:
    """The greatest difference, in units of the last place of what was expected."""
    return float((np.abs(got.numpy() - expected) / np.spacing(np.abs(expected))).max())


def decoded(encoding: Encoding) -> Tensor:
    return torch.from_numpy(encoding.decode())


def to_grid(values: Tensor, step: float, limit: float | None = None) -> Grid:
    return Grid.encode(values, {"round": step} | ({} if limit is None else {"clip": limit}))


def to_low_rank(values: Tensor, rank: int, integers: str | None = None) -> LowRank:
    return LowRank.encode(values, {"svd": rank} | ({} if integers is None else {integers: None}))


def to_int8(values: Tensor) -> Integers:
    return Integers.encode(values, {"int8": None})


def to_int6(values: Tensor) -> Integers:
    return Integers.encode(values, {"int6": None})


def to_int4(values: Tensor) -> Integers:
    return Integers.encode(values, {"int4": None})


# Rounding and clipping


@pytest.mark.parametrize(("step", "limit"), [(0.2, None), (0.2, 0.4), (0.5, None), (0.5, 1.0), (0.2, 0.6), (0.1, 0.7)])
@pytest.mark.parametrize("scale", [0.05, 0.3, 3.0])
def test_rounding_is_numpys(step, limit, scale):
    values = torch.randn(67, 41) * scale
    expected = np.round(values.numpy() / np.float32(step)) * np.float32(step)
    if limit is not None:
        expected = np.clip(expected, np.float32(-limit), np.float32(limit))
    got = to_grid(values, step, limit)
    assert decoded(got).dtype == torch.float32
    assert got.shape == (67, 41)
    assert ulps(decoded(got), expected) <= (0 if limit in (None, 0.4, 1.0) else 1)


def test_halves_go_to_the_even_number():
    values = torch.tensor([[0.25, 0.75, 1.25, -0.25, -0.75, -1.25]])
    assert to_grid(values, 0.5).codes.tolist() == [[0, 2, 2, 0, -2, -2]]
    # In float32 0.1 / 0.2 is a half exactly, and 0.3 / 0.2 a little more than one and a half.
    assert to_grid(torch.tensor([[0.1, 0.3]]), 0.2).codes.tolist() == [[0, 2]]


def test_every_multiple_of_a_step_stays_what_it_is():
    for step in (0.2, 0.1, 0.3, 0.7, 1e-3):
        codes = torch.arange(-100, 101).unsqueeze(0)
        assert np.array_equal(to_grid(codes.float() * step, step).codes, codes.to(torch.int8))


@pytest.mark.parametrize(("step", "limit", "highest"), [(0.2, 0.5, 2), (0.2, 0.59, 2), (0.2, 0.6, 3), (0.1, 0.3, 3)])
def test_a_limit_off_the_grid_is_taken_down_to_it(step, limit, highest):
    got = to_grid(torch.linspace(-2, 2, 101).unsqueeze(0), step, limit)
    assert got.codes.min() == -highest
    assert got.codes.max() == highest
    assert got.levels == 2 * highest + 1


def test_codes_are_as_wide_as_they_must_be():
    assert to_grid(torch.tensor([[127.0, -127.0]]), 1.0).codes.dtype == np.int8
    assert to_grid(torch.tensor([[128.0, 0.0]]), 1.0).codes.dtype == np.int16
    assert to_grid(torch.tensor([[500.0, 0.0]]), 1.0, 100.0).codes.dtype == np.int8
    assert to_grid(torch.tensor([[32767.0, -32767.0]]), 1.0).levels == 65535


@pytest.mark.parametrize("greatest", [32768.0, 1.0, 0.0123, 7e-20, 1e30])
def test_rounding_that_is_too_fine_says_what_would_do(greatest):
    values = torch.tensor([[greatest, -greatest / 2]])
    with pytest.raises(G2Error, match="is too fine: .* use round:R with R of at least ") as caught:
        to_grid(values, greatest / 40000)
    named = float(str(caught.value).rpartition(" ")[2])
    assert to_grid(values, named).codes.max() <= 32767
    assert named < 1.2 * greatest / 32767
    assert to_grid(values, greatest / 40000, greatest / 40000 * 2).levels == 5  # after clipping it is not too fine
    with pytest.raises(G2Error, match="is too fine"):
        to_grid(values, greatest / 40000, greatest)


def test_a_fine_step_by_hand():
    message = (
        "round:1e-05 is too fine: a weight of 1.5 would be step number 150000, and a file has room for 32767 on "
        "either side of 0; use round:R with R of at least 4.6e-05"
    )
    with pytest.raises(G2Error, match=f"^{message}$"):
        to_grid(torch.tensor([[1.5, 0.0]]), 1e-5)


@pytest.mark.parametrize("step", [0.0, -1.0, math.nan, math.inf, 1e-31, 1e31])
def test_steps_that_cannot_be(step):
    with pytest.raises(G2Error, match="the R of round:R must lie between 1e-30 and 1e.30, got "):
        to_grid(torch.zeros(2, 2), step)


@pytest.mark.parametrize("limit", [0.1, 0.0, -1.0, math.nan])
def test_limits_that_cannot_be(limit):
    message = f"clip:{limit} leaves only the level 0 of round:0.2; C must be at least R"
    with pytest.raises(G2Error, match=message):
        to_grid(torch.zeros(2, 2), 0.2, limit)


@given(values=matrices(1e30), step=st.floats(1e-30, 1e30), factor=st.none() | st.floats(1, 1e30))
def test_a_grid_is_finite_or_an_error(values, step, factor):
    limit = None if factor is None else step * factor
    highest = min(float(values.abs().max()), limit or math.inf) / step
    assume(not 32767 <= highest <= 32768)
    if highest > 32768:
        with pytest.raises(G2Error, match="is too fine"):
            to_grid(values, step, limit)
        return
    grid = to_grid(values, step, limit)
    got = decoded(grid)
    assert got.isfinite().all()
    if factor is None:
        assert ((got.double() - values.double()).abs() <= step / 2 + 1e-6 * values.double().abs()).all()


# Low rank


def rounding(got: LowRank) -> Tensor:
    """What float16 does to each element of the product: both factors are off by 2^-11 of themselves at most."""
    return 2**-10 * 1.001 * (decoded(got.left).abs() @ decoded(got.right).abs())


def test_low_rank_is_numpys():
    values = torch.rand(1150, 1150) * 0.2 - 0.1
    got = to_low_rank(values, 64)
    left, singular, right = np.linalg.svd(values.double().numpy())
    expected = (left[:, :64] * singular[:64]) @ right[:64]
    assert (np.abs(decoded(got).numpy() - expected) <= rounding(got).numpy()).all()
    error = np.linalg.norm((decoded(got).double() - values.double()).numpy())
    assert error == pytest.approx(math.sqrt((singular[64:] ** 2).sum()), rel=1e-6)
    assert got.stored_bytes == 2 * 64 * 2300
    assert got.rank == 64


@pytest.mark.parametrize(("rows", "columns"), [(5, 9), (9, 5), (1, 1), (1, 7), (40, 40)])
def test_the_full_rank_is_the_matrix(rows, columns):
    values = normal(rows, columns)
    got = to_low_rank(values, min(rows, columns))
    assert got.shape == (rows, columns)
    assert ((decoded(got) - values).abs() <= rounding(got)).all()


@pytest.mark.parametrize("size", [1e-12, 1e12])
def test_factors_that_float16_cannot_hold_are_float32(size):
    values = normal(6, 9) * size
    got = to_low_rank(values, 6)
    assert got.left.values.dtype == got.right.values.dtype == np.float32
    torch.testing.assert_close(decoded(got), values, rtol=1e-4, atol=1e-5 * size)
    assert got.stored_bytes == 4 * 6 * 15


def test_both_factors_have_numbers_of_one_size():
    got = to_low_rank(normal(60, 60) * 1e-3, 20)
    left, right = decoded(got.left), decoded(got.right)
    torch.testing.assert_close(left.norm(dim=0), right.norm(dim=1), rtol=2**-10, atol=0)
    torch.testing.assert_close(left.T @ left, torch.diag(left.norm(dim=0) ** 2), rtol=2**-9, atol=1e-5)


@pytest.mark.parametrize(
    ("integers", "kind"), [(None, Dense), ("int8", Integers), ("int6", Integers), ("int4", Integers)]
)
def test_factors_as_integers(integers, kind):
    values = normal(50, 20) @ normal(20, 70)
    got = to_low_rank(values, 20, integers)
    assert isinstance(got.left, kind)
    assert isinstance(got.right, kind)
    assert got.stored_bytes == got.left.stored_bytes + got.right.stored_bytes
    error = (decoded(got) - values).norm() / values.norm()
    assert error < {None: 2**-10, "int8": 0.015, "int6": 0.05, "int4": 0.15}[integers]
    torch.testing.assert_close(decoded(got.left) @ decoded(got.right), decoded(got))


@pytest.mark.parametrize("rank", [0, -1, 4, 10**30])
def test_ranks_that_cannot_be(rank):
    with pytest.raises(G2Error, match=f"a matrix of 3 x 7 has ranks 1 to 3, got svd:{rank}; use another K"):
        to_low_rank(normal(3, 7), rank)


# Integers


def test_int8_by_hand():
    got = to_int8(torch.tensor([[1.27, -0.635, 0.001], [0.0, 0.0, 0.0], [-254.0, 3.0, 5.1]]))
    assert got.codes.tolist() == [[127, -64, 0], [0, 0, 0], [-127, 2, 3]]
    np.testing.assert_allclose(got.scales, [0.01, 0.0, 2.0], rtol=1e-6)
    assert got.stored_bytes == 9 + 12


@given(matrices(1e30))
@example(torch.tensor([[1e-45, -1e-45]]))
@example(torch.tensor([[1e30, -1e30]]))
def test_int8_is_half_a_step_off_at_most(values):
    got = to_int8(values)
    assert all(np.isfinite(one).all() for one in (got.scales, got.decode()))
    assert not got.codes[got.scales == 0].any()
    half = torch.from_numpy(got.scales).double().unsqueeze(1) / 2
    # A scale below float32's normal range has few digits, and may be 0.
    tolerance = values.double().abs() * 1e-6 + 127 * 1.5e-45
    assert ((decoded(got).double() - values.double()).abs() <= half + tolerance).all()


@given(matrices(8 * GREATEST_HALF))
@example(torch.tensor([[8 * GREATEST_HALF, -8 * GREATEST_HALF]]))
@example(torch.tensor([[7 * GREATEST_HALF, -7 * GREATEST_HALF]]))
@example(torch.tensor([[2e-7, 1e-8]]))
@example(torch.tensor([[1e-45, 3e-6]]))
def test_int4_is_finite_and_no_worse_than_the_plain_scale(values):
    got = to_int4(values)
    assert got.shape == values.shape
    assert np.isfinite(got.scales).all()
    assert decoded(got).isfinite().all()
    assert -8 <= got.codes.min() <= got.codes.max() <= 7
    for row in range(len(values)):
        for group, part in enumerate(values[row].split(32)):
            scale = (part.abs().max() / 7).half().float()
            codes = (part / scale).round().clamp(-7, 7) if 0 < scale < math.inf else torch.zeros_like(part)
            kept = decoded(got)[row, 32 * group : 32 * group + 32]
            plain = codes * min(scale, GREATEST_HALF)
            errors = [(part - one).double().square().sum() for one in (kept, plain)]
            assert errors[0] <= errors[1] * (1 + 1e-5) + 1e-40


def test_int4_by_hand():
    values = torch.zeros(2, 33)
    values[0, :3] = torch.tensor([7.0, -3.0, 1.0])
    values[0, 32] = -0.875
    values[1, 5] = 3.5
    got = to_int4(values)
    assert got.codes[0, [0, 1, 2, 3, 32]].tolist() == [-7, 3, -1, 0, -7]  # the greatest is below 0
    assert got.codes[1, 5] == -7
    assert got.scales.tolist() == [[-1.0, 0.125], [-0.5, 0.0]]
    assert torch.equal(decoded(got), values)
    values[0, :4] = torch.tensor([-8.0, 7.0, 1.0, -2.0])
    got = to_int4(values)
    assert got.codes[0, :4].tolist() == [-8, 7, 1, -2]
    assert torch.equal(decoded(got), values)
    assert got.stored_bytes == 33 + 2 * 4
    assert got.group == 32
    assert Integers.encode(values, {"int4": None, "group": 64}).group == 64


def test_int4_clips_where_that_pays():
    values = torch.rand(64, 256) * 2 - 1
    plain = values.view(64, -1, 32).abs().amax(dim=2) / 7
    got = to_int4(values)
    steps = plain.half().float().repeat_interleave(32, dim=1)
    error = (decoded(got) - values).norm()
    assert error < 0.95 * ((values / steps).round().clamp(-7, 7) * steps - values).norm()
    assert (got.scales < 0.999 * plain.numpy()).mean() > 0.5


def test_a_matrix_and_its_negative_are_kept_alike():
    values = normal(9, 45)
    for method in (to_int8, to_int6, to_int4, lambda values: to_grid(values, 0.2, 0.4), lambda v: to_levels(v, 4)):
        assert torch.equal(decoded(method(-values)), -decoded(method(values)))


def test_int4_refuses_what_float16_cannot_scale():
    with pytest.raises(G2Error, match="int4 holds weights up to 524032, got 6e\\+05; use int8"):
        to_int4(torch.tensor([[6e5, 1.0]]))


def test_int6_by_hand():
    got = to_int6(torch.tensor([[-3.2, 3.1, 0.1], [0.0, 0.0, 0.0], [6.2, -6.2, 0.2]]))
    assert got.codes.tolist() == [[-32, 31, 1], [0, 0, 0], [-31, 31, -1]]
    np.testing.assert_allclose(got.scales, [0.1, 0.0, -0.2], rtol=1e-6)
    assert got.bits == 6
    assert got.stored_bytes == 7 + 12  # nine codes of six bits


def test_more_bits_are_nearer():
    values = normal(20, 64)
    errors = [float((decoded(method(values)) - values).norm()) for method in (to_int8, to_int6, to_int4)]
    assert errors[0] < errors[1] / 3
    assert errors[1] < errors[2] / 2


# All of them


@pytest.mark.parametrize("text", ["round:0.2", "svd:3", "svd:3,int8", "int8", "int6", "int4"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_types_and_strides_are_taken_as_float32(text, dtype):
    steps = Spec.parse(f"gates={text}").gates
    values = normal(12, 40).to(dtype)
    got = encode(values.t().requires_grad_(), steps)
    expected = encode(values.float().t().contiguous(), steps)
    assert torch.equal(decoded(got), decoded(expected))
    assert all(array.flags.c_contiguous for array in got.packed.values())


def test_what_is_kept_does_not_change_with_the_model():
    values = normal(3, 4)
    before, kept = values.clone(), encode(values, None)
    values.zero_()
    assert torch.equal(decoded(kept), before)


@pytest.mark.parametrize("text", ["round:0.2", "svd:1", "int8", "int4", None])
def test_matrices_that_cannot_be_compressed(text):
    steps = Spec.parse(f"gates={text}").gates if text else None
    for bad in (math.nan, math.inf, -math.inf, 2e30):
        with pytest.raises(
            G2Error, match=r"a matrix of shape \(2, 2\) holds NaN or weights beyond 1e\+30; such a model"
        ):
            encode(torch.tensor([[1.0, 0.0], [bad, 0.0]]), steps)
    for wrong in (torch.zeros(3), torch.zeros(0, 3), torch.zeros(2, 0), torch.zeros(2, 2, dtype=torch.int8)):
        with pytest.raises(G2Error, match="a matrix to compress must be floating point with at least one row"):
            encode(wrong, steps)


# Levels


def to_levels(values: Tensor, levels: int, group: int | None = None) -> Levels:
    return Levels.encode(values, {"levels": levels} | ({} if group is None else {"group": group}))


def nearest(quotients: Tensor, levels: int) -> Tensor:
    """The codes by definition: multiples of 1 around 0, or odd numbers where the number of levels is even."""
    codes = torch.arange(1 - levels, levels, 2).float()
    codes = codes / 2 if levels % 2 else codes
    return codes[(quotients.unsqueeze(-1) - codes).abs().argmin(-1)]


@pytest.mark.parametrize("levels", [2, 3, 4, 5, 7, 8, 15, 128, 255])
def test_levels_of_each_row_have_the_least_squared_error(levels):
    """A fine search for scales gains nothing worth naming on average, and little in any row."""
    values = torch.randn(20, 90, generator=torch.Generator().manual_seed(levels)) ** 3  # with outliers
    values[3] *= 1e3
    values[4] *= 1e-3
    matrix = to_levels(values, levels)
    highest = levels // 2 if levels % 2 else levels - 1
    assert np.abs(matrix.codes).max() <= highest
    error = (values - decoded(matrix)).square().sum(1)
    tried = []
    for scale in torch.linspace(0.002, 1.0, 500):
        step = scale / highest * values.abs().amax(1, keepdim=True)
        tried.append((values - nearest(values / step, levels) * step).square().sum(1))
    ratio = error / torch.stack(tried).amin(0)
    assert ratio.mean() < 1.02
    assert ratio.max() < 1.2


@given(matrices(1e4), st.integers(2, 16), st.sampled_from([None, 32, 64]))
def test_levels_are_the_nearest_of_their_scale(values, levels, group):
    got = to_levels(values, levels, group)
    assert got.shape == values.shape
    assert np.isfinite(got.scales).all()
    scales = torch.from_numpy(got.group_scales)
    steps = scales if got.group is None else scales.repeat_interleave(got.group, 1)[:, : values.shape[1]]
    expected = torch.where(steps != 0, nearest(values / steps, levels) * steps, 0.0)
    off, least = ((one - values).double().abs() for one in (decoded(got), expected))
    assert (off <= least + 1e-5 * values.abs().max()).all()


def test_levels_by_hand():
    got = to_levels(torch.tensor([[1.5, -0.5, 0.5, -1.5], [0.0, 0.0, 0.0, 0.0]]), 4)
    assert got.codes.tolist()[0] == [3, -1, 1, -3]
    assert got.scales.tolist() == [0.5, 0.0]
    assert not got.decode()[1].any()
    got = to_levels(torch.tensor([[2.0, 0.0, -2.0]]), 3)
    assert got.codes.tolist() == [[1, 0, -1]]
    assert got.scales.tolist() == [2.0]


@pytest.mark.parametrize(("name", "levels"), [("int2", 4), ("int3", 8)])
def test_few_bits_are_levels(name, levels):
    values = normal(5, 70)
    for group in (None, 32):
        operations = {name: None} | ({} if group is None else {"group": group})
        assert torch.equal(decoded(Levels.encode(values, operations)), decoded(to_levels(values, levels, group)))


def test_levels_of_groups_are_those_of_each_group_alone():
    values = normal(6, 75) * torch.tensor([1.0] * 32 + [10.0] * 32 + [0.1] * 11)
    got = to_levels(values, 4, 32)
    assert got.group_scales.shape == (6, 3)
    alone = [decoded(to_levels(part.contiguous(), 4)) for part in values.split(32, dim=1)]
    assert torch.equal(decoded(got), torch.cat(alone, dim=1))
    assert to_levels(values, 4, 96).group is None  # one group is a row


def test_levels_of_rows_that_are_zero_or_too_large():
    values = torch.randn(3, 8)
    values[1] = 0
    assert not to_levels(values, 5).decode()[1].any()
    values[2] = 1e30
    with pytest.raises(G2Error, match=r"5 levels hold weights up to about 131008, got 1e\+30; use int8"):
        to_levels(values, 5)
    values[2] = 65504.0
    assert np.isfinite(to_levels(values, 2).scales).all()


# As many bits as codes are worth


def to_entropy(values: Tensor, bits: float, zipf: bool = False) -> Entropy:
    return Entropy.encode(values, {"bits": bits} | ({"zipf": None} if zipf else {}))


def error(matrix: Encoding, values: Tensor) -> float:
    return float((decoded(matrix) - values).norm() / values.norm())


@pytest.mark.parametrize("zipf", [False, True])
@pytest.mark.parametrize("bits", [1.0, 1.5, 2.0, 3.0, 4.5, 6.0])
def test_normal_weights_take_the_bits_that_were_asked_for(bits, zipf):
    values = torch.randn(900, 200, generator=torch.Generator().manual_seed(0))
    got = to_entropy(values, bits, zipf)
    assert got.stored_bytes * 8 / values.numel() == pytest.approx(bits, rel=0.04)


@pytest.mark.parametrize("zipf", [False, True])
@pytest.mark.parametrize("power", [1, 3])
def test_more_bits_have_less_error(power, zipf):
    """Also where the largest codes would not fit a byte."""
    values = torch.randn(900, 64, generator=torch.Generator().manual_seed(0)) ** power
    errors = [error(to_entropy(values, bits, zipf), values) for bits in np.arange(1, 6.1, 0.5)]
    assert all(more <= fewer for fewer, more in itertools.pairwise(errors))
    assert errors[-1] < errors[0] / (20 if power == 1 else 3)


def test_other_weights_take_fewer():
    values = torch.randn(300, 200, generator=torch.Generator().manual_seed(0)) ** 3
    assert to_entropy(values, 2.0).stored_bytes * 8 / values.numel() < 1.9


@pytest.mark.parametrize(("bits", "other"), [(1.6, "levels:3"), (2.0, "int2"), (2.33, "levels:5"), (3.0, "int3")])
def test_with_the_same_bits_the_error_is_less(bits, other):
    values = torch.randn(600, 256, generator=torch.Generator().manual_seed(0))
    fixed = encode(values, Spec.parse(f"gates={other}").gates)
    got = to_entropy(values, bits)
    assert got.stored_bytes <= fixed.stored_bytes
    assert error(got, values) < 0.94 * error(fixed, values)


@pytest.mark.parametrize(("bits", "highest"), [(1.5, 3), (1.8, 3), (2.0, 7), (2.8, 7), (4.0, 40)])
def test_few_weights_do_not_cost_all_others_a_bit_in_sessions(bits, highest):
    values = torch.randn(600, 256, generator=torch.Generator().manual_seed(0))
    assert np.abs(to_entropy(values, bits).codes).max() <= highest
    values[0, 0] = 30.0  # but this one would cost too much
    assert error_of_rows(to_entropy(values, bits), values, slice(0, 1)) < 0.3


def test_rows_share_a_step_or_share_it_by_zipfs_law():
    values = torch.randn(2000, 64, generator=torch.Generator().manual_seed(0))
    values[::2] *= 4
    got = to_entropy(values, 3.0)
    assert got.group_scales.max() < 1.1 * got.group_scales.min()
    got = to_entropy(values, 3.0, zipf=True)
    steps = got.group_scales[:, 0] / np.sqrt(np.arange(2000) + 50)
    assert steps.max() < 1.2 * steps.min()
    common, rare = (error_of_rows(got, values, rows) for rows in (slice(0, 100), slice(1900, 2000)))
    assert common < 0.35 * rare


def error_of_rows(matrix: Encoding, values: Tensor, rows: slice) -> float:
    return float((decoded(matrix)[rows] - values[rows]).norm() / values[rows].norm())


@given(matrices(1e30), st.floats(1, 6), st.booleans())
@example(torch.zeros(3, 5), 2.0, True)
@example(torch.tensor([[1e-45, -1e-45]]), 2.0, False)
@example(torch.tensor([[1e30, 1e-30], [1e-30, 0.0]]), 1.0, True)
def test_entropy_is_finite_and_comes_back(values, bits, zipf):
    got = to_entropy(values, bits, zipf)
    assert decoded(got).isfinite().all()
    assert (decoded(got) - values).double().norm() <= values.double().norm() * (1 + 1e-6) + 1e-40
    again = Entry("one", got.describe()).unpack(got.packed)
    assert isinstance(again, Entropy)
    assert np.array_equal(again.codes, got.codes)
    assert torch.equal(decoded(again), decoded(got))


def test_packed_codes_that_cannot_be():
    got = to_entropy(normal(30, 40), 3.0)
    entry, codes, scales = got.describe(), got.packed["codes"], got.packed["scales"]

    def unpack(changed: np.ndarray) -> Encoding:
        return Entry("one", entry | {"bytes": len(changed)}).unpack({"codes": changed, "scales": scales})

    for wrong in (codes[:-1], codes[:40], np.append(codes, np.uint8(1)), np.zeros_like(codes), codes[::-1].copy()):
        with pytest.raises(G2Error, match="the codes of 'one' are damaged"):
            unpack(wrong)
    content = zlib.decompress(codes.tobytes(), -15)
    other = {**dict(enumerate(content)), 0: content[0] ^ 1, len(content): 0}
    for changed in ({**other, 0: 9}, other, dict(enumerate(content[:-1]))):
        stream = zlib.compressobj(9, zlib.DEFLATED, -15)
        packed = stream.compress(bytes(changed.values())) + stream.flush()
        with pytest.raises(G2Error, match="the codes of 'one' are damaged"):
            unpack(np.frombuffer(packed, np.uint8))


def test_a_small_file_cannot_fill_the_memory():
    """A gigabyte of zeros takes a megabyte in zlib; the header must not promise as much."""
    zeros = to_entropy(torch.zeros(100, 5000), 2.0)
    assert zeros.stored_bytes > 100 * 5000 / 40
    with pytest.raises(G2Error, match="must have a bytes of 25000000 to 2147483647, got 1000000"):
        Entry("one", zeros.describe() | {"shape": [1000, 1_000_000], "bytes": 1_000_000})
