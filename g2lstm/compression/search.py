"""`search`: the spec with the fewest bytes within a bound on the loss, or the least loss within a bound on the bytes.

Every unit of a model is encoded alone in several ways, to measure what that costs. The choices along the curve that
follows are then measured themselves, from the middle on, until the best one within the bound is found.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from g2lstm.compression import storage
from g2lstm.compression.curve import (
    Choice,
    Found,
    Option,
    Point,
    Unit,
    deviation_from,
    metric_of,
    path,
    spec_of,
    units_of,
)
from g2lstm.compression.encodings import Encoding
from g2lstm.compression.model import copied, install_, plan
from g2lstm.compression.saved import content_of
from g2lstm.compression.spec import Spec, encode
from g2lstm.compression.straight_through import preparations
from g2lstm.compression.targets import find_targets
from g2lstm.errors import G2Error
from g2lstm.files import parse_json, read_bounded, write_whole
from g2lstm.nn.checks import check_module

_MAX_BYTES = 2**26


class Journal:
    """The losses that were measured, by what was measured.

    Args:
        path: a JSON file; None to keep nothing.
        key: identifies model, data and encodings; what is kept under another key does not count.
    """

    def __init__(self, path: Path | None, key: str) -> None:
        self.path, self._key, self.losses = path, key, dict[str, float]()
        if path is not None and path.exists():
            try:
                kept = parse_json(read_bounded(path, _MAX_BYTES))
                losses = {str(name): float(loss) for name, loss in kept["losses"].items()}
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise G2Error(f"{path} is not the journal of a search: {error!r:.200}; delete it") from None
            if kept.get("key") == key:  # not of a model with other weights, say
                self.losses = losses

    def add(self, name: str, loss: float) -> None:
        """Keeps a loss."""
        self.losses[name] = loss
        if self.path is not None:
            write_whole(self.path, json.dumps({"key": self._key, "losses": self.losses}, indent=1).encode())


Measure: TypeAlias = Callable[[nn.Module], float]
Show: TypeAlias = Callable[[str, int, int], None]  # what is being done, how much of it is done, and the total

# What is tried unless other encodings are given; those with zipf only where rows may be words.
ENCODINGS = (
    *("int8", "int6", "int4", "int3", "levels:5", "int2", "levels:3", "bits:2", "bits:1.5"),
    *("bits:3,zipf", "bits:2.5,zipf", "bits:2,zipf", "bits:1.5,zipf"),
)
_NOISE = 1e-9  # the least loss of an encoding, relative to its squared error: between equals the closer one wins


def search(
    model: nn.Module,
    data: Any,
    metric: Callable[[nn.Module, Any], Any] | None = None,
    *,
    max_loss: float | None = None,
    budget: int | None = None,
    encodings: Iterable[str] = ENCODINGS,
    journal: str | Path | None = None,
    show: Show | None = None,
) -> Found:
    """Finds the encoding of each matrix of a model, on the given data.

    Args:
        model: any module that `compress` takes.
        data: batches as the model's forward takes them: each a tensor, a tuple of arguments or a dict of them. One
            tensor is one batch.
        metric: a function of a model and a batch, such as a loss; lower is better, and the mean over the batches
            counts. Without it, the loss is how far the outputs deviate: the norm of all differences, relative to that
            of all outputs.
        max_loss: how much the metric may rise, as a share of its value before; or how far the outputs may deviate.
        budget: the most bytes that a file of `save` may have.
        encodings: the operations that are tried for each matrix, such as "int4".
        journal: a JSON file that keeps what was measured, so a search that was stopped can continue, and one with
            another bound takes less time. Use one file for each model and data.
        show: called with what is being done, how much of it is done, and the total.

    Examples:
        >>> found = g2lstm.search(model, batches, max_loss=0.02)
        >>> print(found)  # the curve and the spec
        >>> small = g2lstm.compress(model, found.spec)
    """
    check_module(model, "search")
    batches = [data] if isinstance(data, torch.Tensor | Mapping) else list(data)
    if not batches:
        raise G2Error("data has no batches; give at least one, as the model's forward takes it")
    measure = deviation_from(model, batches) if metric is None else metric_of(metric, batches)
    finder = Search(model, measure, encodings, is_relative=metric is not None, journal=journal, show=show)
    return finder.find(max_loss=max_loss, budget=budget)


class Search:
    """A search with any measure of loss.

    Args:
        model: any module that `compress` takes.
        measure: the loss of a model like it; lower is better.
        encodings: to try.
        quick: measures single encodings, for example on less data; `measure` if not given.
        is_relative: whether a loss counts relative to that of the model itself.
        label: identifies the data in the journal.
        size: the bytes of the file that holds a compressed model, made by a spec; by default that of `save`.
        journal, show: as for `search`.
    """

    def __init__(
        self,
        model: nn.Module,
        measure: Measure,
        encodings: Iterable[str] = ENCODINGS,
        *,
        quick: Measure | None = None,
        is_relative: bool = True,
        label: str = "",
        size: Callable[[nn.Module, Spec], int] = lambda model, _: len(content_of(model)),
        journal: str | Path | None = None,
        show: Show | None = None,
    ) -> None:
        self.encodings = list(dict.fromkeys(str(Spec.parse(one)) for one in encodings))
        if wrong := [one for one in self.encodings if "=" in one or one == "keep"]:
            raise G2Error(f"{wrong[0]!r} is not an encoding to try; give operations such as int4")
        if preparations(model):
            raise G2Error("this model is prepared for one spec already; call g2lstm.unprepare_(model) before a search")
        plan(model, Spec.parse("int8"))
        self._model = copied(model, {}).eval()  # its weights are replaced by decoded ones in turn
        self._matrices = find_targets(self._model).matrices
        self._layers = find_targets(self._model).layers.values()
        self._originals = {name: target.values.clone() for name, target in self._matrices.items()}
        self.units = units_of(self._matrices)
        self._measure, self._quick, self._is_relative = measure, quick or measure, is_relative
        self._size, self._show = size, show or (lambda *_: None)
        self._journal = Journal(None if journal is None else Path(journal), self._key(label))
        self._encoded = cache(self._encode)

    def find(self, *, max_loss: float | None = None, budget: int | None = None) -> Found:
        """The choice with the fewest bytes whose loss is at most `max_loss`; or the least loss within the budget."""
        _check_bounds(max_loss, budget)
        sizes = {unit: self._sizes(unit) for unit in self.units}
        smallest = {unit: min(own, key=lambda one: own[one]) for unit, own in sizes.items()}
        before, least = sum(one.nbytes for one in self._model.parameters()), self._exact_size(smallest)
        if budget is not None:
            self._check_budget(budget, before, least)
        options = self._options(sizes)
        choices = path(options)
        rest = least - self._estimated_size(smallest)
        estimates = [self._estimated_size(choice) + rest for choice in choices]
        measured: dict[int, float] = {}
        if max_loss is not None:
            best = self._last_within(max_loss, choices, measured)
            size = self._exact_size(choices[best])
        else:
            assert budget is not None
            best = next(index for index, size in enumerate(estimates) if size <= budget)
            while (size := self._exact_size(choices[best])) > budget:
                best += 1
            measured[best] = self._loss(choices[best])
        estimates[best] = size
        singles = {(unit, one.encoding): one.loss for unit, own in options.items() for one in own}
        points = []
        for index, choice in enumerate(choices):
            expected = sum(singles[unit, encoding] for unit, encoding in choice.items())
            expected = expected if self._is_relative else math.sqrt(expected)
            points.append(Point(spec_of(choice, self._matrices), estimates[index], expected, measured.get(index)))
        return Found(points[best], points[1:], before)

    def _last_within(self, max_loss: float, choices: Sequence[Choice], measured: dict[int, float]) -> int:
        """The last choice within the bound, if the loss rises along the curve; it is measured in any case."""
        low, high = 0, len(choices)  # the first is within, those from `high` on are not
        rounds = math.ceil(math.log2(high))
        while high - low > 1:
            middle = (low + high) // 2
            measured[middle] = self._loss(choices[middle])
            low, high = (middle, high) if measured[middle] <= max_loss else (low, middle)
            self._show("measuring choices", len(measured), max(rounds, len(measured)))
        if low == 0:
            (unit, encoding), loss = next((pair, measured[1]) for pair in choices[1].items() if pair[1] != "keep")
            raise G2Error(
                f"no encoding keeps the loss within {max_loss:.3%}: the cheapest, {encoding} for {unit.name}, already "
                f"loses {loss:.3%}; allow more"
            )
        return low

    def _options(self, sizes: Mapping[Unit, Mapping[str, int]]) -> dict[Unit, list[Option]]:
        """What each unit can become; measures what has not been measured.

        Deviations that are independent of each other add up as squares.
        """
        options: dict[Unit, list[Option]] = {}
        total, done = sum(len(own) - 1 for own in sizes.values()), 0
        for unit, own in sizes.items():
            options[unit] = [Option("keep", own["keep"], 0.0)]
            for encoding, size in own.items():
                if encoding != "keep":
                    loss = max(self._loss({unit: encoding}, is_quick=True), 0.0)
                    loss = (loss if self._is_relative else loss**2) + _NOISE * self._error(unit, encoding)
                    if math.isfinite(loss):
                        options[unit].append(Option(encoding, size, loss))
                    done += 1
                    self._show("measuring matrices", done, total)
        return options

    def _loss(self, choice: Choice, *, is_quick: bool = False) -> float:
        """The loss of a choice, compared with that of the model itself if it is relative."""
        before = self._measured({}, is_quick) if self._is_relative else 0.0
        if self._is_relative and (before == 0 or not math.isfinite(before)):
            raise G2Error(f"the metric of the model itself is {before}; a loss relative to it has no meaning")
        after = self._measured(choice, is_quick)
        return (after - before) / abs(before) if self._is_relative else after

    def _measured(self, choice: Choice, is_quick: bool) -> float:
        changed = {unit: encoding for unit, encoding in choice.items() if encoding != "keep"}
        words = "; ".join(f"{unit.name}: {encoding}" for unit, encoding in changed.items())
        key = f"{'single' if is_quick else 'whole'} {words}"
        if (known := self._journal.losses.get(key)) is not None:
            return known
        names = [name for unit in changed for name in unit.matrices]
        try:
            for unit, encoding in changed.items():
                for name in unit.matrices:
                    decoded = torch.from_numpy(self._encoded(name, encoding).decode())
                    self._matrices[name].values.copy_(decoded)
            loss = float((self._quick if is_quick else self._measure)(self._model))
        finally:
            for name in names:
                self._matrices[name].values.copy_(self._originals[name])
        if math.isnan(loss):
            raise G2Error(f"the metric is NaN for {words or 'the model itself'}; it must be a number, lower for better")
        self._journal.add(key, loss)
        return loss

    def _error(self, unit: Unit, encoding: str) -> float:
        """The squared error of a unit relative to its squares."""
        error = squares = 0.0
        for name in unit.matrices:
            values = self._originals[name].cpu().double()
            error += float((values - torch.from_numpy(self._encoded(name, encoding).decode())).square().sum())
            squares += float(values.square().sum())
        return error / max(squares, 1e-30)

    def _encode(self, name: str, encoding: str) -> Encoding:
        return encode(self._originals[name], Spec.parse(encoding).gates or None)

    def _sizes(self, unit: Unit) -> dict[str, int]:
        """The bytes of a unit in each encoding that can hold it."""
        sizes = {}
        for encoding in ("keep", *self.encodings):
            if "zipf" in encoding and unit.group not in ("embedding", "softmax"):
                continue  # other rows are no words
            try:
                sizes[encoding] = sum(self._encoded(name, encoding).stored_bytes for name in unit.matrices)
            except G2Error:  # weights that are too large for it, or a matrix that has no such rank
                if encoding == "keep":
                    raise
        return sizes

    def _matrices_of(self, choice: Choice) -> dict[str, Encoding]:
        """The matrices of a file that holds this choice."""
        of = {name: encoding for unit, encoding in choice.items() for name in unit.matrices}
        wanted = {name for name, encoding in of.items() if encoding != "keep"}
        for names in self._layers:  # a layer has all of its matrices encoded, or none
            wanted |= set(names.values()) if wanted & set(names.values()) else set()
        return {name: self._encoded(name, of[name]) for name in self._matrices if name in wanted}

    def _exact_size(self, choice: Choice) -> int:
        """The bytes of the file that holds this choice."""
        small = install_(copied(self._model, {}), self._matrices_of(choice)).eval()
        return self._size(small, spec_of(choice, self._matrices))

    def _estimated_size(self, choice: Choice) -> int:
        """Without what the file says about the model as a whole."""
        matrices = self._matrices_of(choice)
        replaced = {id(self._matrices[name].parameter) for name in matrices}
        others = sum(one.nbytes for one in self._model.parameters() if id(one) not in replaced)
        entries = sum(len(json.dumps({name: one.describe()})) for name, one in matrices.items())
        return others + entries + sum(one.stored_bytes for one in matrices.values())

    def _check_budget(self, budget: int, before: int, least: int) -> None:
        if budget < least:
            raise G2Error(
                f"no choice fits into {budget:,} bytes: the least that these encodings reach is {least:,}; raise the "
                "budget"
            )
        if budget >= before:
            raise G2Error(f"the model's {before:,} bytes already fit into {budget:,}; lower the budget")

    def _key(self, label: str) -> str:
        digest = hashlib.sha256(json.dumps([label, self.encodings]).encode())
        for name, tensor in sorted(self._model.state_dict().items()):
            digest.update(name.encode())
            digest.update(storage.array_of(tensor).tobytes())
        return digest.hexdigest()


def _check_bounds(max_loss: float | None, budget: int | None) -> None:
    if (max_loss is None) == (budget is None):
        raise G2Error("give either max_loss or budget, such as max_loss=0.005 or budget=2_000_000")
    bound = max_loss if budget is None else budget
    if isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 < bound < math.inf:
        raise G2Error(f"{'max_loss' if budget is None else 'budget'} must be a number above 0, got {bound!r}")
