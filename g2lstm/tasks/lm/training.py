"""Language modelling as a task: data, the AWD-LSTM's loss, windows of text, validation."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor, nn

from g2lstm.errors import G2Error
from g2lstm.nn.record import GateRecord, evaluating, record_gates
from g2lstm.tasks.cross_entropy import cross_entropy
from g2lstm.tasks.lm.model import LanguageModel, State, detach_state
from g2lstm.tasks.lm.recipe import LmRecipe
from g2lstm.tasks.lm.trained import TrainedLanguageModel
from g2lstm.tasks.task import (
    Learner,
    StepLoss,
    Task,
    TrainingData,
    Validation,
    Where,
    Work,
    gate_options,
    histograms,
    saturation,
)
from g2lstm.text.corpus import TokenStream, prepare_stream, prepare_tokenizer
from g2lstm.text.tokenize import Tokenizer
from g2lstm.text.windows import Columns, Window, sample_bptt


class Loss(NamedTuple):
    """A training loss: what to differentiate, and its cross entropy."""

    total: Tensor  # (), with the regularisers
    cross_entropy: Tensor  # (), nats per token, without gradient


def training_loss(
    features: Tensor,
    raw: Tensor,
    targets: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    alpha: float = 2.0,
    beta: float = 1.0,
) -> Loss:
    """Cross entropy + alpha * activation regularisation + beta * temporal activation regularisation.

    As in the AWD-LSTM, the first regulariser sees the last layer's output after dropout, the second before it.

    Args:
        features: (T, B, E), the last layer's output after dropout.
        raw: (T, B, E), the same before dropout.
        targets: (T, B), the next token at each step.
        weight: (V, E), the weights of the softmax.
        bias: (V,), its bias.
        alpha: the weight of mean(features^2).
        beta: the weight of mean((h_t+1 - h_t)^2).
    """
    loss = cross_entropy(features.flatten(0, 1), weight, bias, targets.flatten())
    total = loss
    if alpha:
        total = total + alpha * activation_regulariser(features)
    if beta:
        total = total + beta * temporal_regulariser(raw)
    return Loss(total, loss.detach())


def activation_regulariser(output: Tensor) -> Tensor:
    """mean(h^2) over output (T, B, E): large activations cost."""
    return output.square().mean()


def temporal_regulariser(output: Tensor) -> Tensor:
    """mean((h_t+1 - h_t)^2) over output (T, B, E): fast changes cost; 0 for a single step."""
    return activation_regulariser(output.diff(dim=0)) if len(output) > 1 else output.new_zeros(())


class LanguageModelLoss(nn.Module):
    """The model and its training loss in one forward call."""

    def __init__(self, model: LanguageModel, alpha: float, beta: float) -> None:
        super().__init__()
        self.model = model
        self.alpha, self.beta = alpha, beta

    def forward(self, tokens: Tensor, targets: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        """The loss of tokens and targets (T, B) with and without regularisers, and the state after the last step."""
        out = self.model(tokens, state)
        weight, bias = self.model.output_weight, self.model.softmax_bias
        loss = training_loss(out.features, out.raw, targets, weight, bias, alpha=self.alpha, beta=self.beta)
        return loss.total, loss.cross_entropy, out.state


class LanguageModelLearner(Learner):
    """Reads windows down the columns of a text, carrying the state from one to the next; each process has columns."""

    recipe: LmRecipe
    model: LanguageModel

    def __init__(self, recipe: LmRecipe, model: LanguageModel, data: TrainingData, **where: Unpack[Where]) -> None:
        super().__init__(recipe, model, data, **where)
        self.settings = settings = recipe.train
        _check_length("training", data.train, "train.batch_size", settings.batch_size)
        _check_length("validation", data.valid, "evaluate.batch_size", recipe.evaluate.batch_size)
        if settings.frequency_bias:
            model.predict_frequencies(torch.from_numpy(data.train.counts(model.vocabulary_size)))
        self.module = LanguageModelLoss(model, settings.activation_regularisation, settings.temporal_regularisation)
        self.columns = Columns(data.train, settings.batch_size, rank=self.rank, world_size=self.world_size)
        self.valid = Columns(data.valid, recipe.evaluate.batch_size, keep_tail=True)
        self.valid_steps = recipe.evaluate.bptt
        # Every process draws the same lengths, so that their windows have the same shape.
        self.lengths = torch.Generator().manual_seed(recipe.train.seed)
        self.position = 0
        self.state = self.model.initial_state(self.columns.local_batch)

    @property
    def facts(self) -> dict[str, str]:
        """The checksums of the texts, and the length of the training text."""
        return {
            "train_sha256": self.columns.stream.text_sha256,
            "train_tokens": str(len(self.columns.stream)),
            "valid_sha256": self.valid.stream.text_sha256,
        }

    def start_epoch(self) -> None:
        """Goes back to the first row, with zero states."""
        self.position = 0
        self.state = self.model.initial_state(self.columns.local_batch)

    @property
    def epoch_progress(self) -> float:
        """The share of rows that have been read."""
        return self.position / self.columns.rows

    def next_batch(self) -> Window | None:
        """The next window, of random length as in the AWD-LSTM."""
        if self.position >= self.columns.rows:
            return None
        s = self.settings
        length = sample_bptt(
            s.bptt,
            self.lengths,
            deviation=s.bptt_deviation,
            half_probability=s.bptt_half_probability,
            minimum=s.bptt_minimum,
        )
        window = self.columns.window(self.position, length)
        self.position = window.position
        return window

    def rate_scale(self, batch: Window) -> float:
        """The learning rate is proportional to the length of a window, so tokens in a short one don't weigh more."""
        return len(batch.tokens) / self.settings.bptt

    def loss(self, module: nn.Module, batch: Window) -> StepLoss:
        """Reads a window from the carried state, and carries on the new one, detached, if the loss is finite."""
        tokens, targets = batch.tokens.to(self.device), batch.targets.to(self.device)
        total, mean, state = module(tokens, targets, self.state)
        nats = mean.item()
        if math.isfinite(nats):
            self.state = detach_state(state)
        return StepLoss(total, nats, tokens.numel() * self.world_size)

    @torch.no_grad()
    def validate(self) -> Validation:
        """A quick perplexity, in columns where `g2lstm eval` reads one stream, and how binary the gates are."""
        nats, count = 0.0, 0
        gates: GateRecord | None = None
        looked_at = int(self.valid.rows > self.valid_steps)  # the first window starts from zero states
        with evaluating(self.model):
            state = self.model.initial_state(self.valid.local_batch)
            for index, window in enumerate(self.valid.windows(self.valid_steps)):
                tokens, targets = window.tokens.to(self.device), window.targets.to(self.device)
                with record_gates(self.model) if index == looked_at else nullcontext(gates) as gates:
                    features, _, state = self.model(tokens, state)
                wanted = targets >= 0
                losses = self.model.token_losses(features[wanted], targets[wanted])
                nats += losses.sum(dtype=torch.float64).item()
                count += len(losses)
        loss = nats / count
        perplexity = torch.tensor(loss, dtype=torch.float64).exp().item()
        return Validation(loss, {"perplexity": perplexity, **saturation(gates)}, loss, histograms(gates))

    def state_dict(self) -> dict[str, Any]:
        """The row, the generator of lengths, and the states of this process's columns."""
        return {
            "position": self.position,
            "lengths": self.lengths.get_state(),
            "state": [[h, c] for h, c in self.state],
        }

    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        """Restores a position; the columns of all processes side by side are the same text, however many there are."""
        self.position = int(states[0]["position"])
        if not 0 <= self.position <= self.columns.rows:
            raise ValueError(f"position {self.position} is not in a text of {self.columns.rows} rows")
        self.lengths.set_state(states[0]["lengths"])
        own = slice(self.rank * self.columns.local_batch, (self.rank + 1) * self.columns.local_batch)
        layers = zip(*(one["state"] for one in states), strict=True)  # for each, (h, c) of every process
        state = [
            (torch.cat(hs, dim=1)[:, own].to(self.device), torch.cat(cs, dim=1)[:, own].to(self.device))
            for hs, cs in (zip(*each, strict=True) for each in layers)
        ]
        if _outline(state) != _outline(self.model.initial_state(self.columns.local_batch)):
            raise ValueError(f"the carried states are {_outline(state)}")
        self.state = state


