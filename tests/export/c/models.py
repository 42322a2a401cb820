"""Models for the tests of C: all encodings in one model, and models as others write them."""

import torch
from torch import nn

import g2lstm

ENCODINGS = {  # every form that the C code can read
    "float32": "gates=keep; cell=keep",
    "int8": "gates=int8; cell=int8",
    "int6": "gates=int6; cell=int6",
    "int4": "gates=int4; cell=int4",
    "five levels": "gates=levels:5; cell=levels:5",
    "three levels": "gates=levels:3; cell=levels:3",
    "int3, int2": "gates=int3; cell=int2",
    "groups": "gates=levels:5,group:32; cell=int4,group:64",
    "small groups": "gates=levels:4,group:32; cell=int2,group:32",
    "bits": "gates=bits:3; cell=bits:2.5",
    "grid": "gates=round:0.1,clip:0.3; cell=round:0.05",
    "wide grid": "gates=round:0.0001; cell=round:0.001",
    "low rank": "gates=svd:9; cell=svd:11",
    "low rank, int8": "gates=svd:9,int8; cell=svd:11,int4",
}


class Mixed(nn.Module):
    """Layers of one width, one for each encoding, with a residual around each so that no error can hide."""

    def __init__(self, width: int = 21, inputs: int = 7) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.layers = nn.ModuleList(g2lstm.G2LSTM(width, width) for _ in ENCODINGS)
        self.last = nn.Linear(width, 5)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        for layer in self.layers:
            x = x + layer(x)[0]
        return self.last(x)


def mixed() -> nn.Module:
    """A `Mixed` whose layers are compressed, each in its own way."""
    model = Mixed().eval()
    return g2lstm.compress(model, {f"layers.{k}": spec for k, spec in enumerate(ENCODINGS.values())})


class Detector(nn.Module):
    """What people stream: a normalised linear front end, a GRU and a head; the state starts at a learnt value."""

    def __init__(self, features: int = 13, hidden: int = 18, classes: int = 4) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Linear(features, hidden), nn.LayerNorm(hidden), nn.GELU(), nn.Dropout(0.2))
        self.gru = nn.GRU(hidden, hidden, 2, batch_first=True)
        self.h0 = nn.Parameter(torch.randn(2, 1, hidden) / 2)
        self.norm = nn.BatchNorm1d(2 * hidden)
        self.head = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.SiLU(), nn.Linear(hidden, classes))
        self.norm.running_mean.normal_(std=0.2)
        self.norm.running_var.uniform_(0.5, 1.5)

    def forward(self, x):
        x = self.front(x)
        out, h = self.gru(x, self.h0.expand(-1, x.size(0), -1).contiguous())
        both = torch.cat([out[:, -1], h[-2]], dim=-1)
        return self.head(self.norm(both)).softmax(-1)


class Cells(nn.Module):
    """A tagger that steps its own cells, and takes and returns their states."""

    def __init__(self, tokens: int = 40, width: int = 16, tags: int = 9) -> None:
        super().__init__()
        self.table = nn.Embedding(tokens, width)
        self.low, self.high = nn.LSTMCell(width, width), nn.GRUCell(width, width)
        self.scale = nn.Parameter(torch.rand(width) + 0.5)
        self.out = nn.Linear(width, tags)

    def forward(self, token, state):
        h, c, top = state
        h, c = self.low(self.table(token) * self.scale, (h, c))
        top = self.high(torch.relu(h) - 0.1, top)
        return self.out(top).argmax(-1), (h, c, top)
