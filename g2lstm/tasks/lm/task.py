"""Language modelling as a task: data, the AWD-LSTM's loss, windows of text, validation."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from g2lstm.tasks.cross_entropy import Guide, cross_entropy, guided_cross_entropy
from g2lstm.tasks.lm.model import LanguageModel, State
from g2lstm.tasks.lm.recipe import LmRecipe
from g2lstm.tasks.lm.trained import TrainedLanguageModel
from g2lstm.tasks.task import Learner, StepLoss, Task, TrainingData, ValidationBatch, shown_perplexity
from g2lstm.text.batches import Columns, Window, sample_bptt
from g2lstm.text.corpus import TokenStream, prepare_stream, prepare_tokenizer
from g2lstm.text.tokenize import Tokenizer


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
    guide: Guide | None = None,
) -> Loss:
    """Cross entropy + alpha * activation regularisation + beta * temporal activation regularisation.

    Targets are (T, B). As in the AWD-LSTM, the first regulariser sees the last layer's output after dropout, `features`
    (T, B, E), and the second its output before dropout, `raw` (T, B, E). With a `guide`, a teacher has a share of the
    cross entropy.
    """
    rows, ids = features.flatten(0, 1), targets.flatten()
    if guide is None:
        total = loss = cross_entropy(rows, weight, bias, ids)
    else:
        assert bias is not None
        total, loss = (nats / len(ids) for nats in guided_cross_entropy(rows, weight, bias, ids, guide))
    if alpha:
        total = total + alpha * activation_regulariser(features)
    if beta:
        total = total + beta * temporal_regulariser(raw)
    return Loss(total, loss.detach())


def activation_regulariser(output: Tensor) -> Tensor:
    """mean(h^2) over output (T, B, E): penalises large activations."""
    return output.square().mean()


def temporal_regulariser(output: Tensor) -> Tensor:
    """mean((h_t+1 - h_t)^2) over output (T, B, E): penalises fast changes; 0 for a single step."""
    return activation_regulariser(output.diff(dim=0)) if len(output) > 1 else output.new_zeros(())


class LanguageModelLoss(nn.Module):
    """The model and its training loss in one forward call."""

    def __init__(self, model: LanguageModel, alpha: float, beta: float) -> None:
        super().__init__()
        self.model = model
        self.alpha, self.beta = alpha, beta

    def forward(
        self, tokens: Tensor, targets: Tensor, state: State, guide: Guide | None = None
    ) -> tuple[Tensor, Tensor, State]:
        """The loss of tokens and targets (T, B) with and without regularisers, and the state after the last step."""
        out = self.model(tokens, state)
        weight, bias = self.model.output_weight, self.model.softmax_bias
        more = {"alpha": self.alpha, "beta": self.beta}
        loss = training_loss(out.features, out.raw, targets, weight, bias, **more, guide=guide)
        return loss.total, loss.cross_entropy, out.state


class LanguageModelLearner(Learner):
    """Reads windows down the columns of a text, and carries the state along; each process has its own columns."""

    recipe: LmRecipe
    model: LanguageModel
    teacher: LanguageModel | None

    def _take(self, data: TrainingData) -> None:
        recipe, self.settings = self.recipe, self.recipe.train
        if self.settings.frequency_bias:
            self.model.predict_frequencies(torch.from_numpy(data.train.counts(self.model.vocabulary_size)))
        alpha, beta = self.settings.activation_regularisation, self.settings.temporal_regularisation
        self.module = LanguageModelLoss(self.model, alpha, beta)
        self.columns = Columns(data.train, self.settings.batch_size, rank=self.rank, world_size=self.world_size)
        self.valid = Columns(data.valid, recipe.evaluate.batch_size, keep_tail=True)
        self.observed = int(self.valid.rows > recipe.evaluate.bptt)  # the first window starts from zero states
        # Every process draws the same lengths, so that their windows have the same shape.
        self.lengths = torch.Generator().manual_seed(self.settings.seed)
        self.start_epoch()

    @property
    def facts(self) -> dict[str, str]:
        """The checksums of the texts, and the length of the training text."""
        return {
            "train_sha256": self.columns.stream.text_sha256,
            "train_tokens": str(len(self.columns.stream)),
            "valid_sha256": self.valid.stream.text_sha256,
        }

    @property
    def remarks(self) -> list[str]:
        """What is about to be trained, in one line."""
        widths = " and ".join(str(layer.hidden_size) for layer in self.model.lstms)
        return [self.summary(f"layers of {widths} units", self.valid.stream)]

    def start_epoch(self) -> None:
        """Goes back to the first row, with zero states."""
        self.position = 0
        self.state = self._initial_state()

    def _initial_state(self) -> State:
        """Zero states of the model's layers, then of its teacher's."""
        readers = [self.model] if self.teacher is None else [self.model, self.teacher]
        return [state for reader in readers for state in reader.initial_state(self.columns.local_batch)]

    @property
    def epoch_progress(self) -> float:
        """The share of rows that have been read."""
        return self.position / self.columns.rows

    def next_batch(self) -> Window | None:
        """The next window, of random length as in the AWD-LSTM."""
        if self.position >= self.columns.rows:
            return None
        s = self.settings
        shape = {"deviation": s.bptt_deviation, "half_probability": s.bptt_half_probability}
        length = sample_bptt(s.bptt, self.lengths, minimum=s.bptt_minimum, **shape)
        window = self.columns.window(self.position, length)
        self.position = window.position
        return window

    def rate_scale(self, batch: Window) -> float:
        """The learning rate is proportional to the length of a window, so tokens in a short one don't weigh more."""
        return len(batch.tokens) / self.settings.bptt

    def loss(self, module: nn.Module, batch: Window) -> StepLoss:
        """Reads a window from the carried state; carries on the new state, detached, if the loss is finite."""
        tokens, targets = batch.tokens.to(self.device), batch.targets.to(self.device)
        layers, guide, taught = len(self.model.layers), None, []
        if self.teacher is not None:
            with torch.no_grad():
                features, _, taught = self.teacher(tokens, self.state[layers:])
            guide = self.guide(features.flatten(0, 1))
        total, mean, state = module(tokens, targets, self.state[:layers], guide)
        nats = mean.item()
        if math.isfinite(nats):
            self.state = [(h.detach(), c.detach()) for h, c in [*state, *taught]]
        return StepLoss(total, nats, tokens.numel() * self.world_size)

    def _validation_batches(self) -> Iterator[ValidationBatch]:
        """Reads columns, which is quicker than reading one stream as `g2lstm eval` does."""
        state = self.model.initial_state(self.valid.local_batch)
        for window in self.valid.windows(self.recipe.evaluate.bptt):
            features, _, state = self.model(window.tokens.to(self.device), state)
            yield ValidationBatch(features, window.targets)

    def _judge(self, loss: float) -> tuple[dict[str, float], float]:
        valid = self.valid.stream
        bits = loss / math.log(2) * (len(valid) - 1) / valid.characters
        return {"perplexity": shown_perplexity(loss), "bits_per_character": bits}, loss

    def state_dict(self) -> dict[str, Any]:
        """The row, the generator of lengths, and the states of this process's columns."""
        state = [[h, c] for h, c in self.state]
        return {"position": self.position, "lengths": self.lengths.get_state(), "state": state}

    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        """Restores a position; the columns of all processes together are the same text, however many there are."""
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
        if _outline(state) != _outline(self._initial_state()):
            raise ValueError(f"the carried states are {_outline(state)}")
        self.state = state


def _outline(state: State) -> list[tuple[torch.Size, torch.dtype]]:
    return [(part.shape, part.dtype) for layer in state for part in layer]


class LmTask(Task[LmRecipe, LanguageModel, TrainedLanguageModel]):
    """Language modelling."""

    recipe, model, learns, trained = LmRecipe, LanguageModel, LanguageModelLearner, TrainedLanguageModel

    def train_tokenizers(self, files: Path, kind: str, **settings: Any) -> list[Tokenizer]:
        """The tokenizer of the text."""
        return [prepare_tokenizer(files, kind, **settings)]

    def tokenise(self, files: Path, *tokenizers: Tokenizer) -> TokenStream:
        """The text as one stream of tokens."""
        return prepare_stream(files, *tokenizers)

    def weights_per_token(self, recipe: LmRecipe, words: int) -> int:
        """Every token goes through all weights except the embedding, in which it is looked up."""
        lookup = 0 if recipe.model.tied else words * recipe.model.embedding
        return self.count_weights(recipe, words) - lookup
