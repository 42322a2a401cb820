"""`LanguageModel`: the AWD-LSTM (Merity et al., 2018) on `G2LSTM` layers."""

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from g2lstm.compression.stream import StreamParts
from g2lstm.nn.lstm import G2LSTM, GatedLSTM
from g2lstm.tasks.model import TokenModel, word_dropout

if TYPE_CHECKING:
    from g2lstm.tasks.lm.onnx import LanguageModelExporter

State = list[tuple[Tensor, Tensor]]  # h and c of each layer, both (1, B, H of the layer)


class LanguageModelOutput(NamedTuple):
    """What a forward call returns; E is the width of the last layer."""

    features: Tensor  # (T, B, E), the last layer's output after dropout: what the softmax sees
    raw: Tensor  # (T, B, E), the last layer's output before dropout
    state: State  # after the last step, for the next call


class LanguageModel(TokenModel):
    """Predicts the next token: an embedding, a stack of LSTM layers, and a softmax tied to the embedding.

    Layers are `embedding -> hidden -> ... -> hidden -> last`, where `last` is the embedding size if the softmax is tied
    and the hidden size otherwise. The caller carries the state from call to call. The defaults are the paper's for Penn
    Treebank.

    The other arguments are the keys of a recipe's `model` section, `LmModel`; options are those of `G2LSTM`.
    """

    tied_to = "embedding"

    def __init__(
        self,
        vocabulary_size: int,
        embedding: int = 400,
        hidden: int = 1150,
        layers: int = 3,
        *,
        tied: bool = True,
        residual: bool = False,
        words_dropout: float = 0.1,
        input_dropout: float = 0.4,
        between_dropout: float = 0.25,
        output_dropout: float = 0.4,
        weight_dropout: float = 0.5,
        **options: Any,
    ) -> None:
        super().__init__()
        self.words_dropout, self.input_dropout = words_dropout, input_dropout
        self.between_dropout, self.output_dropout = between_dropout, output_dropout
        self.residual = residual
        self.embedding = nn.Embedding(vocabulary_size, embedding)
        widths = [embedding] + [hidden] * (layers - 1) + [embedding if tied else hidden]
        self.layers = nn.ModuleList(
            G2LSTM(width, next_width, weight_dropout=weight_dropout, **options)
            for width, next_width in pairwise(widths)
        )
        self.softmax_weight = None if tied else nn.Parameter(torch.empty(vocabulary_size, widths[-1]))
        self.softmax_bias = nn.Parameter(torch.empty(vocabulary_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the embedding and the softmax from ±0.1 and each LSTM from ±1/sqrt(its H); the softmax bias is 0."""
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        if self.softmax_weight is not None:
            nn.init.uniform_(self.output_weight, -0.1, 0.1)
        nn.init.zeros_(self.softmax_bias)
        for layer in self.layers:
            assert isinstance(layer, G2LSTM)
            layer.reset_parameters()

    @torch.no_grad()
    def predict_frequencies(self, counts: Tensor) -> None:
        """Sets the softmax bias so that, before training, words are as probable as they are frequent: counts (V,)."""
        counts = counts.double() + 1  # so that no word is impossible
        self.softmax_bias.copy_(counts.log() - counts.sum().log())

    @property
    def lstms(self) -> list[nn.LSTM | GatedLSTM]:
        """The recurrent layers, first to last; `torch.nn.LSTM`s after `freeze_`."""
        return [layer for layer in self.layers if isinstance(layer, nn.LSTM | GatedLSTM)]

    def is_residual(self, layer: nn.Module) -> bool:
        """Whether the input of this layer is added to its output."""
        return self.residual and layer.input_size == layer.hidden_size

    def stream_parts(self) -> StreamParts:
        """How `g2lstm.stream` reads this model."""
        residual = [self.is_residual(layer) for layer in self.layers]
        return StreamParts(self.embedding, list(self.layers), residual, self._softmax, self.softmax_bias)

    def onnx_exporter(self) -> "LanguageModelExporter":
        """How `export_onnx` writes this model; needs the extra `export`."""
        from g2lstm.tasks.lm.onnx import LanguageModelExporter

        return LanguageModelExporter(self)

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens, V."""
        return self.embedding.num_embeddings

    def forward(self, tokens: Tensor, state: State | None = None) -> LanguageModelOutput:
        """Reads tokens (T, B) from the given state, or from zero."""
        state = self.initial_state(tokens.size(1)) if state is None else state
        x = self.embedding(tokens)
        if self.training:
            x = word_dropout(x, tokens, self.vocabulary_size, self.words_dropout)
        raw = x = self._drop(x, self.input_dropout)
        new_state: State = []
        for index, (layer, layer_state) in enumerate(zip(self.layers, state, strict=True)):
            raw, last = layer(x, layer_state)
            new_state.append(last)
            if self.is_residual(layer):
                raw = raw + x
            is_last = index == len(self.layers) - 1
            x = self._drop(raw, self.output_dropout if is_last else self.between_dropout)
        return LanguageModelOutput(x, raw, new_state)

    def initial_state(self, batch: int) -> State:
        """Zero states for `batch` sequences."""
        shapes = [(1, batch, layer.hidden_size) for layer in self.lstms]
        return [(self.softmax_bias.new_zeros(shape), self.softmax_bias.new_zeros(shape)) for shape in shapes]
