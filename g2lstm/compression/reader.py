"""A few sequences read by the compiled kernel, in the form in which a layer has its input and output."""

import threading
from collections.abc import Hashable, Sequence

import numpy as np
import torch
from torch import Tensor

from g2lstm.compression.kernel import open_session
from g2lstm.compression.session import Layer
from g2lstm.nn.layer import LayerOutput, step_rows


class Reader:
    """One session for each layer and direction of a `CompressedLSTM`; calls from several threads take turns."""

    def __init__(self, key: Hashable, layers: Sequence[Layer], hard: str) -> None:
        self.key = key
        self._sessions = [open_session([layer], hard) for layer in layers]
        self._lock = threading.Lock()

    def read(
        self, number: int, x: Tensor, h: Tensor, c: Tensor, batch_sizes: Tensor | None, backwards: bool
    ) -> LayerOutput:
        """Reads x (T, B, I) or (N, I) from h and c (B, H) through one of the layers, a sequence at a time."""
        session, batch, (h_last, c_last) = self._sessions[number], len(h), (s.numpy(force=True).copy() for s in (h, c))
        rows = (x if batch_sizes is not None else x.flatten(0, 1)).numpy(force=True)
        counts, offset = step_rows(batch, len(x if batch_sizes is None else batch_sizes), batch_sizes, backwards)
        out = np.empty((len(rows), h.size(1)), np.float32)
        for b in range(batch):
            own = (offset[counts > b] + b).numpy()  # this sequence's rows, in the order in which they are read
            with self._lock:
                session.set_state([(h_last[b], c_last[b])])
                out[own] = session.sequence(rows[own])
                [(h_last[b], c_last[b])] = session.get_state()
        shape = out.shape if batch_sizes is not None else (len(x), batch, out.shape[1])
        return LayerOutput(*map(torch.from_numpy, (out.reshape(shape), h_last, c_last)))
