"""The training loop: one for every task, optimiser and device; it can be cut at any step and taken up again."""

import math
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any

from accelerate import Accelerator

from g2lstm.errors import G2Error
from g2lstm.recipes.sections import TrainSection
from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.task import Task, Validation
from g2lstm.training import budget, optim, resume_state, snapshot
from g2lstm.training.checkpoint import latest_checkpoint, save_checkpoint, write_state
from g2lstm.training.metrics import Metrics
from g2lstm.training.processes import of_first, sums
from g2lstm.training.progress import Interrupted, Observer, Progress
from g2lstm.training.signals import Signals

__all__ = ["MOST_SKIPPED", "Interrupted", "Observer", "Progress", "Trainer"]

MOST_SKIPPED = 10  # updates in a row that may be left out before training ends


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
        self._parts = snapshot.Parts(task, self.optimizer, self.averaging, accelerator)
        self._signals = Signals(
            lambda: observer.on_message("stopping: the state is saved first; once more to stop at once, without that")
        )

    # ------------------------------------------------------------------------------------------------ the loop

    def train(self, *, resume: bool = False) -> Progress:
        """Trains to the end, or raises `Interrupted` with the state saved.

        Args:
            resume: go on from the newest whole checkpoint, if there is one.
        """
        if self.accelerator.is_main_process:
            self.run.remember_recipe()
        if resume:
            self._restore()
        if self.progress.finished:
            return self.progress
        with self._signals.noted(), self._metrics() as metrics:
            self._start_clock()
            if self.progress.best == math.inf:  # nothing was validated yet
                for remark in self.task.remarks:
                    self.observer.on_message(remark)
                self._validate(metrics)
                self._save()
            while not self._is_done():
                batch = self.task.next_batch()
                if batch is None:
                    self._end_epoch(metrics)
                    continue
                self._update(batch, metrics)
                self._fit_budget()
                is_interrupted, is_due = self._asked()
                if is_interrupted:
                    path = self._save()
                    raise Interrupted(f"training was interrupted; its state is saved in {path}")
                if is_due:
                    self._save()
            if self.task.epoch_progress >= 1:
                self._end_epoch(metrics)
            elif self.task.epoch_progress > 0:  # a budget in minutes may end within an epoch
                self._validate(metrics)
            self.progress.finished = True
            self._save()
        return self.progress

    def _metrics(self) -> Metrics:
        return Metrics(self.run, self.accelerator.is_main_process, self.progress.step)

    def _update(self, batch: Any, metrics: Metrics) -> None:
        self.task.model.train()
        rate = budget.learning_rate(self.settings, self._share()) * self.task.rate_scale(batch)
        optim.set_learning_rate(self.optimizer, rate)
        loss = self.task.loss(self.module, batch)
        # Also if the loss is not finite: then the gradient that all processes share is not, and all skip it together.
        self.accelerator.backward(loss.total)
        found = self.accelerator.clip_grad_norm_(self.task.model.parameters(), self.settings.clip or math.inf)
        norm = 0.0 if found is None else found.item()
        (nats,) = sums(self.accelerator, [loss.nats / self.accelerator.num_processes])
        is_finite = math.isfinite(nats) and math.isfinite(norm)
        # A scaler of float16's losses leaves an update with such a gradient out itself, and lowers its scale.
        if is_finite or (self.accelerator.scaler is not None and not math.isfinite(norm)):
            self.optimizer.step()
        self.progress.step += 1
        if not is_finite:
            self._skip(batch, nats, norm)
            return
        self.optimizer.zero_grad()
        if self.averaging is not None:
            self.averaging.after_update()
        self.progress.skipped_in_a_row = 0
        self.progress.tokens += loss.tokens
        self._note_time()
        values = {"loss": nats, "perplexity": math.exp(min(nats, 700.0)), "learning_rate": rate}
        metrics.on_step(asdict(self.progress), values)
        self.observer.on_step(self.progress, self._share(), values)

    def _skip(self, batch: Any, nats: float, norm: float) -> None:
        """Leaves an update out, and keeps the batch if it is the first in a row; too many in a row end training."""
        what = f"the gradient became {norm}" if math.isfinite(nats) else f"the loss became {nats}"
        progress, rank = self.progress, self.accelerator.process_index
        progress.skipped += 1
        progress.skipped_in_a_row += 1
        kept = self.run.path / f"skipped-batch{f'-{rank}' if rank else ''}.json"
        if progress.skipped_in_a_row == 1:
            gradients = {name: p.grad for name, p in self.task.model.named_parameters() if p.grad is not None}
            names = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
            facts = {"step": progress.step, "epoch": progress.epoch, "loss": str(nats), "gradient": str(norm)}
            write_state(kept, {**facts, "gradients_not_finite": names, "batch": batch._asdict()})
            self.observer.on_message(f"step {progress.step}: {what}; this update is left out, its batch is in {kept}")
        self.optimizer.zero_grad()
        self._note_time()
        if progress.skipped_in_a_row >= MOST_SKIPPED:
            several = f"{MOST_SKIPPED} updates in a row had to be left out (the first one's batch: {kept})"
            raise G2Error(self._diverged(f"{several}, and {what}"))

    def _end_epoch(self, metrics: Metrics) -> None:
        self.progress.epoch += 1
        self.task.start_epoch()
        fired = self._validate(metrics)
        if fired and budget.ends_by_trigger(self.settings):
            self.observer.on_message("validation has stopped improving: the finetune phase ends")
            self.progress.epochs = float(self.progress.epoch)
        if self.settings.patience is not None and self.progress.stale >= self.settings.patience:
            several = f"{self.progress.stale} validation{'' if self.progress.stale == 1 else 's'}"
            self.observer.on_message(f"{several} without a better one: training ends")
            self.progress.epochs = float(self.progress.epoch)
        if not self._is_done():  # else the last one follows at once
            self._save()

    def _validate(self, metrics: Metrics) -> bool:
        """Evaluates, saves the weights if they are the best yet, and tells the trigger; whether that fired."""
        start = time.monotonic()
        with self._evaluation_weights():
            validation = self._evaluate()
            is_best = self._keep_if_best(validation)
        fired = False
        if self.averaging is not None:
            was_averaging = self.averaging.is_averaging
            fired = self.progress.step > 0 and self.averaging.check(validation.criterion)
            if fired and not was_averaging:
                self.observer.on_message("validation has stopped improving: the weights are averaged from here on")
        (self.progress.validation_seconds,) = of_first(self.accelerator, [time.monotonic() - start])
        self.progress.validating_seconds += self.progress.validation_seconds
        self._note_time()
        metrics.on_validation(asdict(self.progress), validation)
        self.observer.on_validation(self.progress, validation, is_best)
        return fired

    def _evaluation_weights(self) -> AbstractContextManager[None]:
        return nullcontext() if self.averaging is None else self.averaging.evaluation_weights()

    def _evaluate(self) -> Validation:
        validation = self.task.validate()
        loss, criterion = of_first(self.accelerator, [validation.loss, validation.criterion])
        if not math.isfinite(loss):
            raise G2Error(self._diverged(f"the validation loss became {loss}"))
        return validation._replace(loss=loss, criterion=criterion)

    def _keep_if_best(self, validation: Validation) -> bool:
        found = (validation.criterion, validation.loss)
        if not found < (self.progress.best, self.progress.best_loss):
            self.progress.stale += 1
            return False
        (self.progress.best, self.progress.best_loss), self.progress.best_scores = found, dict(validation.scores)
        self.progress.stale = 0
        weights = self.task.model.state_dict()
        self._check_finite(weights)
        if self.accelerator.is_main_process:
            trained = {"steps": str(self.progress.step)}
            if self.settings.minutes and self.progress.epochs is not None:  # what the schedule was fitted to
                trained["epochs"] = repr(self.progress.epochs)
            self.run.save_weights(weights, {**self.task.facts, **trained})
        return True

    # ------------------------------------------------------------------------------------------------ schedule

    def _share(self) -> float:
        return budget.share(self.settings, self.progress, self._epochs_done())

    def _epochs_done(self) -> float:
        return self.progress.epoch + self.task.epoch_progress

    def _is_done(self) -> bool:
        return self._share() >= 1.0

    def _fit_budget(self) -> None:
        if budget.fit(self.settings, self.progress, self._epochs_done()):
            minutes, epochs = self.settings.minutes, self.progress.epochs
            self.observer.on_message(f"{minutes:g} minutes are enough for {epochs:.2f} epochs")

    def _start_clock(self) -> None:
        self._saved_at = time.monotonic()
        self._clock = time.monotonic() - self.progress.seconds

    def _note_time(self) -> None:
        self.progress.seconds = time.monotonic() - self._clock
        if self.progress.epochs is None:  # until then the clock decides
            (self.progress.seconds,) = of_first(self.accelerator, [self.progress.seconds])

    def _asked(self) -> tuple[bool, bool]:
        """Whether any process was interrupted, and whether a checkpoint is due by the first one's clock."""
        is_due = time.monotonic() - self._saved_at > 60 * self.settings.checkpoint_minutes
        wishes = [float(self._signals.came), float(is_due and self.accelerator.is_main_process)]
        interrupted, due = sums(self.accelerator, wishes)
        return interrupted > 0, due > 0

    # ------------------------------------------------------------------------------------------------ state

    def _save(self) -> str:
        self._saved_at = time.monotonic()
        state = snapshot.take(self._parts)
        self._check_finite(state)
        if not self.accelerator.is_main_process:
            return str(self.run.checkpoints)
        state["recipe"] = self.run.recipe_hash
        state["progress"] = {
            name: None if value == math.inf else value for name, value in asdict(self.progress).items()
        }
        try:
            return str(save_checkpoint(self.run.checkpoints, self.progress.step, state))
        except G2Error as error:
            raise G2Error(f"{error}; {self._last_good()}; then --resume goes on") from None

    def _restore(self) -> None:
        state, problems = latest_checkpoint(self.run.checkpoints, resume_state.most_bytes(self.task.model))
        for problem in problems:
            self.observer.on_message(f"{problem}; going back to the one before")
        saved = None if state is None else resume_state.progress_of(state, self.run, self.settings)
        step = -1 if saved is None else saved.step
        if of_first(self.accelerator, [step]) != [step]:
            raise G2Error(f"not all processes see the same checkpoints; put {self.run.path} on a disk that all share")
        if state is None or saved is None:
            self.observer.on_message("there is no checkpoint yet: starting from the beginning")
            return
        self.progress = saved
        try:
            resume_state.check_unchanged(state, self.run, self.task.facts)
            is_exact = snapshot.put_back(self._parts, state, seed=self.settings.seed, step=step)
        except G2Error:
            raise
        except resume_state.STRANGE as error:
            raise resume_state.stranger(self.run, error) from error
        if not is_exact:
            before, now = len(state["processes"]), self.accelerator.num_processes
            self.observer.on_message(f"{before} process(es) before, {now} now: noise and dropout are drawn anew")
        self.observer.on_message(f"going on from step {self.progress.step}")
        self._replace_lost_weights()

    def _replace_lost_weights(self) -> None:
        """If the file of the best weights is gone or broken, those of the checkpoint take their place."""
        if of_first(self.accelerator, [self.run.has_weights()])[0]:
            return
        before, stale = self.progress.best, self.progress.stale
        self.progress.best = self.progress.best_loss = math.inf
        with self._evaluation_weights():
            self._keep_if_best(self._evaluate())
        self.progress.stale = stale
        self.observer.on_message(
            f"{self.run.model_file} was gone or broken: it now holds the weights of the last checkpoint, with a "
            f"validation criterion of {self.progress.best:.4f} where the best had {before:.4f}"
        )

    def _check_finite(self, state: Any) -> None:
        if name := snapshot.not_finite(state):
            raise G2Error(self._diverged(f"{name} is no longer finite"))

    def _diverged(self, what: str) -> str:
        advice = "Start anew under another --out with a lower train.optimizer.lr or with train.clip"
        if self.progress.epoch > 0:
            advice += f"; train.finetune_from={self.run.path} takes up the best weights"
        return f"{what} after step {self.progress.step}; {self._last_good()}. {advice}"

    def _last_good(self) -> str:
        checkpoints = sorted(self.run.checkpoints.glob("step-*.json"))
        return f"the last good state is {checkpoints[-1]}" if checkpoints else "there is no checkpoint yet"
