"""The share of gates that are near 0 or 1, counted by hand."""

import torch

from g2lstm.nn.gate import Gates
from g2lstm.tasks.task import saturation


def test_a_record_made_by_hand():
    values = torch.tensor([0.05, 0.0999, 0.1001, 0.5, 0.8999, 0.9001, 0.95, float("nan")]).view(8, 1, 1)
    named = {"input": (values,), "forget": (1 - values[:4],), "candidate": (), "output": (values,)}
    call = Gates(named, None, training=False)
    shares = saturation({"layers.0": [call, call]})
    assert shares == {"saturation/layers.0/input": 4 / 7, "saturation/layers.0/forget": 2 / 4}
    assert saturation(None) == {}
