"""Counts gate values: in one pass of the compiled kernel (`csrc/count.cpp`), or in torch operations without it."""

import ctypes
import functools
import math
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from g2lstm.errors import G2Error
from g2lstm.nn.kernel import Found, find_library

BINS = 100
NEAREST = 1e-6  # forget gates are taken to be so far from 0 and from 1 when memory is measured
_BLOCK = 1 << 17  # values that are counted together: few enough to stay in a core's cache
_LOG_ENDS = math.log2(NEAREST), math.log2(1 - NEAREST)

_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int


class Counted(NamedTuple):
    """What is kept of some values of one gate; the sums in float64."""

    counts: Tensor  # (100,) int64
    steps: int  # rows that were counted
    sums: Tensor  # (H,)
    ones: Tensor  # (H,): how often each unit was at 0.5 or above
    halvings: Tensor  # (H,): sums of -log2; zeros where they are not wanted
    upper: float  # the sum of the values at 0.5 or above


@functools.cache
def find() -> Found:
    """Loads the best build for this processor, once."""
    return find_library(Path(__file__).parent, _bind)


def _bind(library: ctypes.CDLL) -> bool:
    library.g2lstm_count.argtypes = [_POINTER, _LONG, _LONG, _INT, *[_POINTER] * 6, _INT]
    library.g2lstm_count.restype = _INT
    return True


def count(values: Tensor, is_memory: bool = False) -> Counted:
    """Counts values (N, H); a row that is not finite, as after a sequence's end, is left out.

    Args:
        values: of one gate.
        is_memory: whether to add up -log2 as well.
    """
    rows = values.float().cpu().contiguous()
    return count_compiled(rows, is_memory) if find().library is not None else count_plain(rows, is_memory)


def count_compiled(rows: Tensor, is_memory: bool) -> Counted:
    """`count` in one pass over contiguous float32 on the CPU, on all threads."""
    library, units = find().library, rows.size(1)
    assert library is not None, "the caller checks that the kernel is there"
    assert rows.dtype == torch.float32
    assert rows.is_contiguous()
    whole = torch.zeros(BINS + 1, dtype=torch.int64)  # the counts, and the rows
    sums = torch.zeros(3 * units + 1, dtype=torch.float64)  # of values, ones, halvings, and of the upper values
    counts, steps = whole.split([BINS, 1])
    total, ones, halvings, upper = sums.split([units, units, units, 1])
    targets = [part.data_ptr() for part in (counts, total, ones, halvings, upper, steps)]
    failed = library.g2lstm_count(rows.data_ptr(), *rows.shape, is_memory, *targets, torch.get_num_threads())
    if failed == 1:
        raise MemoryError("the kernel that counts gates could not allocate its sums")
    if failed:
        raise _outside(rows)
    return Counted(counts, int(steps), total, ones, halvings, float(upper))


def count_plain(rows: Tensor, is_memory: bool) -> Counted:
    """`count` in torch operations."""
    units = rows.size(1)
    counts = torch.zeros(BINS, dtype=torch.int64)
    sums, ones, halvings = torch.zeros(3, units, dtype=torch.float64)
    steps, upper = 0, 0.0
    for block in rows.split(max(1, _BLOCK // units)):
        known = block[block.sum(1).isfinite()]
        if known.numel() and not (known.min() >= 0 and known.max() <= 1):
            raise _outside(rows)
        # In float32 these products are below 10 and 90 where the values are below 0.1 and 0.9, and nowhere else.
        codes = (known * BINS).to(torch.int8).clamp_(max=BINS - 1)
        is_open = (known >= 0.5).float()
        counts += torch.bincount(codes.flatten(), minlength=BINS)
        steps += len(known)
        sums += known.sum(0)
        ones += is_open.sum(0)
        upper += torch.dot(is_open.flatten(), known.flatten()).item()
        if is_memory:
            halvings -= torch.log2(known).clamp_(*_LOG_ENDS).sum(0)
    return Counted(counts, steps, sums, ones, halvings, upper)


def _outside(rows: Tensor) -> G2Error:
    known = rows[rows.sum(1).isfinite()]
    return G2Error(f"a gate lies between 0 and 1, got values from {known.min():g} to {known.max():g}; give gates alone")
