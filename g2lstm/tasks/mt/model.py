"""`TranslationModel`: an encoder and a decoder of `G2LSTM` layers, with attention between them."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from g2lstm.errors import G2Error
from g2lstm.export.c.translation import TranslationParts
from g2lstm.nn.lstm import G2LSTM
from g2lstm.runtime.beam import Ints
from g2lstm.tasks.model import TokenModel

if TYPE_CHECKING:
    from g2lstm.runtime.session import TranslationSession
    from g2lstm.tasks.mt.onnx import TranslationModelExporter


class Memory(NamedTuple):
    """A batch of encoded sources that the decoder may look at: B sentences of up to S tokens."""

    values: Tensor  # (B, S, C), the encoder's output
    keys: Tensor  # (B, S, H), compared with queries
    is_padding: Tensor  # (B, S), boolean

    def select(self, sentences: Tensor) -> "Memory":
        """Keeps only these sentences (B',)."""
        return Memory(*(part.index_select(0, sentences) for part in self))


class Attention(nn.Module):
    """Bilinear attention, scaled: softmax over s of q · (W v_s) / sqrt(H), for all queries at once."""

    def __init__(self, query_size: int, value_size: int) -> None:
        super().__init__()
        self.key = nn.Linear(value_size, query_size, bias=False)

    def memory(self, values: Tensor, is_padding: Tensor) -> Memory:
        """Prepares encoder outputs (B, S, C), padded where `is_padding` (B, S), for any number of queries."""
        return Memory(values, self.key(values), is_padding)

    def forward(self, queries: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """Queries (B, Q, H) to contexts (B, Q, C) and weights (B, Q, S), which are 0 on padding and sum to 1."""
        scores = queries @ memory.keys.transpose(1, 2) * queries.size(-1) ** -0.5
        weights = scores.masked_fill(memory.is_padding.unsqueeze(1), -torch.inf).softmax(-1)
        return weights @ memory.values, weights


class DecoderState(NamedTuple):
    """The state of the decoder for K hypotheses of each of B sentences."""

    memory: Memory
    layers: list[tuple[Tensor, Tensor]]  # h and c of each layer, both (1, B * K, H)

    def select(self, sentences: Ints, hypotheses: Ints) -> "DecoderState":
        """Continues some sentences (B',), in increasing order, from any of their hypotheses (B', K')."""
        batch, device = len(self.memory.values), self.memory.values.device
        before = self.layers[0][0].size(1) // batch
        rows = torch.from_numpy((sentences[:, None] * before + hypotheses).reshape(-1)).to(device)
        kept = torch.from_numpy(sentences).to(device)
        memory = self.memory if len(sentences) == batch else self.memory.select(kept)
        return DecoderState(memory, [(h.index_select(1, rows), c.index_select(1, rows)) for h, c in self.layers])


class StepOutput(NamedTuple):
    """What one step of the decoder returns."""

    log_probabilities: Tensor  # (B, K, V) of the next token
    state: DecoderState
    attention: Tensor  # (B, K, S)


class TranslationModel(TokenModel):
    """Translates token sequences: a bidirectional encoder, attention, a decoder and a softmax.

    The first encoder layer reads in both directions; the others are stacked on top of it. The first decoder layer reads
    the target alone, and its output queries the attention; the context goes into every layer above and into the
    softmax. So no decoder layer waits for the one above it, and training runs each layer over all steps in one call.

    The arguments after the vocabularies' sizes are the keys of a recipe's `model` section, `MtModel`; options are those
    of `G2LSTM`. H is `hidden`, and E, the width of what the softmax sees, is `embedding`.
    """

    tied_to = "target_embedding"

    def __init__(
        self,
        source_size: int,
        target_size: int,
        embedding: int = 256,
        hidden: int = 256,
        encoder_layers: int = 2,
        decoder_layers: int = 2,
        *,
        tied: str = "output",
        residual: bool = False,
        input_dropout: float = 0.2,
        between_dropout: float = 0.2,
        output_dropout: float = 0.2,
        weight_dropout: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__()
        if tied == "all" and source_size != target_size:
            raise G2Error(
                f"tied='all' needs one vocabulary for both sides, got {source_size} and {target_size} tokens; "
                "make it joint, or use tied='output'"
            )

        def layer(input_size: int, bidirectional: bool = False) -> G2LSTM:
            return G2LSTM(input_size, hidden, bidirectional=bidirectional, weight_dropout=weight_dropout, **options)

        self.residual = residual
        self.input_dropout, self.between_dropout, self.output_dropout = input_dropout, between_dropout, output_dropout
        self.target_embedding = nn.Embedding(target_size, embedding)
        self.source_embedding = None if tied == "all" else nn.Embedding(source_size, embedding)
        self.softmax_weight = nn.Parameter(torch.empty(target_size, embedding)) if tied == "none" else None
        self.softmax_bias = nn.Parameter(torch.zeros(target_size))
        context = hidden if encoder_layers > 1 else 2 * hidden
        uppers = [2 * hidden, *[hidden] * (encoder_layers - 2)] if encoder_layers > 1 else []
        self.encoder = nn.ModuleList([layer(embedding, bidirectional=True), *map(layer, uppers)])
        self.bridge = nn.Linear(context, decoder_layers * hidden)
        self.attention = Attention(hidden, context)
        self.decoder = nn.ModuleList([layer(embedding), *(layer(hidden + context) for _ in range(decoder_layers - 1))])
        self.output = nn.Linear(hidden + context, embedding)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws embeddings and softmax from ±0.1; the softmax bias is 0, everything else is as torch initialises it."""
        for matrix in (self.target_embedding.weight, self.source_weight, self.output_weight):
            nn.init.uniform_(matrix, -0.1, 0.1)
        nn.init.zeros_(self.softmax_bias)

    @property
    def source_weight(self) -> Tensor:
        """(source_size, E), the weights of the source embedding: the target embedding's if all are tied."""
        return self._source.weight

    @property
    def _source(self) -> nn.Embedding:
        return self.target_embedding if self.source_embedding is None else self.source_embedding

    def forward(self, source: Tensor, lengths: Tensor, inputs: Tensor) -> Tensor:
        """What the softmax sees, (T, B, E), with every target token known.

        Sources are (S, B), padded with any token, and their lengths (B,) are on the CPU. Inputs (T, B) are the target
        tokens before those to predict.
        """
        features, _, _ = self._decode(inputs, self.start(self.encode(source, lengths)))
        return features

    def encode(self, source: Tensor, lengths: Tensor) -> Memory:
        """Reads sources (S, B) of these lengths (B,). Padding does not affect them."""
        x = self._drop(self._source(source), self.input_dropout)
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        x, _ = pad_packed_sequence(self.encoder[0](packed)[0], total_length=source.size(0))
        for index, layer in enumerate(self.encoder[1:], start=1):
            below = self._drop(x, self.between_dropout)
            x, _ = layer(below)
            if self.residual and index > 1:
                x = x + below
        values = self._drop(x, self.between_dropout).transpose(0, 1)
        is_padding = torch.arange(source.size(0)) >= lengths.unsqueeze(1)
        return self.attention.memory(values, is_padding.to(source.device))

    def start(self, memory: Memory) -> DecoderState:
        """Before the first step, one hypothesis per sentence: h from the mean of the encoder's output, c zero."""
        is_token = memory.is_padding.logical_not().unsqueeze(-1).to(memory.values.dtype)
        mean = (memory.values * is_token).sum(1) / is_token.sum(1)
        h = self.bridge(mean).tanh().chunk(len(self.decoder), dim=-1)
        return DecoderState(memory, [(h_l.unsqueeze(0), torch.zeros_like(h_l).unsqueeze(0)) for h_l in h])

    def step(self, tokens: Tensor, state: DecoderState) -> StepOutput:
        """Reads one token (B, K) of each hypothesis, and predicts the next."""
        features, attention, state = self._decode(tokens.view(1, -1), state)
        return StepOutput(self.logits(features[0]).log_softmax(-1).view(*tokens.shape, -1), state, attention)

    def open_stream(self, threads: int | None = None) -> "TranslationSession":
        """How `g2lstm.stream` opens this model."""
        from g2lstm.tasks.mt.beam import open_session

        return open_session(self, threads)

    def onnx_exporter(self) -> "TranslationModelExporter":
        """How `export_onnx` writes this model; needs the extra `export`."""
        from g2lstm.tasks.mt.onnx import TranslationModelExporter

        return TranslationModelExporter(self)

    def translation_parts(self) -> TranslationParts:
        """How `export_c` reads this model."""
        attention, softmax = self.attention, self._softmax
        return TranslationParts(
            self._source, self.target_embedding, list(self.encoder), attention.key, self.bridge, list(self.decoder),
            self.output, self.residual, softmax, self.softmax_bias,
        )  # fmt: skip

    def _decode(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, Tensor, DecoderState]:
        """Tokens (T, B * K) to features (T, B * K, E), attention (B, T * K, S) and the state after them."""
        memory, layers = state
        batch, (steps, rows) = memory.values.size(0), tokens.shape
        x = self._drop(self.target_embedding(tokens), self.input_dropout)
        x, last = self.decoder[0](x, layers[0])
        ends = [last]
        queries = x.view(steps, batch, rows // batch, -1).transpose(0, 1).flatten(1, 2)
        contexts, attention = self.attention(queries, memory)
        context = contexts.view(batch, steps, rows // batch, -1).transpose(0, 1).flatten(1, 2)
        for layer, before in zip(self.decoder[1:], layers[1:], strict=True):
            below = self._drop(x, self.between_dropout)
            x, last = layer(torch.cat([below, context], dim=-1), before)
            if self.residual:
                x = x + below
            ends.append(last)
        features = self.output(torch.cat([x, context], dim=-1)).tanh()
        return self._drop(features, self.output_dropout), attention, DecoderState(memory, ends)
