"""The gates of a translation model, without those of padding."""

import torch

from g2lstm.nn.record import GateRecord
from g2lstm.text.batches import PairBatch


def hide_padding(record: GateRecord, batch: PairBatch) -> None:
    """Makes the gates of one recorded batch NaN where it is padding; those of the first layer, packed, are already."""
    is_source = torch.arange(len(batch.source)).unsqueeze(1) < batch.source_lengths
    for name, calls in record.items():
        is_token = is_source if name.startswith("encoder.") else batch.targets >= 0
        calls[-1] = calls[-1].known(is_token.to(calls[-1].input[0].device))
