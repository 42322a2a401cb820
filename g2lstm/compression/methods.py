"""The steps of a compression: from a weight matrix to what is kept of it."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from g2lstm.compression.matrix import (
    GREATEST,
    HIGHEST_CODE,
    Dense,
    Encoded,
    Grid,
    GroupInt4,
    LowRank,
    RowIntegers,
    check_step,
)
from g2lstm.compression.spec import Steps
from g2lstm.errors import G2Error

GROUP = 32  # columns that share a scale in int4
_RATIOS = tuple(1 - k / 64 for k in range(25))  # how much of a group's range its codes may cover: the best is taken


def encode(values: Tensor, steps: Steps | None) -> Encoded:
    """Does the steps to one matrix.

    Args:
        values: (rows, columns) of any floating type, on any device; what comes back is on the CPU.
        steps: what is to be done; None keeps the matrix as it is, in float32.
    """
    steps = steps or Steps()
    if steps.rank is not None:
        return to_low_rank(values, steps.rank, steps.integers)
    if steps.step is not None:
        return to_grid(values, steps.step, steps.limit)
    return _to_integers(values, steps.integers)


def to_grid(values: Tensor, step: float, limit: float | None = None) -> Grid:
    """The paper's round_r(x) = round(x / r) r and clip_c(x) = clip(x, -c, c), in float32.

    A quotient half way between two whole numbers goes to the even one, as in NumPy and PyTorch. Every value stays on
    the grid: a limit that is no multiple of the step is taken down to the next one that is. The paper's limits are
    multiples (0.4 of 0.2, 1.0 of 0.5).

    Args:
        values: (rows, columns).
        step: r.
        limit: c, at least r; None for no clipping.
    """
    check_step(step)
    if limit is not None and not limit >= step:
        raise G2Error(f"the C of clip:C must be at least the R of round:R, {step}, or only 0 is left; got {limit}")
    weights = _checked(values)
    codes = (weights / torch.tensor(step, dtype=torch.float32)).round_()
    if limit is not None:
        highest = math.floor(min(limit / step * (1 + 1e-6), HIGHEST_CODE + 1))  # 0.6 / 0.2 is a little below 3
        codes.clamp_(-highest, highest)
    if (top := codes.abs().max()) > HIGHEST_CODE:
        greatest = float(weights.abs().max())
        raise G2Error(
            f"round:{step} is too fine: a weight of {greatest:.3g} would be step number {greatest / step:.6g}, and a "
            f"file has room for {HIGHEST_CODE} on either side of 0; use round:R with R of at least "
            f"{_rounded_up(greatest / HIGHEST_CODE):g}"
        )
    return Grid(codes.to(torch.int8 if top <= 127 else torch.int16), step)


def to_low_rank(values: Tensor, rank: int, integers: str | None = None) -> LowRank:
    """The nearest matrix of this rank: the greatest singular values, as the product of two thin matrices.

    Each factor has the square roots of the singular values in it. So both have numbers of one size, and both keep
    about as many digits as integers. Otherwise they are float16, which rounds far less than a low rank leaves out; or
    float32, where their numbers are too great or too small for that.

    Args:
        values: (rows, columns).
        rank: K, at most the lesser of rows and columns.
        integers: how the factors are kept: "int8", "int6", "int4", or None for floating point.
    """
    weights = _checked(values)
    rows, columns = weights.shape
    if not 1 <= rank <= min(rows, columns):
        raise G2Error(
            f"a matrix of {rows} x {columns} has ranks 1 to {min(rows, columns)}, got svd:{rank}; use another K"
        )
    left, singular, right = torch.linalg.svd(weights.double(), full_matrices=False)
    root = singular[:rank].sqrt()
    left, right = left[:, :rank] * root, root.unsqueeze(1) * right[:rank]
    if integers is None:
        return LowRank(_to_half(left), _to_half(right))
    return LowRank(_to_integers(left, integers), _to_integers(right, integers))


def to_int8(values: Tensor) -> RowIntegers:
    """Each row in 255 steps of its own size, so that its greatest weight is 127 or -127 of them.

    Args:
        values: (rows, columns).
    """
    weights = _checked(values)
    scales = weights.abs().amax(dim=1) / 127
    return RowIntegers(_codes(weights, scales.unsqueeze(1), 8), scales)


def to_int6(values: Tensor) -> RowIntegers:
    """Each row in 64 steps, of the size that makes its squared error least; see `to_int4`.

    Args:
        values: (rows, columns).
    """
    weights = _checked(values)
    scales = _best_scales(weights, 6, torch.float32)
    return RowIntegers(_codes(weights, scales, 6), scales.squeeze(1), bits=6)


def to_int4(values: Tensor) -> GroupInt4:
    """Groups of 32 columns in 16 steps each, of the size that makes the group's squared error least.

    There is one step more below 0 than above, so a scale has the sign that puts a group's greatest weight below 0. It
    pays to clip a group's greatest weights a little for finer steps elsewhere, so some sizes are tried. They are
    float16: a group of weights below 2e-7 becomes 0.

    Args:
        values: (rows, columns); the greatest may be 8 times the greatest float16, which is 524 032.
    """
    weights = _checked(values)
    greatest, most = float(weights.abs().max()), 8 * torch.finfo(torch.float16).max
    if greatest > most:
        raise G2Error(f"int4 holds weights up to {most:.0f}, got {greatest:.3g}; use int8")
    rows, columns = weights.shape
    groups = functional.pad(weights, (0, -columns % GROUP)).view(rows, -1, GROUP)
    scales = _best_scales(groups, 4, torch.float16)
    codes = _codes(groups, scales, 4).view(rows, -1)[:, :columns]
    return GroupInt4(codes.contiguous(), scales.squeeze(2), GROUP)


def _to_half(values: Tensor) -> Dense:
    """In float16 if that is as exact as float16 can be, else in float32."""
    weights = _checked(values)
    half = weights.half()
    error = float((half.double() - weights.double()).norm())
    return Dense(half if error <= 2**-11 * float(weights.double().norm()) else weights)


def _to_integers(values: Tensor, integers: str | None) -> Dense | RowIntegers | GroupInt4:
    match integers:
        case None:
            return Dense(_checked(values).clone())  # it may be the model's own
        case "int8":
            return to_int8(values)
        case "int6":
            return to_int6(values)
        case "int4":
            return to_int4(values)
    raise G2Error(f"weights are kept as 'int8', 'int6' or 'int4', got {integers!r}")


def _rounded_up(number: float) -> float:
    """To two digits."""
    unit = 10.0 ** (math.floor(math.log10(number)) - 1)
    return math.ceil(number / unit) * unit


def _best_scales(groups: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    """For groups (..., n) the scales (..., 1) of least squared error."""
    half = 2 ** (bits - 1)
    greatest = groups.gather(-1, groups.abs().argmax(dim=-1, keepdim=True))
    scales, least = (greatest / -half).to(dtype), torch.full_like(greatest, math.inf)
    widest = greatest / (1 - half)  # where as much on the other side of 0 has a code too
    for ratio in _RATIOS:
        tried = (widest * ratio).to(dtype)
        kept = _codes(groups, tried, bits).float() * tried.float()
        error = (groups - kept).square_().sum(dim=-1, keepdim=True)
        is_better = error < least  # not so where float16 makes infinity of a scale
        scales, least = torch.where(is_better, tried, scales), torch.where(is_better, error, least)
    return scales


def _codes(values: Tensor, scales: Tensor, bits: int) -> Tensor:
    """The nearest codes; 0 where the scale is 0."""
    half, steps = 2 ** (bits - 1), scales.float()
    quotients = torch.where(steps != 0, values / steps, 0.0)
    return quotients.round_().clamp_(-half, half - 1).to(torch.int8)


def _checked(values: Tensor) -> Tensor:
    """The matrix in float32 on the CPU, if it is one that can be compressed."""
    if values.dim() != 2 or values.numel() == 0 or not values.is_floating_point():
        raise G2Error(
            "a matrix to be compressed must be floating point with at least one row and one column, "
            f"got {values.dtype} of shape {tuple(values.shape)}"
        )
    weights = values.detach().to("cpu", torch.float32).contiguous()
    if not weights.abs().max() <= GREATEST:  # false for NaN too
        raise G2Error(
            f"a matrix of shape {tuple(values.shape)} holds NaN or weights beyond {GREATEST}; "
            "such a model cannot be compressed"
        )
    return weights
