"""`LanguageModel`: the AWD-LSTM (Merity et al., 2018) on `G2LSTM` layers."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from g2lstm.errors import G2Error
from g2lstm.nn.checks import check_count
from g2lstm.nn.lstm import G2LSTM
from g2lstm.tasks.cross_entropy import cross_entropy
from g2lstm.tasks.dropout import check_dropout, locked_dropout, word_dropout

State = list[tuple[Tensor, Tensor]]  # for each layer h and c, both (1, B, H of the layer)


class LanguageModelOutput(NamedTuple):
    """What a forward call returns; E is the width of the last layer."""

    features: Tensor  # (T, B, E), the last layer's output after dropout: what the softmax sees
    raw: Tensor  # (T, B, E), the last layer's output before dropout
    state: State  # after the last step, to be handed to the next call


class LanguageModel(nn.Module):
    """Predicts the next token: embedding, LSTM layers one upon the other, softmax tied to the embedding.

    Layers are `embedding -> hidden -> ... -> hidden -> last`, where `last` is the embedding size if the softmax is tied
    and the hidden size if not. The caller carries the state from call to call. Defaults are the paper's for Penn
    Treebank.

    Args:
        vocabulary_size: V.
        embedding: width of the word vectors.
        hidden: width of all layers but a tied model's last.
        layers: how many.
        tied: use the embedding matrix as the weights of the softmax.
        residual: add the input of a layer to its output, where both are equally wide; deep stacks need it.
        word_dropout: probability that a word is dropped wherever it occurs in one call.
        input_dropout: on the embeddings, one mask for all steps, as are the next two.
        between_dropout: on the output of each layer but the last.
        output_dropout: on the output of the last layer.
        weight_dropout: DropConnect on the recurrent weights.
        method: "gumbel", "sigmoid" or "sharpened"; this and the next five as in `G2LSTM`.
        tau: temperature; None for the method's own.
        noise_rate: probability that a gate gets noise.
        gates: "if" or "ifo".
        eval_gate: "soft", "tempered" or "hard".
        backend: "auto", "native", "stock" or "reference".
    """

    def __init__(
        self,
        vocabulary_size: int,
        embedding: int = 400,
        hidden: int = 1150,
        layers: int = 3,
        *,
        tied: bool = True,
        residual: bool = False,
        word_dropout: float = 0.1,
        input_dropout: float = 0.4,
        between_dropout: float = 0.25,
        output_dropout: float = 0.4,
        weight_dropout: float = 0.5,
        method: str = "gumbel",
        tau: float | None = None,
        noise_rate: float = 0.2,
        gates: str = "if",
        eval_gate: str = "soft",
        backend: str = "auto",
    ) -> None:
        super().__init__()
        sizes = {"vocabulary_size": vocabulary_size, "embedding": embedding, "hidden": hidden, "layers": layers}
        for name, size in sizes.items():
            check_count(name, size)
        dropouts = {
            "word_dropout": word_dropout,
            "input_dropout": input_dropout,
            "between_dropout": between_dropout,
            "output_dropout": output_dropout,
        }
        for name, probability in dropouts.items():
            check_dropout(name, probability)
        self.word_dropout = float(word_dropout)
        self.input_dropout = float(input_dropout)
        self.between_dropout = float(between_dropout)
        self.output_dropout = float(output_dropout)
        self.tied = tied
        self.residual = residual
        self.embedding = nn.Embedding(vocabulary_size, embedding)
        widths = [embedding] + [hidden] * (layers - 1) + [embedding if tied else hidden]
        self.layers = nn.ModuleList(
            G2LSTM(
                width,
                next_width,
                weight_dropout=weight_dropout,
                method=method,
                tau=tau,
                noise_rate=noise_rate,
                gates=gates,
                eval_gate=eval_gate,
                backend=backend,
            )
            for width, next_width in pairwise(widths)
        )
        # A tied softmax has no weight of its own, so that no tensor is stored twice. A compressed one is a module.
        self.softmax_weight: nn.Parameter | nn.Module | None = (
            None if tied else nn.Parameter(torch.empty(vocabulary_size, widths[-1]))
        )
        self.softmax_bias = nn.Parameter(torch.empty(vocabulary_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Embedding (and softmax) uniform in +-0.1, softmax bias 0, each LSTM uniform in +-1/sqrt(its H)."""
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        if self.softmax_weight is not None:
            nn.init.uniform_(self.output_weight, -0.1, 0.1)
        nn.init.zeros_(self.softmax_bias)
        for layer in self.lstms:
            layer.reset_parameters()

    @torch.no_grad()
    def predict_frequencies(self, counts: Tensor) -> None:
        """Sets the softmax's bias so that a word is as probable as it is frequent, where the features say nothing.

        Args:
            counts: (V,), of the words in the training text; each counts once more, so that none is impossible.
        """
        counts = counts.double() + 1
        self.softmax_bias.copy_(counts.log() - counts.sum().log())

    @property
    def lstms(self) -> list[nn.LSTM | G2LSTM]:
        """The recurrent layers, first to last; plain ones after `freeze_`."""
        return [layer for layer in self.layers if isinstance(layer, nn.LSTM | G2LSTM)]

    def is_residual(self, layer: nn.Module) -> bool:
        """Whether the input of this layer is added to its output."""
        return self.residual and layer.input_size == layer.hidden_size

    @property
    def vocabulary_size(self) -> int:
        """V."""
        return self.embedding.num_embeddings

    @property
    def output_weight(self) -> Tensor:
        """(V, E), the weights of the softmax: the embedding's own if tied."""
        return weight_of(self._softmax)

    @property
    def _softmax(self) -> nn.Module | Tensor:
        return self.embedding if self.softmax_weight is None else self.softmax_weight

    def forward(self, tokens: Tensor, state: State | None = None) -> LanguageModelOutput:
        """Reads tokens (T, B) from the given state, or from zero."""
        if tokens.dim() != 2:
            raise G2Error(f"tokens must be (time, batch), got a tensor of shape {tuple(tokens.shape)}")
        if state is None:
            state = self.initial_state(tokens.size(1))
        elif len(state) != len(self.layers):
            raise G2Error(
                f"state must hold (h, c) for each of the {len(self.layers)} layers, got {len(state)}; "
                "use initial_state(batch) or the state that the last call returned"
            )
        x = self.embedding(tokens)
        if self.training:
            x = word_dropout(x, tokens, self.vocabulary_size, self.word_dropout)
            x = locked_dropout(x, self.input_dropout)
        raw = x
        new_state: State = []
        for index, (layer, layer_state) in enumerate(zip(self.layers, state, strict=True)):
            raw, last = layer(x, layer_state)
            new_state.append(last)
            if self.is_residual(layer):
                raw = raw + x
            is_last = index == len(self.layers) - 1
            x = locked_dropout(raw, self.output_dropout if is_last else self.between_dropout) if self.training else raw
        return LanguageModelOutput(x, raw, new_state)

    def logits(self, features: Tensor) -> Tensor:
        """Unnormalised log-probabilities (..., V) of the next token from features (..., E)."""
        return nn.functional.linear(*softmax_factors(features, self._softmax), self.softmax_bias)

    def token_losses(self, features: Tensor, targets: Tensor) -> Tensor:
        """-log p(target) in nats, shaped like `targets` (...), from features (..., E); never holds all the logits."""
        rows, weight = softmax_factors(features.reshape(-1, features.size(-1)), self._softmax)
        return cross_entropy(rows, weight, self.softmax_bias, targets.reshape(-1), reduction="none").view(targets.shape)

    def initial_state(self, batch: int) -> State:
        """Zero states for `batch` sequences."""
        like = self.softmax_bias
        return [
            (like.new_zeros(1, batch, layer.hidden_size), like.new_zeros(1, batch, layer.hidden_size))
            for layer in self.lstms
        ]


def weight_of(softmax: nn.Module | Tensor) -> Tensor:
    """(V, E): a tensor is the weights itself, a module has them."""
    weight = softmax if isinstance(softmax, Tensor) else softmax.weight
    assert isinstance(weight, Tensor)
    return weight


def softmax_factors(features: Tensor, softmax: nn.Module | Tensor) -> tuple[Tensor, Tensor]:
    """Features (..., E) and weights (V, E), whose product is the logits; both narrower for a matrix of low rank."""
    factors = getattr(softmax, "factors", None)  # of compressed weights
    return (features, weight_of(softmax)) if factors is None else factors(features)


def detach_state(state: Sequence[tuple[Tensor, Tensor]]) -> State:
    """The same values with no history: where back-propagation through time is cut."""
    return [(h.detach(), c.detach()) for h, c in state]
