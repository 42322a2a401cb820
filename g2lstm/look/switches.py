"""`Switches`: the units whose gates open and close with something that can be named, such as commas or quotations."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from g2lstm.look.features import Features
from g2lstm.runs.records import Example, Explained
from g2lstm.tasks.reading import Place
from g2lstm.tasks.trained import Trained

SHOWN = 12  # units
_ALIKE = 2  # of them with the same feature
_LEAST = 10  # tokens that a feature must be true of, and as many that it must not
_EXAMPLES = 2  # of each unit
_BEFORE, _AFTER = 5, 7  # tokens of an example on either side of the switch
_PLENTY = 4000  # tokens to find examples in

Counts = npt.NDArray[np.float64]


class Switches:
    """Counts how often each gate of each unit is open where each feature is true, in constant memory.

    Half of the columns of each batch, which are stretches of a text or sentences, serve to choose the feature that
    explains a unit best. The others tell how well it does.

    Args:
        trained: the model and its tokenizers.
        is_continued: whether each pass goes on where the last one ended.
    """

    def __init__(self, trained: Trained, is_continued: bool) -> None:
        self._features = {
            side: Features(tokenizer)
            for side, tokenizer in zip(trained.sides, trained.tokenizers.values(), strict=True)
        }
        self._is_continued = is_continued
        self._counts: dict[tuple[Place, str], Counts] = {}  # (2, features + 1, units + 1): the last of each counts all
        self._true: dict[str, Tensor] = {}

    def read(self, tokens: Mapping[str, Tensor]) -> None:
        """The tokens (T, B) of the next pass, by side."""
        for side, ids in tokens.items():
            features = self._features[side]
            if not self._is_continued:
                features.start()
            found = torch.from_numpy(features.read(ids.numpy()))
            self._true[side] = torch.cat([found, torch.ones_like(found[..., :1])], dim=-1).float()

    def add(self, place: Place, gate: str, values: Tensor, is_token: Tensor | None) -> None:
        """Counts the input and forget gates (T, B, H) of one place in this pass; `is_token` is false at padding."""
        if gate == "output":
            return
        true = self._true[place.side]
        if is_token is not None:
            true = true * is_token.unsqueeze(-1)
        is_open = (values.cpu() >= 0.5).float()
        both = torch.cat([is_open, torch.ones_like(is_open[..., :1])], dim=-1)
        halves = [torch.einsum("tbf,tbh->fh", true[:, half::2], both[:, half::2]).double() for half in (0, 1)]
        counted = torch.stack(halves).numpy()
        self._counts[place, gate] = self._counts.get((place, gate), 0) + counted

    def best(self) -> list[Explained]:
        """The units that are explained best, with no more than two for the same feature."""
        found = [one for (place, gate), counts in self._counts.items() for one in self._of(place, gate, counts)]
        kept, alike = [], Counter[str]()
        for one in sorted(found, key=lambda one: -abs(one.phi_chosen)):
            if alike[one.feature] < _ALIKE:
                kept.append(one)
                alike[one.feature] += 1
        return kept[:SHOWN]

    def _of(self, place: Place, gate: str, counts: Counts) -> Iterator[Explained]:
        """Every unit of a gate that has switched, with its best feature."""
        both, true = counts[:, :-1, :-1], counts[:, :-1, -1:]  # (2, F, H) and (2, F, 1)
        is_open, all_tokens = counts[:, -1:, :-1], counts[:, -1:, -1:]
        is_common = np.asarray((np.minimum(true, all_tokens - true) >= _LEAST).all(0))
        spread = true * (all_tokens - true) * is_open * (all_tokens - is_open)
        phi = (both * all_tokens - true * is_open) / np.sqrt(np.maximum(spread, 1.0))
        chosen = np.where(is_common, np.abs(phi[0]), 0.0).argmax(0)
        names = self._features[place.side].names
        for unit, feature in enumerate(chosen):
            if is_common[feature] and spread[:, feature, unit].all():
                n, t, o, b = all_tokens[1, 0, 0], true[1, feature, 0], is_open[1, 0, unit], both[1, feature, unit]
                yield Explained(
                    name=place.name,
                    direction=place.direction,
                    title=place.title,
                    gate=gate,
                    unit=unit,
                    feature=names[feature],
                    phi=float(phi[1, feature, unit]),
                    open_with=float(b / t),
                    open_without=float((o - b) / (n - t)),
                    phi_chosen=float(phi[0, feature, unit]),
                )


class Examples:
    """Finds places where the gates of some units switch, in columns that their features were not chosen on.

    Args:
        trained: the model and its tokenizers.
        units: those to find examples for.
    """

    def __init__(self, trained: Trained, units: list[Explained]) -> None:
        self._tokenizers = dict(zip(trained.sides, trained.tokenizers.values(), strict=True))
        self._units = units
        self._found: list[list[tuple[int, Example]]] = [[] for _ in units]  # each with its rank
        self._tokens: Mapping[str, Tensor] = {}
        self._seen = 0

    @property
    def is_enough(self) -> bool:
        """Whether enough text was read."""
        return self._seen >= _PLENTY

    def read(self, tokens: Mapping[str, Tensor]) -> None:
        """The tokens (T, B) of the next pass, by side."""
        self._tokens = tokens
        self._seen += max(ids.numel() for ids in tokens.values())

    def add(self, place: Place, gate: str, values: Tensor, is_token: Tensor | None) -> None:
        """The gates (T, B, H) of one place in this pass."""
        for k, one in enumerate(self._units):
            if (one.name, one.direction, one.gate) != (place.name, place.direction, gate):
                continue
            is_open = values[:, 1::2, one.unit].cpu() >= 0.5
            for column, ids in enumerate(self._tokens[place.side][:, 1::2].t()):
                length = len(ids) if is_token is None else int(is_token[:, 2 * column + 1].sum())
                self._look(k, place.side, ids[:length].tolist(), is_open[:length, column].tolist())

    def _look(self, k: int, side: str, ids: list[int], is_open: list[bool]) -> None:
        """Keeps the stretch around a switch where the gate is open about half of the time, if it is better."""
        switches = [at for at in range(1, len(ids)) if is_open[at] != is_open[at - 1]]
        parts = [slice(max(at - _BEFORE, 0), at + _AFTER) for at in switches]
        ranks = [min(sum(is_open[part]), len(is_open[part]) - sum(is_open[part])) for part in parts]
        if not parts:
            return
        best = parts[int(np.argmax(ranks))]
        example = Example(tokens=self._tokenizers[side].readable(ids[best]), open=is_open[best])
        self._found[k] = sorted([*self._found[k], (max(ranks), example)], key=lambda one: -one[0])[:_EXAMPLES]

    def explained(self) -> list[Explained]:
        """The units with their examples."""
        each = zip(self._units, self._found, strict=True)
        return [one.model_copy(update={"examples": [example for _, example in found]}) for one, found in each]


class Timelines(NamedTuple):
    """The units of a binary gate that switch most often in a text, similar ones next to each other."""

    units: list[int]
    is_open: npt.NDArray[np.bool_]  # (units, T)
    closed: int  # the number of units that stay closed
    open: int  # and of those that stay open

    @classmethod
    def of(cls, values: npt.NDArray[np.float32], most: int = 40) -> "Timelines | None":
        """From the gates (T, H) of all units; None if they are not all 0 or 1."""
        if not ((values == 0) | (values == 1)).all():
            return None
        switches = (values[1:] != values[:-1]).sum(0)
        units = np.sort(np.argsort(-switches, kind="stable")[: min(most, int((switches > 0).sum()))])
        shown = values[:, units].T
        if len(units) > 1:
            # The first singular vector puts units that are open at the same tokens next to each other.
            order = np.argsort(np.linalg.svd(shown - shown.mean(0))[0][:, 0], kind="stable")
            units, shown = units[order], shown[order]
        constant = values[0, switches == 0]
        return cls(units.tolist(), shown > 0, int((constant == 0).sum()), int((constant == 1).sum()))