def _check_length(what: str, stream: TokenStream, key: str, batch_size: int) -> None:
    if len(stream) <= batch_size:
        raise G2Error(
            f"the {what} text has {len(stream)} tokens, and {key} = {batch_size} needs at least {batch_size + 1}; use "
            "a smaller batch, or more text"
        )


def _outline(state: State) -> list[tuple[torch.Size, torch.dtype]]:
    return [(part.shape, part.dtype) for layer in state for part in layer]


class LmTask(Task[LmRecipe, LanguageModel, TrainedLanguageModel]):
    """Language modelling."""

    recipe = LmRecipe
    trained = TrainedLanguageModel
    learns = LanguageModelLearner

    def module(self, recipe: LmRecipe, *vocabularies: int) -> LanguageModel:
        """The model that a recipe describes."""
        (size,), model, dropout = vocabularies, recipe.model, recipe.model.dropout
        return LanguageModel(
            size,
            model.embedding,
            model.hidden,
            model.layers,
            tied=model.tied,
            residual=model.residual,
            word_dropout=dropout.words,
            input_dropout=dropout.input,
            between_dropout=dropout.between,
            output_dropout=dropout.output,
            **gate_options(model),
        )

    def train_tokenizers(self, recipe: LmRecipe, files: Path) -> list[Tokenizer]:
        """The tokenizer of the text."""
        data = recipe.data
        return [
            prepare_tokenizer(
                files,
                data.tokenizer,
                vocabulary=data.vocabulary,
                min_frequency=data.min_frequency,
                lowercase=data.lowercase,
            )
        ]

    def tokenise(self, files: Path, *tokenizers: Tokenizer) -> TokenStream:
        """The text as one stream of tokens."""
        return prepare_stream(files, *tokenizers)

    def work(self, recipe: LmRecipe, words: int, sentence: int) -> Work:
        """Every token goes through all weights except the embedding, in which it is looked up."""
        model, weights = recipe.model, self.count_weights(recipe, words)
        lookup = 0 if model.tied else words * model.embedding
        batch = recipe.train.batch_size * recipe.train.bptt
        return Work(weights, weights - lookup, model.layers * model.hidden, batch)
