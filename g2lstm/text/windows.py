"""A token stream as training reads it: in columns side by side, window after window down the columns."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from g2lstm.errors import G2Error
from g2lstm.text.corpus import TokenStream

IGNORED = -100  # a target that is not predicted; the default of torch's cross entropy


class Window(NamedTuple):
    """What one update of truncated back-propagation reads."""

    tokens: Tensor  # (T, B), int64
    targets: Tensor  # (T, B), int64: the token after each
    position: int  # the row after this window, where reading resumes


class Columns:
    """A stream cut into B columns of equal length, side by side; nothing is copied until it is read.

    Column b starts at token b * rows. The target of each token is the next one in the stream, so no prediction is lost
    between two columns. B is the batch size over all processes, each of which reads its own share of the columns.

    With `keep_tail`, the last tokens are kept even if they do not fill a row, and the places after them are `IGNORED`,
    so that every token but the first is predicted exactly once. Otherwise up to B - 1 tokens at the end are left out.
    """

    def __init__(
        self, stream: TokenStream, batch_size: int, *, rank: int = 0, world_size: int = 1, keep_tail: bool = False
    ) -> None:
        if batch_size < 1 or batch_size % world_size:
            raise G2Error(
                f"the batch size must be a multiple of the number of processes, {world_size}, got {batch_size}"
            )
        predictions = len(stream) - 1
        needed = 1 if keep_tail else batch_size
        if predictions < needed:
            raise G2Error(
                f"a text of {len(stream)} tokens is too short for a batch of {batch_size}, which needs at least "
                f"{needed + 1}; lower train.batch_size, or give more text"
            )
        self.stream = stream
        self.rows = -(-predictions // batch_size) if keep_tail else predictions // batch_size
        self.predictions = predictions if keep_tail else self.rows * batch_size
        self.local_batch = batch_size // world_size
        self._first = rank * self.local_batch

    def window(self, start: int, length: int) -> Window:
        """The rows from `start` on: `length` of them, or as many as remain.

        Returns:
            tokens and targets: (T, B / world_size), with T at most `length`.
        """
        length = min(length, self.rows - start)
        block = np.full((self.local_batch, length + 1), IGNORED, dtype=np.int64)
        for index, row in enumerate(block):
            tokens = self.stream.read((self._first + index) * self.rows + start, length + 1)
            row[: len(tokens)] = tokens
        both = torch.from_numpy(block).t()
        # Past the end of the stream nothing is predicted, so any token will do as the input.
        return Window(both[:-1].clamp_min(0).contiguous(), both[1:].contiguous(), start + length)

    def windows(self, length: int) -> Iterator[Window]:
        """All rows in windows of `length`, the last perhaps shorter."""
        for start in range(0, self.rows, length):
            yield self.window(start, length)


def sample_bptt(
    bptt: int, generator: torch.Generator, *, deviation: float, half_probability: float, minimum: int
) -> int:
    """The length of a window, drawn as for AWD-LSTM: from N(bptt, deviation), sometimes from N(bptt / 2, deviation).

    The mean is halved with `half_probability`; no window is shorter than `minimum`.
    """
    uniform = torch.rand((), dtype=torch.float64, generator=generator).item()
    normal = torch.randn((), dtype=torch.float64, generator=generator).item()
    mean = bptt / 2 if uniform < half_probability else bptt
    return max(minimum, int(mean + deviation * normal))
