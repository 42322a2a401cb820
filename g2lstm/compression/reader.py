"""Single sequences read by the compiled kernel, in the form in which a layer has its input and output."""

import threading
from collections.abc import Hashable, Sequence

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
        session, batch = self._sessions[number], len(h)
        rows = x.detach() if batch_sizes is not None else x.detach().flatten(0, 1)
        counts, offset = step_rows(batch, len(x if batch_sizes is None else batch_sizes), batch_sizes, backwards)
        out = x.new_empty(len(rows), h.size(1))
        h, c = h.detach().clone(), c.detach().clone()
        for b in range(batch):
            own = offset[counts > b] + b  # this sequence's rows, in the order in which they are read
            with self._lock:
                session.set_state([(h[b].numpy(), c[b].numpy())])
                out[own] = torch.from_numpy(session.sequence(rows[own].numpy()))
                [last] = session.get_state()
            h[b], c[b] = (torch.from_numpy(state) for state in last)
        return LayerOutput(out if batch_sizes is not None else out.unflatten(0, (-1, batch)), h, c)
