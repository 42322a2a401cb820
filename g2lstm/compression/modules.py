"""Modules with encoded weights: they decode them on first use, and compute as the modules that they replace.

Their `state_dict` holds the packed tensors, and in the place of each parameter that they stand for a few bytes that fit
no parameter: a model that is not compressed can't load it without an error, not even with strict=False. Moving a module
to a device or a type moves only what is decoded.
"""

import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from g2lstm.compression.encodings import KINDS, Encoding, Entry
from g2lstm.errors import G2Error

_MARK = b"packed by g2lstm.compress"  # stands in a state_dict where a parameter was


class Decoded:
    """The values of some encodings as one tensor, their rows one after the other, kept until something changes."""

    def __init__(self) -> None:
        self._encodings: list[Encoding] = []
        self._values = torch.empty(0)

    def __call__(self, encodings: Sequence[Encoding], like: Tensor) -> Tensor:
        """With the device and type of `like`."""
        values, is_same = self._values, len(encodings) == len(self._encodings)
        is_same = is_same and all(one is other for one, other in zip(encodings, self._encodings, strict=True))
        if not is_same or values.device != like.device or values.dtype != like.dtype:
            with torch.inference_mode(False):  # later calls may want gradients of their input
                values = torch.cat([torch.from_numpy(encoding.decode()) for encoding in encodings]).to(like)
            if type(values) is Tensor:  # not the kind that torch.export traces with
                self._encodings, self._values = list(encodings), values
        return values

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        """Copies and pickles decode again."""
        return type(self), ()


