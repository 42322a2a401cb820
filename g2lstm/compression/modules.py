"""Modules with encoded weights: they decode them on first use, and compute as the modules that they replace.

Their `state_dict` holds the packed tensors. Moving a module to a device or a type moves only what is decoded.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from g2lstm.compression.encodings import Encoding, Entry
from g2lstm.errors import G2Error
from g2lstm.nn.convert import shape_of
from g2lstm.nn.layer import Weights
from g2lstm.nn.lstm import G2LSTM, GatedLSTM

LETTERS = "ifgo"  # the gates, in the order of their rows


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
        like: an empty tensor with the device and type of the decoded values.
    """

    def __init__(self, encoding: Encoding, like: Tensor) -> None:
        super().__init__()
        self._facts, self._decoded = encoding.describe(), Decoded()
        self._encoding: Encoding | None = encoding
        self.like = torch.empty(0, dtype=like.dtype, device="cpu" if like.is_meta else like.device)
        for name, array in encoding.packed.items():
            *path, leaf = name.split(".")
            holder: nn.Module = self
            for part in path:
                if part not in dict(holder.named_children()):
                    holder.add_module(part, nn.Module())
                holder = holder.get_submodule(part)
            holder.register_buffer(leaf, torch.from_numpy(array).clone())
        self.register_load_state_dict_pre_hook(_refuse_other_encodings)

    @property
    def encoding(self) -> Encoding:
        """The encoded matrix, (rows, columns), on the CPU."""
        if self._encoding is None:
            packed = {name: buffer.numpy(force=True) for name, buffer in self.named_buffers()}
            self._encoding = Entry("of this state_dict", self._facts).unpack(packed)
        return self._encoding

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

    def get_extra_state(self) -> Tensor:
        """What a file's header would say about the matrix."""
        return torch.tensor(list(json.dumps(self._facts).encode()), dtype=torch.uint8, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Forgets what was unpacked: the packed tensors were just loaded."""
        self._encoding = None

    def extra_repr(self) -> str:
        """Sizes and kind."""
        rows, columns = self._facts["shape"]
        return f"{rows}, {columns}, {self._facts['kind']}"


def _refuse_other_encodings(module: nn.Module, state: Mapping[str, Any], prefix: str, *_: Any) -> None:
    """Raises before tensors are loaded that are packed in another way than the module's own."""
    assert isinstance(module, EncodedMatrix)
    theirs, ours = state.get(f"{prefix}_extra_state"), module.get_extra_state()
    if theirs is not None and not torch.equal(theirs.cpu(), ours):
        described = (bytes(one.tolist()).decode(errors="replace") for one in (theirs, ours))
        raise G2Error(
            "this state_dict has {} as {}, and the model has {}; load it into the model that it was saved from".format(
                prefix.removesuffix("."), *described
            )
        )


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
            raise G2Error(
                "a compressed LSTM can't be trained: call model.eval() to use it; "
                "to train further, train the model that it was made from and compress that again"
            )
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
