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
from torch.func import functional_call
from torch.nn import functional

from g2lstm.compression.encodings import Encoding, Entry
from g2lstm.errors import G2Error
from g2lstm.nn.convert import shape_of
from g2lstm.nn.layer import Weights
from g2lstm.nn.lstm import G2LSTM, GatedLSTM

LETTERS = "ifgo"  # the gates of an LSTM, in the order of their rows
_MARK = b"packed by g2lstm.compress"  # stands in a state_dict where a parameter was
_DERIVED = ("lowest", "levels", "bits_per_weight")  # facts about a grid that its weights decide, not the spec


def letters_of(layer: nn.Module) -> str:
    """The gates of a recurrent layer, in the order of their rows; a GRU has reset, update and candidate."""
    return "rzn" if isinstance(layer, nn.GRU | nn.GRUCell) else LETTERS


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
                f"this state_dict has no packed {name}, so it is not of a model that was compressed like this one; "
                "load it into the model before g2lstm.compress"
            )
        try:
            facts = json.loads(bytes(header.tolist()))
        except ValueError as error:
            raise G2Error(f"the packed {name} of this state_dict is damaged: {error}") from None
        if _kind_of(facts) != _kind_of(self._facts):
            raise G2Error(
                f"this state_dict has {name} as {facts}, and the model has {self._facts}; "
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
    is_grid = facts.get("kind") == "grid"
    return {k: _kind_of(v) for k, v in facts.items() if not (is_grid and k in _DERIVED)}


class _Compressed(nn.Module):
    """A layer whose weights are one encoded matrix, shared with modules that are tied to it."""

    def __init__(self, encoded: EncodedMatrix) -> None:
        super().__init__()
        self.encoded = encoded

    @property
    def weight(self) -> Tensor:
        """The decoded weights, (rows, columns)."""
        return self.encoded.weight


class CompressedLinear(_Compressed):
    """A `torch.nn.Linear` with encoded weights; its bias is as it was.

    Args:
        linear: the layer that it replaces.
        encoded: the weights.
    """

    bias: nn.Parameter | None

    def __init__(self, linear: nn.Linear, encoded: EncodedMatrix) -> None:
        super().__init__(encoded)
        self.out_features, self.in_features = encoded.encoding.shape
        self.register_parameter("bias", linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """As in `torch.nn.Linear`."""
        return functional.linear(x, self.weight, self.bias)


class CompressedEmbedding(_Compressed):
    """A `torch.nn.Embedding` with encoded weights.

    Args:
        embedding: the layer that it replaces.
        encoded: the weights.
    """

    def __init__(self, embedding: nn.Embedding, encoded: EncodedMatrix) -> None:
        super().__init__(encoded)
        self.num_embeddings, self.embedding_dim = encoded.encoding.shape
        self.padding_idx = embedding.padding_idx

    def forward(self, tokens: Tensor) -> Tensor:
        """The rows (..., width) of tokens (...)."""
        return functional.embedding(tokens, self.weight)


class CompressedLSTM(GatedLSTM):
    """The layer that `compress` puts in the place of a `G2LSTM` or `torch.nn.LSTM`, used like it in evaluation.

    The decoded weights run through the same code as a `G2LSTM`'s, whatever the size of the batch. To read one sequence
    step by step from packed weights, use `g2lstm.stream`.

    Biases and projections are parameters without gradients. Training mode is for looking at sampled gates under
    `torch.no_grad()`. There is no DropConnect.

    Args:
        layer: the layer that it replaces, whose biases and projections it takes over.
        matrices: W_x and W_h of every gate: "weight_ih_l0.i" and so on.
    """

    def __init__(self, layer: nn.LSTM | G2LSTM, matrices: Mapping[str, EncodedMatrix]) -> None:
        super().__init__()
        plain = G2LSTM(1, 1, method="sigmoid", device="meta")
        options = (layer if isinstance(layer, G2LSTM) else plain).options() | {"weight_dropout": 0.0}
        for name, value in (shape_of(layer) | options).items():
            setattr(self, name, value)
        self._names: list[list[str]] = [list(names) for names in layer._all_weights]
        self._decoded: dict[str, Decoded] = {}
        for name in layer._flat_weights_names:
            if f"{name}.i" in matrices:
                self.add_module(name, nn.ModuleDict({letter: matrices[f"{name}.{letter}"] for letter in LETTERS}))
                self._decoded[name] = Decoded()
            else:
                self.register_parameter(name, nn.Parameter(getattr(layer, name).detach(), requires_grad=False))
        self.train(layer.training)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the decoded weights."""
        return self._matrices("weight_ih_l0")[0].like.dtype

    def encodings(self, name: str) -> list[Encoding]:
        """The matrices of the gates i, f, g, o of one parameter, such as "weight_ih_l0"."""
        return [matrix.encoding for matrix in self._matrices(name)]

    def flatten_parameters(self) -> None:
        """Does nothing: the weights are no parameters."""

    def to_lstm(self) -> nn.LSTM:
        """A `torch.nn.LSTM` with the same output in evaluation, with dense weights."""
        layer = G2LSTM(**(shape_of(self) | {"dropout": 0.0}), **self.options(), device="meta")
        layer.dropout = self.dropout
        for names in self._names:
            for name in names:
                values = self._dense(name).clone() if name in self._decoded else self.get_parameter(name).detach()
                setattr(layer, name, nn.Parameter(values))
        return layer.train(self.training).to_lstm()

    def _weights(self, dtype: torch.dtype) -> list[list[Weights]]:
        if self.training and torch.is_grad_enabled():
            raise untrainable("LSTM")
        each = []
        for w_x, w_h, *rest in self._names:
            others = [self.get_parameter(name).to(dtype) for name in rest]
            b_x, b_h = others[:2] if self.bias else (None, None)
            w_r = others[-1] if self.proj_size else None
            each.append(Weights(self._dense(w_x).to(dtype), self._dense(w_h).to(dtype), b_x, b_h, w_r))
        return [each[k : k + self.directions] for k in range(0, len(each), self.directions)]

    def _matrices(self, name: str) -> list[EncodedMatrix]:
        return [matrix for matrix in self.get_submodule(name).children() if isinstance(matrix, EncodedMatrix)]

    def _dense(self, name: str) -> Tensor:
        return self._decoded[name](self.encodings(name), self._matrices(name)[0].like)

    def extra_repr(self) -> str:
        """Sizes and options that matter in evaluation."""
        sizes = f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}"
        return f"{sizes}, method={self.method}, eval_gate={self.eval_gate}"


class CompressedLayer(nn.Module):
    """The layer that `compress` puts in the place of a GRU or a cell: it calls that layer with decoded weights.

    Biases are parameters without gradients. Everything else, such as `hidden_size`, is as in that layer.

    Args:
        layer: the layer that it replaces.
        matrices: W_x and W_h of every gate: "weight_ih_l0.r" and so on.
    """

    def __init__(self, layer: nn.Module, matrices: Mapping[str, EncodedMatrix]) -> None:
        super().__init__()
        self._decoded: dict[str, Decoded] = {}
        for name, parameter in layer._parameters.items():
            own = {key.rpartition(".")[2]: one for key, one in matrices.items() if key.rpartition(".")[0] == name}
            if own:
                self.add_module(name, nn.ModuleDict(own))
                self._decoded[name] = Decoded()
            else:
                kept = None if parameter is None else nn.Parameter(parameter.detach(), requires_grad=False)
                self.register_parameter(name, kept)
        meta = {id(one): nn.Parameter(one.detach().to("meta"), requires_grad=False) for one in layer.parameters()}
        self.__dict__["layer"] = copy.deepcopy(layer, dict(meta))  # not a child: its weights are no weights
        self.train(layer.training)

    def __getattr__(self, name: str) -> Any:
        """As of any module; what it does not have itself, its layer may have."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "layer" not in self.__dict__ or name.startswith("_"):
                raise
            return getattr(self.layer, name)

    def encodings(self, name: str) -> list[Encoding]:
        """The matrices of the gates of one parameter, such as "weight_ih_l0"."""
        return [one.encoding for one in self._matrices(name)]

    def _matrices(self, name: str) -> list[EncodedMatrix]:
        return [matrix for matrix in self.get_submodule(name).children() if isinstance(matrix, EncodedMatrix)]

    def dense(self) -> dict[str, Tensor]:
        """All weights by name, decoded."""
        kept = {name: parameter for name, parameter in self._parameters.items() if parameter is not None}
        each = {name: self._matrices(name) for name in self._decoded}
        values = {name: self._decoded[name](self.encodings(name), one[0].like) for name, one in each.items()}
        return {**kept, **values}

    def forward(self, *args: Any, **options: Any) -> Any:
        """As the layer that it replaces."""
        if self.training and torch.is_grad_enabled():
            raise untrainable(type(self.layer).__name__)
        self.layer.train(self.training)
        return functional_call(self.layer, self.dense(), args, options)

    def extra_repr(self) -> str:
        """As the layer that it replaces."""
        return f"{type(self.layer).__name__}: {self.layer.extra_repr()}"


def untrainable(name: str) -> G2Error:
    """The error for a compressed layer that is called in training."""
    return G2Error(
        f"a compressed {name} can't be trained: call model.eval() to use it; "
        "to train further, train the model that it was made from and compress that again"
    )
