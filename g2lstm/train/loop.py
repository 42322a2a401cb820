"""The training loop: one for every task, optimiser and device; it can be cut at any step and taken up again."""

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import Any, Protocol

import torch
from accelerate import Accelerator

from g2lstm.config.sections import AdamW, NtAsgd, TrainSection
from g2lstm.errors import G2Error
from g2lstm.runs.directory import RunDirectory
from g2lstm.train import optim
from g2lstm.train.budget import fitted_epochs
from g2lstm.train.checkpoint import latest_checkpoint, save_checkpoint
from g2lstm.train.metrics import Metrics
from g2lstm.train.task import Task, Validation

_FIT_AFTER_SECONDS = 20.0  # a budget in minutes is turned into epochs once the speed is known


@dataclass
class Progress:
    """How far training is; saved with every checkpoint."""

    step: int = 0
    epoch: int = 0
    tokens: int = 0
    seconds: float = 0.0
    epochs: float | None = None  # to train for; None until a budget in minutes has been fitted
    validation_seconds: float = 0.0  # of the last validation
    validating_seconds: float = 0.0  # of all of them
    best: float = math.inf  # the lowest criterion of a validation
    best_scores: dict[str, float] = field(default_factory=dict)  # of that validation
    stale: int = 0  # validations since then
    finished: bool = False


class Observer(Protocol):
    """Who wants to see training go on; the command line draws a bar."""

    def on_step(self, progress: Progress, share: float, values: dict[str, float]) -> None:
        """After every update: how much is done, in [0, 1], and what the last update measured."""

    def on_validation(self, progress: Progress, validation: Validation, is_best: bool) -> None:
        """After every validation."""

    def on_message(self, message: str) -> None:
        """Something worth a line."""


class Interrupted(Exception):  # noqa: N818  it is no error
    """Training was stopped by a signal, and its state is saved."""


