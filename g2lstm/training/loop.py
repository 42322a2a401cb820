"""The training loop: one for every task, optimiser and device; it can stop after any update and resume later."""

import math
import time
from contextlib import nullcontext
from typing import Any

from accelerate import Accelerator

from g2lstm.errors import G2Error
from g2lstm.recipes.sections import NtAsgd, TrainSection
from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.task import Learner, Validation
from g2lstm.training.checkpoint import latest_checkpoint, save_checkpoint, write_state
from g2lstm.training.environment import Interrupted, Signals
from g2lstm.training.optim import build_optimizer
from g2lstm.training.processes import of_first, sums
from g2lstm.training.progress import Metrics, Observer, Silent, TrainingProgress, learning_rate
from g2lstm.training.state import (
    TrainingState,
    check_unchanged,
    foreign_state_refused,
    max_checkpoint_bytes,
    not_finite,
)

MAX_SKIPPED = 10  # updates in a row before training gives up


class Trainer:
    """Trains by a recipe's `train` section, into a run directory.

    Args:
        learner: model, data and loss.
        settings: the recipe's `train` section.
        run: where checkpoints, metrics and the best weights go.
        accelerator: device, precision and processes.
        observer: hears how it goes.
    """

    def __init__(
        self, learner: Learner, settings: TrainSection, run: RunDirectory, accelerator: Accelerator, observer: Observer
    ) -> None:
        self.learner = learner
        self.settings = settings
        self.run = run
        self.accelerator = accelerator
        self.observer = observer
        self.progress = TrainingProgress(epochs=None if settings.minutes else settings.epochs)
        optimizer, self.averaging = build_optimizer(settings.optimizer, list(learner.model.parameters()))
        self.module, self.optimizer = accelerator.prepare(learner.module, optimizer)
        self._metrics: Observer = Silent()
        self._signals = Signals(
            lambda: observer.on_message("stopping after saving the state; press Ctrl-C again to stop at once")
        )

    # ------------------------------------------------------------------------------------------------ the loop

    def train(self, *, resume: bool = False) -> TrainingProgress:
        """Trains to the end, or raises `Interrupted` once the state is saved.

        Args:
            resume: continue from the newest whole checkpoint, if there is one.
        """
        if self.accelerator.is_main_process:
            self.run.remember_recipe()
        if resume:
            self._restore()
        if self.progress.finished:
            return self.progress
        is_main, step = self.accelerator.is_main_process, self.progress.step
        files = Metrics(self.run, step) if is_main else nullcontext(Silent())
        with self._signals.noticed(), files as self._metrics:
            self._start_clock()
            if self.progress.best is None:
                for remark in self.learner.remarks:
                    self.observer.on_message(remark)
                self._validate()
                self._save()
            while not self._is_done():
                batch = self.learner.next_batch()
                if batch is None:
                    self._end_epoch()
                    continue
                self._update(batch)
                self._fit_epochs()
                is_interrupted, is_due = self._requests()
                if is_interrupted:
                    raise Interrupted(f"training was interrupted; its state is saved in {self._save()}")
                if is_due:
                    self._save()
            if self.learner.epoch_progress >= 1:
                self._end_epoch()
            elif self.learner.epoch_progress > 0:  # a budget in minutes may end within an epoch
                self._validate()
            self.progress.finished = True
            self._save()
        return self.progress

    def _update(self, batch: Any) -> None:
        self.learner.model.train()
        rate = learning_rate(self.settings, self._share()) * self.learner.rate_scale(batch)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self.learner.loss(self.module, batch)
        # Even if the loss is not finite: then neither is the gradient that all processes share, and all of them skip.
        self.accelerator.backward(loss.total)
        found = self.accelerator.clip_grad_norm_(self.learner.model.parameters(), self.settings.clip or math.inf)
        norm = 0.0 if found is None else found.item()
        (nats,) = sums(self.accelerator, [loss.nats / self.accelerator.num_processes])
        is_finite = math.isfinite(nats) and math.isfinite(norm)
        # With float16, the scaler of the loss skips an update with such a gradient by itself, and lowers its scale.
        if is_finite or (self.accelerator.scaler is not None and not math.isfinite(norm)):
            self.optimizer.step()
        self.progress.step += 1
        if not is_finite:
            self._skip(batch, nats, norm)
            return
        self.optimizer.zero_grad()
        self.averaging.after_update()
        self.progress.skipped_in_a_row = 0
        self.progress.tokens += loss.tokens
        self._note_time()
        values = {"loss": nats, "perplexity": math.exp(min(nats, 700.0)), "learning_rate": rate}
        for listener in (self._metrics, self.observer):
            listener.on_step(self.progress, self._share(), values)

    def _skip(self, batch: Any, nats: float, norm: float) -> None:
        """Skips an update, and keeps the batch if it is the first of several; too many in a row end training."""
        what = f"the gradient became {norm}" if math.isfinite(nats) else f"the loss became {nats}"
        progress, rank = self.progress, self.accelerator.process_index
        progress.skipped += 1
        progress.skipped_in_a_row += 1
        kept = self.run.path / f"skipped-batch{f'-{rank}' if rank else ''}.json"
        if progress.skipped_in_a_row == 1:
            gradients = {name: p.grad for name, p in self.learner.model.named_parameters() if p.grad is not None}
            names = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
            facts = {"step": progress.step, "epoch": progress.epoch, "loss": str(nats), "gradient": str(norm)}
            write_state(kept, {**facts, "gradients_not_finite": names, "batch": batch._asdict()})
            self.observer.on_message(f"step {progress.step}: {what}; the update is skipped, its batch is in {kept}")
        self.optimizer.zero_grad()
        self._note_time()
        if progress.skipped_in_a_row >= MAX_SKIPPED:
            several = f"{MAX_SKIPPED} updates in a row were skipped (the batch of the first is in {kept})"
            raise G2Error(self._diverged(f"{several}, and {what}"))

    def _end_epoch(self) -> None:
        self.progress.epoch += 1
        self.learner.start_epoch()
        has_fired = self._validate()
        optimizer, stale = self.settings.optimizer, self.progress.stale
        if has_fired and isinstance(optimizer, NtAsgd) and optimizer.start == "asgd":
            self._end_here("validation has stopped improving: finetuning ends")
        if self.settings.patience is not None and stale >= self.settings.patience:
            self._end_here(f"{stale} validation{'' if stale == 1 else 's'} without improvement: training ends")
        if not self._is_done():  # otherwise the last checkpoint follows at once
            self._save()

    def _end_here(self, message: str) -> None:
        self.observer.on_message(message)
        self.progress.epochs = float(self.progress.epoch)

    def _validate(self) -> bool:
        """Evaluates, keeps the weights if they are the best yet, and says whether NT-ASGD's trigger fired."""
        start = time.monotonic()
        with self.averaging.evaluation_weights():
            validation = self._evaluate()
            is_best = self._keep_if_best(validation)
        was_averaging = self.averaging.is_averaging
        has_fired = self.progress.step > 0 and self.averaging.check(validation.criterion)
        if has_fired and not was_averaging:
            self.observer.on_message("validation has stopped improving: averaging the weights from here on")
        (self.progress.validation_seconds,) = of_first(self.accelerator, [time.monotonic() - start])
        self.progress.validating_seconds += self.progress.validation_seconds
        self._note_time()
        for listener in (self._metrics, self.observer):
            listener.on_validation(self.progress, validation, is_best)
        return has_fired

    def _evaluate(self) -> Validation:
        validation = self.learner.validate()
        loss, criterion = of_first(self.accelerator, [validation.loss, validation.criterion])
        if not math.isfinite(loss):
            raise G2Error(self._diverged(f"the validation loss became {loss}"))
        return validation._replace(loss=loss, criterion=criterion)

    def _keep_if_best(self, validation: Validation) -> bool:
        progress = self.progress
        if not progress.is_improved_by(validation.criterion, validation.loss):
            progress.stale += 1
            return False
        progress.best, progress.best_loss = validation.criterion, validation.loss
        progress.best_scores = dict(validation.scores)
        progress.stale = 0
        weights = self.learner.model.state_dict()
        self._check_finite(weights)
        if self.accelerator.is_main_process:
            facts = {"steps": str(progress.step)}
            if self.settings.minutes and progress.epochs is not None:  # what the schedule was fitted to
                facts["epochs"] = repr(progress.epochs)
            self.run.save_weights(weights, {**self.learner.facts, **facts})
        return True

    # ------------------------------------------------------------------------------------------------ schedule

    def _share(self) -> float:
        return self.progress.share(self.settings, self._epochs_done())

    def _epochs_done(self) -> float:
        return self.progress.epoch + self.learner.epoch_progress

    def _is_done(self) -> bool:
        return self._share() >= 1.0

    def _fit_epochs(self) -> None:
        if self.progress.fit_epochs(self.settings, self._epochs_done()):
            minutes, epochs = self.settings.minutes, self.progress.epochs
            self.observer.on_message(f"{minutes:g} minutes are enough for {epochs:.2f} epochs")

    def _start_clock(self) -> None:
        self._saved_at = time.monotonic()
        self._clock = time.monotonic() - self.progress.seconds

    def _note_time(self) -> None:
        self.progress.seconds = time.monotonic() - self._clock
        if self.progress.epochs is None:  # the clock still decides, so all processes need the same time
            (self.progress.seconds,) = of_first(self.accelerator, [self.progress.seconds])

    def _requests(self) -> tuple[bool, bool]:
        """Whether any process was interrupted, and whether a checkpoint is due by the first process's clock."""
        is_due = time.monotonic() - self._saved_at > 60 * self.settings.checkpoint_minutes
        own = [float(self._signals.came), float(is_due and self.accelerator.is_main_process)]
        interrupted, due = sums(self.accelerator, own)
        return interrupted > 0, due > 0

    # ------------------------------------------------------------------------------------------------ state

    @property
    def state(self) -> TrainingState:
        """What a checkpoint holds, besides the progress."""
        return TrainingState(self.learner, self.optimizer, self.averaging, self.accelerator)

    def _save(self) -> str:
        self._saved_at = time.monotonic()
        state = self.state.take()
        self._check_finite(state)
        if not self.accelerator.is_main_process:
            return str(self.run.checkpoints)
        state |= {"recipe": self.run.recipe_hash, "progress": self.progress.model_dump()}
        try:
            return str(save_checkpoint(self.run.checkpoints, self.progress.step, state))
        except G2Error as error:
            raise G2Error(f"{error}; {self._last_good()}; then continue with --resume") from None

    def _restore(self) -> None:
        state, problems = latest_checkpoint(self.run.checkpoints, max_checkpoint_bytes(self.learner.model))
        for problem in problems:
            self.observer.on_message(f"{problem}; using the checkpoint before it")
        with foreign_state_refused(self.run):
            saved = None if state is None else TrainingProgress.model_validate(state["progress"])
            if saved is not None and saved.epochs is None and self.settings.minutes is None:
                raise ValueError("it does not say how many epochs to train for")
        step = -1 if saved is None else saved.step
        if of_first(self.accelerator, [step]) != [step]:
            raise G2Error(
                f"the processes see different checkpoints; put {self.run.path} on a disk that all of them share"
            )
        if state is None or saved is None:
            self.observer.on_message("there is no checkpoint yet: starting from the beginning")
            return
        self.progress = saved
        with foreign_state_refused(self.run):
            check_unchanged(state, self.run, self.learner.facts)
            is_exact = self.state.put_back(state, seed=self.settings.seed, step=step)
        if not is_exact:
            before, now = len(state["processes"]), self.accelerator.num_processes
            self.observer.on_message(f"{before} process(es) before, {now} now: noise and dropout start new streams")
        self.observer.on_message(f"continuing from step {self.progress.step}")
        self._replace_lost_weights()

    def _replace_lost_weights(self) -> None:
        """Writes the checkpoint's weights as the model if the file of the best weights is missing or damaged."""
        if of_first(self.accelerator, [self.run.has_weights()])[0]:
            return
        before, stale = self.progress.best, self.progress.stale
        self.progress.best = None
        with self.averaging.evaluation_weights():
            self._keep_if_best(self._evaluate())
        self.progress.stale = stale
        self.observer.on_message(
            f"{self.run.model_file} was missing or damaged: it now holds the weights of the last checkpoint, whose "
            f"validation criterion is {self.progress.best}; the best was {before}"
        )

    def _check_finite(self, state: Any) -> None:
        if name := not_finite(state):
            raise G2Error(self._diverged(f"{name} is no longer finite"))

    def _diverged(self, what: str) -> str:
        advice = "Start a new run with another --out and a lower train.optimizer.lr, or with train.clip"
        if self.progress.epoch > 0:
            advice += f"; train.finetune_from={self.run.path} starts from the best weights"
        return f"{what} after step {self.progress.step}; {self._last_good()}. {advice}"

    def _last_good(self) -> str:
        checkpoints = sorted(self.run.checkpoints.glob("step-*.json"))
        return f"the last good state is {checkpoints[-1]}" if checkpoints else "there is no checkpoint yet"
