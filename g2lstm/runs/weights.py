"""The file of weights in a run directory: opened once, checked, and put into a model."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from g2lstm.compression import storage
from g2lstm.compression.encodings.base import brief
from g2lstm.compression.model import encoded_matrices, install_
from g2lstm.compression.spec import Spec
from g2lstm.compression.storage import HEADER, parse_header
from g2lstm.errors import G2Error
from g2lstm.runtime.weights import COMPRESSED, check_facts


def compressed_weights(model: nn.Module, spec: Spec, facts: Mapping[str, str]) -> bytes:
    """The file of weights of a compressed model, with facts about their training."""
    metadata = {**facts, "version": str(COMPRESSED)}
    return storage.save(encoded_matrices(model), dict(model.named_parameters()), spec, metadata)


class Weights:
    """An open file of weights; `facts` is what it says about their training, such as the checksum of the data."""

    def __init__(self, path: Path, file: Any) -> None:
        self.path, self._file = path, file
        self.facts: dict[str, str] = file.metadata() or {}
        check_facts(path, self.facts)

    @cached_property
    def spec(self) -> str | None:
        """How the weights are compressed; None if they are not."""
        header = self.facts.get(HEADER)
        try:
            return None if header is None else str(parse_header(header)["spec"])
        except G2Error as error:
            raise G2Error(f"{self.path} can't be read: {error}; compress the original again") from None

    def fill_(self, model: nn.Module) -> None:
        """Puts the weights, which must be uncompressed, fit and be finite, into a model, perhaps on the meta device."""
        if self.spec is not None:
            raise G2Error(
                f"the weights in {self.path.parent} are compressed ({self.spec}) and can't be trained; use the run "
                "they were made from"
            )
        expected = {name: (list(value.shape), "F32") for name, value in model.state_dict().items()}
        slices = {name: self._file.get_slice(name) for name in self._file.keys()}  # noqa: SIM118, it is no mapping
        self._compare({name: (part.get_shape(), part.get_dtype()) for name, part in slices.items()}, expected)
        weights = {name: torch.from_numpy(self._file.get_tensor(name)) for name in slices}
        if wrong := [name for name, value in weights.items() if not value.isfinite().all()]:
            raise G2Error(f"{self.path} is broken: {wrong[0]} is not finite; train the model again")
        model.load_state_dict(weights, assign=next(model.parameters()).is_meta)

    def fill_compressed_(self, model: nn.Module) -> None:
        """Puts compressed weights, which must fit, into a model, perhaps on the meta device."""
        stored = storage.load(self.path, self._file)
        try:
            install_(model, stored.matrices)
        except G2Error as error:
            raise self._does_not_fit(str(error)) from None
        expected = {name: (tuple(value.shape), value.dtype) for name, value in model.named_parameters()}
        self._compare({name: (tuple(value.shape), value.dtype) for name, value in stored.others.items()}, expected)
        model.load_state_dict(model.state_dict() | stored.others, assign=True)

    def _compare(self, found: Mapping[str, tuple[Any, Any]], expected: Mapping[str, tuple[Any, Any]]) -> None:
        """Raises unless both name the same tensors, with the same shapes and types."""
        for name in sorted(expected.keys() | found.keys()):
            got, wanted = (" ".join(map(str, one.get(name, ["none"]))) for one in (found, expected))
            if got != wanted:
                raise self._does_not_fit(f"{brief(name)} has shape {got}, expected {wanted}")

    def _does_not_fit(self, why: str) -> G2Error:
        return G2Error(
            f"{self.path} does not fit the recipe and the tokenizer: {why}; use the ones it was trained with"
        )