class EncodedMatrix(nn.Module):
    """An encoding inside a model; in the place of a parameter it is the weights of a softmax.

    Args:
        encoding: the matrix.
        like: the parameter that it stands for, whose device and type it has; the CPU instead of the meta device.

    Attributes:
        encoding: the matrix, (rows, columns), on the CPU.
        like: an empty tensor with the device and type of the decoded values.
    """

    def __init__(self, encoding: Encoding, like: Tensor) -> None:
        super().__init__()
        self._decoded = Decoded()
        self.like = torch.empty(0, dtype=like.dtype, device="cpu" if like.is_meta else like.device)
        self._take(encoding)

    def _take(self, encoding: Encoding) -> None:
        self.encoding, self._facts = encoding, encoding.describe()
        for name, array in encoding.packed.items():
            *path, leaf = name.split(".")
            holder: nn.Module = self
            for part in path:
                if part not in dict(holder.named_children()):
                    holder.add_module(part, nn.Module())
                holder = holder.get_submodule(part)
            holder.register_buffer(leaf, torch.from_numpy(array).clone())

    @property
    def weight(self) -> Tensor:
        """The decoded values, (rows, columns)."""
        return self._decoded([self.encoding], self.like)

    def forward(self, x: Tensor) -> Tensor:
        """The product (..., rows) with x (..., columns)."""
        return functional.linear(x, self.weight)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Codes and scales mean nothing in another type, so only what is decoded follows `.to` and its like."""
        self.like = fn(self.like)
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """The packed tensors, what a file's header would say about them, and a mark in the place of the parameter."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}header"] = _bytes(json.dumps(self._facts).encode())
        destination[_parameter(prefix)] = _bytes(_MARK)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Takes another matrix of the same shape and encoding; anything else is an error, whatever `strict` is."""
        name = _parameter(prefix)
        if name in unexpected_keys:
            unexpected_keys.remove(name)
        header = state_dict.get(f"{prefix}header")
        if header is None:
            raise G2Error(
                f"this state_dict has no packed {name}, so it does not come from a model compressed like this one; "
                "load it into the model before g2lstm.compress"
            )
        try:
            facts = json.loads(bytes(header.tolist()))
        except ValueError as error:
            raise G2Error(f"the packed {name} of this state_dict is damaged: {error}") from None
        if _kind_of(facts) != _kind_of(self._facts):
            raise G2Error(
                f"this state_dict has {name} as {facts}, but the model has {self._facts}; "
                "load it into a model that was compressed like the one it was saved from"
            )
        tensors = {part: state_dict.get(f"{prefix}{part}") for part in Entry(name, facts).outlines}
        packed = {part: tensor.numpy(force=True).copy() for part, tensor in tensors.items() if tensor is not None}
        self._take(Entry(name, facts).unpack(packed))

    def extra_repr(self) -> str:
        """Sizes and kind."""
        rows, columns = self._facts["shape"]
        return f"{rows}, {columns}, {self._facts['kind']}"


def _bytes(content: bytes) -> Tensor:
    return torch.tensor(list(content), dtype=torch.uint8, device="cpu")


def _parameter(prefix: str) -> str:
    """The name of the parameter for which the matrix with this prefix stands, with others or alone."""
    return re.sub(r"\bencoded$", "weight", re.sub(r"\.[a-z]$", "", prefix.removesuffix(".")))


def _kind_of(facts: Any) -> Any:
    """What an entry of a header says about the encoding, without what the weights decide."""
    if not isinstance(facts, dict):
        return facts
    kind = facts.get("kind")
    derived = KINDS[kind].derived if kind in KINDS else ()
    return {k: _kind_of(v) for k, v in facts.items() if k not in derived}


class Compressed(nn.Module):
    """A layer whose weights are one encoded matrix, shared with modules that are tied to it."""

    def __init__(self, encoded: EncodedMatrix) -> None:
        super().__init__()
        self.encoded = encoded

    @property
    def weight(self) -> Tensor:
        """The decoded weights, (rows, columns)."""
        return self.encoded.weight


class CompressedLinear(Compressed):
    """What replaces a `torch.nn.Linear`; its bias is as it was."""

    bias: nn.Parameter | None

    def __init__(self, linear: nn.Linear, encoded: EncodedMatrix) -> None:
        super().__init__(encoded)
        self.out_features, self.in_features = encoded.encoding.shape
        self.register_parameter("bias", linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """As in `torch.nn.Linear`."""
        return functional.linear(x, self.weight, self.bias)


class CompressedEmbedding(Compressed):
    """What replaces a `torch.nn.Embedding`."""

    def __init__(self, embedding: nn.Embedding, encoded: EncodedMatrix) -> None:
        super().__init__(encoded)
        self.num_embeddings, self.embedding_dim = encoded.encoding.shape
        self.padding_idx = embedding.padding_idx

    def forward(self, tokens: Tensor) -> Tensor:
        """The rows (..., width) of tokens (...)."""
        return functional.embedding(tokens, self.weight)


class CompressedConvolution(Compressed):
    """What replaces a convolution, with weights (outputs, everything else); its bias is as it was."""

    bias: nn.Parameter | None
    _plain: Any

    def __init__(self, convolution: nn.Conv1d | nn.Conv2d | nn.Conv3d, encoded: EncodedMatrix) -> None:
        super().__init__(encoded)
        self._shape = convolution.weight.shape
        self.register_parameter("bias", convolution._parameters["bias"])
        plain = copy.copy(convolution)
        plain._parameters = {}
        self.__dict__["_plain"] = plain  # for its stride, padding and so on; it is not a child

    @property
    def weight(self) -> Tensor:
        """The decoded weights, shaped as they were."""
        return self.encoded.weight.view(self._shape)

    def forward(self, x: Tensor) -> Tensor:
        """As the convolution."""
        result: Tensor = self._plain._conv_forward(x, self.weight, self.bias)
        return result


def _matrix_of(name: str) -> property:
    """An attribute of an attention that is encoded, a parameter or None."""

    def read(attention: nn.Module) -> Tensor | None:
        encoded = attention._modules.get(name)
        return encoded.weight if isinstance(encoded, EncodedMatrix) else attention._parameters.get(name)

    return property(read)


class CompressedAttention(nn.MultiheadAttention):
    """A `torch.nn.MultiheadAttention` with encoded weights: what `compress` makes of it, in place."""

    matrices = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
    in_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight = map(_matrix_of, matrices)