class Trainer:
    """Trains a task by a recipe's `train` section, into a run directory.

    Args:
        task: model, data, loss.
        settings: the recipe's `train` section.
        run: where checkpoints, metrics and the best weights go.
        accelerator: device, precision and processes.
        observer: who is told.
    """

    def __init__(
        self, task: Task, settings: TrainSection, run: RunDirectory, accelerator: Accelerator, observer: Observer
    ) -> None:
        self.task = task
        self.settings = settings
        self.run = run
        self.accelerator = accelerator
        self.observer = observer
        self.progress = Progress(epochs=None if settings.minutes else settings.epochs)
        optimizer, self.averaging = optim.build_optimizer(settings.optimizer, list(task.model.parameters()))
        self.module, self.optimizer = accelerator.prepare(task.module, optimizer)
        self._interrupted = False

    # ------------------------------------------------------------------------------------------------ the loop

    def train(self, *, resume: bool = False) -> Progress:
        """Trains to the end, or raises `Interrupted` with the state saved.

        Args:
            resume: go on from the newest whole checkpoint, if there is one.
        """
        if resume:
            self._restore()
        if self.progress.finished:
            return self.progress
        with self._signals_noted(), Metrics(self.run, self.accelerator.is_main_process) as metrics:
            self._start_clock()
            if self.progress.step == 0:
                self._validate(metrics)
            while not self._is_done():
                batch = self.task.next_batch()
                if batch is None:
                    self._end_epoch(metrics)
                    continue
                self._update(batch, metrics)
                self._fit_budget()
                if self._is_interrupted():
                    path = self._save()
                    raise Interrupted(f"training was interrupted; its state is saved in {path}")
                if time.monotonic() - self._saved_at > 60 * self.settings.checkpoint_minutes:
                    self._save()
            if self.task.epoch_progress >= 1:
                self._end_epoch(metrics)
            elif self.task.epoch_progress > 0:  # a budget in minutes may end within an epoch
                self._validate(metrics)
            self.progress.finished = True
            self._save()
        return self.progress

    def _update(self, batch: Any, metrics: Metrics) -> None:
        self.task.model.train()
        rate = self._rate() * self.task.rate_scale(batch)
        optim.set_learning_rate(self.optimizer, rate)
        loss = self.task.loss(self.module, batch)
        if not math.isfinite(loss.nats):
            raise G2Error(self._diverged(f"the loss became {loss.nats}"))
        self.accelerator.backward(loss.total)
        norm = self.accelerator.clip_grad_norm_(self.task.model.parameters(), self.settings.clip or math.inf)
        if norm is not None and not norm.isfinite():
            raise G2Error(self._diverged(f"the gradient became {norm.item()}"))
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.averaging is not None:
            self.averaging.after_update()
        progress = self.progress
        progress.step += 1
        progress.tokens += loss.tokens
        self._note_time()
        values = {"loss": loss.nats, "perplexity": _exp(loss.nats), "learning_rate": rate}
        metrics.on_step(asdict(progress), values)
        self.observer.on_step(progress, self._share(), values)

    def _end_epoch(self, metrics: Metrics) -> None:
        self.progress.epoch += 1
        self.task.start_epoch()
        fired = self._validate(metrics)
        if fired and self.averaging is not None and self._stops_by_trigger():
            self.observer.on_message("validation has stopped improving: the finetune phase ends")
            self.progress.epochs = float(self.progress.epoch)
        if self.settings.patience is not None and self.progress.stale >= self.settings.patience:
            self.observer.on_message(f"{self.progress.stale} validations without a better one: training ends")
            self.progress.epochs = float(self.progress.epoch)
        self._save()

    def _validate(self, metrics: Metrics) -> bool:
        """Evaluates, saves the weights if they are the best yet, and tells the trigger; whether that fired."""
        start = time.monotonic()
        if self.averaging is None:
            validation, is_best, fired = self._evaluate(), False, False
            is_best = self._keep_if_best(validation)
        else:
            with self.averaging.evaluation_weights():
                validation = self._evaluate()
                is_best = self._keep_if_best(validation)
            was_averaging = self.averaging.is_averaging
            fired = self.progress.step > 0 and self.averaging.check(validation.criterion)
            if fired and not was_averaging:
                self.observer.on_message("validation has stopped improving: the weights are averaged from here on")
        (self.progress.validation_seconds,) = self._of_first([time.monotonic() - start])
        self.progress.validating_seconds += self.progress.validation_seconds
        self._note_time()
        metrics.on_validation(asdict(self.progress), validation)
        self.observer.on_validation(self.progress, validation, is_best)
        return fired

    def _evaluate(self) -> Validation:
        validation = self.task.validate()
        if not math.isfinite(validation.loss):
            raise G2Error(self._diverged(f"the validation loss became {validation.loss}"))
        return validation

    def _keep_if_best(self, validation: Validation) -> bool:
        if not validation.criterion < self.progress.best:
            self.progress.stale += 1
            return False
        self.progress.best, self.progress.best_scores = validation.criterion, dict(validation.scores)
        self.progress.stale = 0
        if self.accelerator.is_main_process:
            self.run.save_weights(self.task.model.state_dict(), self.task.facts)
        return True

    # ------------------------------------------------------------------------------------------------ schedule

    def _rate(self) -> float:
        chosen = self.settings.optimizer
        if isinstance(chosen, AdamW):
            # Until a budget in minutes is fitted, little of it is used: the rise has hardly begun.
            return chosen.lr * optim.one_cycle(self._share(), chosen.warmup, final=chosen.final_lr)
        return chosen.lr

    def _share(self) -> float:
        """How much of the training is done, in [0, 1]."""
        if self.progress.epochs is None:
            assert self.settings.minutes is not None
            passed = self.progress.seconds / (60 * self.settings.minutes)
            if self.settings.epochs is not None:
                passed = max(passed, (self.progress.epoch + self.task.epoch_progress) / self.settings.epochs)
            return min(passed, 1.0)
        return min((self.progress.epoch + self.task.epoch_progress) / self.progress.epochs, 1.0)

    def _is_done(self) -> bool:
        return self._share() >= 1.0

    def _fit_budget(self) -> None:
        """Turns minutes into epochs as soon as the speed is known; from then on the clock decides nothing."""
        progress, minutes = self.progress, self.settings.minutes
        if progress.epochs is not None or minutes is None:
            return
        training = progress.seconds - progress.validating_seconds
        if training < min(_FIT_AFTER_SECONDS, 6 * minutes):
            return
        done = progress.epoch + self.task.epoch_progress
        epochs = fitted_epochs(minutes, training / done, progress.validation_seconds)
        progress.epochs = min(epochs, self.settings.epochs or math.inf)
        self.observer.on_message(f"{minutes:g} minutes are enough for {progress.epochs:.2f} epochs")

    def _stops_by_trigger(self) -> bool:
        return isinstance(self.settings.optimizer, NtAsgd) and self.settings.optimizer.start == "asgd"

    # ------------------------------------------------------------------------------------------------ state

    def _save(self) -> str:
        self._saved_at = time.monotonic()
        if not all(p.isfinite().all() for p in self.task.model.parameters()):
            raise G2Error(self._diverged("a weight is no longer finite"))
        if not self.accelerator.is_main_process:
            return str(self.run.checkpoints)
        state = {
            "progress": {**asdict(self.progress), "best": _finite_or_none(self.progress.best)},
            "model": dict(self.task.model.state_dict()),
            "optimizer": optim.optimizer_state(self.optimizer),
            "averaging": None if self.averaging is None else self.averaging.state_dict(),
            "task": self.task.state_dict(),
            "facts": self.task.facts,
            "random": torch.get_rng_state(),
            "random_cuda": list(torch.cuda.get_rng_state_all()) if torch.cuda.is_available() else [],
        }
        return str(save_checkpoint(self.run.checkpoints, self.progress.step, state))

    def _restore(self) -> None:
        state, problems = latest_checkpoint(self.run.checkpoints)
        for problem in problems:
            self.observer.on_message(f"{problem}; going back to the one before")
        if state is None:
            self.observer.on_message("there is no checkpoint yet: starting from the beginning")
            return
        if state["facts"] != self.task.facts:
            changed = ", ".join(name for name, value in self.task.facts.items() if state["facts"].get(name) != value)
            raise G2Error(
                f"the training data of {self.run.path} have changed since its last checkpoint ({changed}); put the old "
                "files back, or start anew with --out"
            )
        saved = state["progress"]
        self.progress = Progress(**{**saved, "best": math.inf if saved["best"] is None else saved["best"]})
        self.task.model.load_state_dict(state["model"])
        optim.load_optimizer_state(self.optimizer, state["optimizer"])
        if self.averaging is not None:
            self.averaging.load_state_dict(state["averaging"])
        self.task.load_state_dict(state["task"])
        torch.set_rng_state(state["random"])
        if state["random_cuda"] and torch.cuda.device_count() == len(state["random_cuda"]):
            torch.cuda.set_rng_state_all(state["random_cuda"])
        self.observer.on_message(f"going on from step {self.progress.step}")

    def _start_clock(self) -> None:
        self._saved_at = time.monotonic()
        self._clock = time.monotonic() - self.progress.seconds

    def _note_time(self) -> None:
        self.progress.seconds = time.monotonic() - self._clock
        if self.progress.epochs is None:  # until then the clock decides
            (self.progress.seconds,) = self._of_first([self.progress.seconds])

    def _of_first(self, values: list[float]) -> list[float]:
        """What the first process has: all must decide alike, or they would wait for each other for ever."""
        if self.accelerator.num_processes > 1:
            from accelerate.utils import broadcast_object_list

            values = broadcast_object_list(values)
        return values

    def _is_interrupted(self) -> bool:
        """Whether any process was; all of them stop at the same step."""
        if self.accelerator.num_processes == 1:
            return self._interrupted
        flag = torch.tensor(float(self._interrupted), device=self.accelerator.device)
        return bool(self.accelerator.reduce(flag, "sum") > 0)

    def _diverged(self, what: str) -> str:
        checkpoints = sorted(self.run.checkpoints.glob("step-*.json"))
        last = f"the last good state is {checkpoints[-1]}" if checkpoints else "there is no checkpoint yet"
        return (
            f"{what} after step {self.progress.step}; {last}. Start anew under another --out with a lower "
            f"train.optimizer.lr or with train.clip; train.finetune_from={self.run.path} takes up the best weights"
        )

    @contextmanager
    def _signals_noted(self) -> Iterator[None]:
        """Ctrl-C and termination are noted, and heeded after the update that is under way; a second one at once."""
        if threading.current_thread() is not threading.main_thread():  # only that one may handle signals
            yield
            return

        def note(number: int, _frame: FrameType | None) -> None:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True

        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, note) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)


def _exp(nats: float) -> float:
    return math.exp(min(nats, 700.0))


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
