"""`TranslationModel`: an encoder and a decoder of `G2LSTM` layers, with attention between them."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from g2lstm.errors import G2Error
from g2lstm.nn.checks import check_count
from g2lstm.nn.lstm import G2LSTM
from g2lstm.tasks.cross_entropy import cross_entropy
from g2lstm.tasks.dropout import check_dropout, locked_dropout
from g2lstm.tasks.lm.model import softmax_factors, weight_of
from g2lstm.tasks.mt.attention import Attention, Memory

TIES = ("none", "output", "all")


class DecoderState(NamedTuple):
    """Where the decoder stands in K hypotheses for each of B sentences."""

    memory: Memory
    layers: list[tuple[Tensor, Tensor]]  # for each layer h and c, both (1, B * K, H)

    def select(self, sentences: Tensor, hypotheses: Tensor) -> "DecoderState":
        """Goes on with some of the sentences, in any hypotheses.

        Args:
            sentences: (B',), increasing.
            hypotheses: (B', K'), for each of those sentences the hypotheses to go on from.
        """
        batch = len(self.memory.values)
        before = self.layers[0][0].size(1) // batch
        rows = (sentences.unsqueeze(1) * before + hypotheses).flatten()
        memory = self.memory if len(sentences) == batch else self.memory.select(sentences)
        return DecoderState(memory, [(h.index_select(1, rows), c.index_select(1, rows)) for h, c in self.layers])


class StepOutput(NamedTuple):
    """What one step of the decoder gives."""

    log_probabilities: Tensor  # (B, K, V), of the next token
    state: DecoderState
    attention: Tensor  # (B, K, S)


class TranslationModel(nn.Module):
    """Translates token sequences: bidirectional encoder, attention, decoder, softmax.

    The first encoder layer reads in both directions, the others stand upon it. The first decoder layer reads the target
    alone, and its output asks the attention; the context goes into every layer above and into the softmax. So a
    decoder layer never waits for the one above it, and training runs each layer over all steps in one call.

    Args:
        source_size: source vocabulary.
        target_size: target vocabulary, V.
        embedding: width of the word vectors and of what the softmax sees, E.
        hidden: width of each layer (of each direction of the first), H.
        encoder_layers: how many.
        decoder_layers: how many.
        tied: "none"; "output", the softmax has the weights of the target embedding; "all", the source embedding too,
            for a joint vocabulary.
        residual: add the input of a layer to its output, where both are H wide; deep stacks need it.
        input_dropout: on the embeddings of both sides, one mask for all steps, as are the next two.
        between_dropout: on the output of each layer but the decoder's last.
        output_dropout: on what the softmax sees.
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
        method: str = "gumbel",
        tau: float | None = None,
        noise_rate: float = 0.2,
        gates: str = "if",
        eval_gate: str = "soft",
        backend: str = "auto",
    ) -> None:
        super().__init__()
        counts = {"source_size": source_size, "target_size": target_size, "embedding": embedding, "hidden": hidden}
        for name, count in {**counts, "encoder_layers": encoder_layers, "decoder_layers": decoder_layers}.items():
            check_count(name, count)
        dropouts = {
            "input_dropout": input_dropout,
            "between_dropout": between_dropout,
            "output_dropout": output_dropout,
        }
        for name, probability in dropouts.items():
            check_dropout(name, probability)
        if tied not in TIES:
            raise G2Error(f"tied must be one of {', '.join(map(repr, TIES))}, got {tied!r}")
        if tied == "all" and source_size != target_size:
            raise G2Error(
                f"tied='all' needs one vocabulary for both sides, got {source_size} and {target_size} tokens; "
                "make it joint, or use tied='output'"
            )

        def layer(input_size: int, bidirectional: bool = False) -> G2LSTM:
            return G2LSTM(
                input_size,
                hidden,
                bidirectional=bidirectional,
                weight_dropout=weight_dropout,
                method=method,
                tau=tau,
                noise_rate=noise_rate,
                gates=gates,
                eval_gate=eval_gate,
                backend=backend,
            )

        self.residual = residual
        self.input_dropout, self.between_dropout, self.output_dropout = input_dropout, between_dropout, output_dropout
        self.target_embedding = nn.Embedding(target_size, embedding)
        # A tied matrix has one name only, so that no tensor is stored twice. A compressed softmax_weight is a module.
        self.source_embedding = None if tied == "all" else nn.Embedding(source_size, embedding)
        self.softmax_weight: nn.Parameter | nn.Module | None = (
            nn.Parameter(torch.empty(target_size, embedding)) if tied == "none" else None
        )
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
        """Embeddings (and softmax) uniform in +-0.1, its bias 0, everything else as torch does."""
        for matrix in (self.target_embedding.weight, self.source_weight, self.output_weight):
            nn.init.uniform_(matrix, -0.1, 0.1)
        nn.init.zeros_(self.softmax_bias)

    @property
    def source_weight(self) -> Tensor:
        """(source_size, E): the target embedding's own if all are tied."""
        return self._source.weight

    @property
    def output_weight(self) -> Tensor:
        """(V, E), the weights of the softmax: the target embedding's own if tied."""
        return weight_of(self._softmax)

    @property
    def _source(self) -> nn.Embedding:
        return self.target_embedding if self.source_embedding is None else self.source_embedding

    @property
    def _softmax(self) -> nn.Module | Tensor:
        return self.target_embedding if self.softmax_weight is None else self.softmax_weight

    def forward(self, source: Tensor, lengths: Tensor, inputs: Tensor) -> Tensor:
        """What the softmax sees, (T, B, E), when every target token is known.

        Args:
            source: (S, B), padded with any token.
            lengths: (B,), how long each source is; on the CPU.
            inputs: (T, B), the target tokens before those to be predicted.
        """
        features, _, _ = self._decode(inputs, self.start(self.encode(source, lengths)))
        return features

    def encode(self, source: Tensor, lengths: Tensor) -> Memory:
        """Reads sources (S, B) of these lengths (B,). What stands after a sentence's end changes nothing of it."""
        x = self._drop(self._source(source), self.input_dropout)
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        x, _ = pad_packed_sequence(self.encoder[0](packed)[0], total_length=len(source))
        for index, layer in enumerate(self.encoder[1:], start=1):
            below = self._drop(x, self.between_dropout)
            x, _ = layer(below)
            if self.residual and index > 1:
                x = x + below
        values = self._drop(x, self.between_dropout).transpose(0, 1)
        is_padding = torch.arange(len(source)) >= lengths.unsqueeze(1)
        return self.attention.memory(values, is_padding.to(source.device))

    def start(self, memory: Memory) -> DecoderState:
        """Before the first step, one hypothesis a sentence: h from the mean of the encoder's output, c zero."""
        is_token = memory.is_padding.logical_not().unsqueeze(-1).to(memory.values.dtype)
        mean = (memory.values * is_token).sum(1) / is_token.sum(1)
        h = self.bridge(mean).tanh().chunk(len(self.decoder), dim=-1)
        return DecoderState(memory, [(h_l.unsqueeze(0), torch.zeros_like(h_l).unsqueeze(0)) for h_l in h])

    def step(self, tokens: Tensor, state: DecoderState) -> StepOutput:
        """Reads one token (B, K) of each hypothesis, and tells what may come next."""
        features, attention, state = self._decode(tokens.view(1, -1), state)
        logits = nn.functional.linear(*softmax_factors(features[0], self._softmax), self.softmax_bias)
        return StepOutput(logits.log_softmax(-1).view(*tokens.shape, -1), state, attention)

    def token_losses(self, features: Tensor, targets: Tensor) -> Tensor:
        """-log p(target) in nats, (N,), from features (N, E); never holds all the logits."""
        rows, weight = softmax_factors(features, self._softmax)
        return cross_entropy(rows, weight, self.softmax_bias, targets, reduction="none")

    def _decode(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, Tensor, DecoderState]:
        """Tokens (T, B * K) to features (T, B * K, E), attention (B, T * K, S) and the state after them."""
        memory, layers = state
        batch, (steps, rows) = len(memory.values), tokens.shape
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

    def _drop(self, x: Tensor, probability: float) -> Tensor:
        return locked_dropout(x, probability) if self.training else x
