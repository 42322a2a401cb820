"""Where a gate stands: which LSTM of a model, which of its layers, which direction; and what people call that."""

import re
from dataclasses import dataclass

from torch import nn

from g2lstm.nn.lstm import G2LSTM

_NUMBERED = re.compile(r"(layer|encoder|decoder)s?\.(\d+)")


@dataclass(frozen=True)
class Place:
    """One direction of one layer.

    Attributes:
        name: of the module in its model, such as "encoder.0"; with ".l0", ".l1" and so on where it has several layers.
        direction: "forward", or "backward" for the direction that reads from the end.
        title: for people, such as "encoder 1, backward".
    """

    name: str
    direction: str
    title: str

    @property
    def side(self) -> str:
        """Which text it reads: "source" or "target" of a translation model, else "text"."""
        return {"encoder": "source", "decoder": "target"}.get(self.name.split(".")[0], "text")


def places(name: str, lstm: nn.Module) -> list[Place]:
    """The places inside one LSTM, in the order of its gates: l0, l0_reverse, l1, ...

    Args:
        name: of the module in its model; "" if it is the model.
        lstm: a `G2LSTM` or `torch.nn.LSTM`.
    """
    assert isinstance(lstm, G2LSTM | nn.LSTM)
    found = []
    for index in range(lstm.num_layers):
        own = ".".join([name] * bool(name) + [f"l{index}"] * (lstm.num_layers > 1)) or "lstm"
        title = title_of(own)
        if lstm.bidirectional:
            found += [Place(own, direction, f"{title}, {direction}") for direction in ("forward", "backward")]
        else:
            found.append(Place(own, "forward", title))
    return found


def title_of(name: str) -> str:
    """What people call a layer of a language or translation model: of "layers.0", "layer 1"; others keep their name."""
    numbered = _NUMBERED.fullmatch(name)
    return f"{numbered[1]} {int(numbered[2]) + 1}" if numbered else name
