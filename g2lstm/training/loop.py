"""The training loop: one for every task, optimiser and device; it can stop after any update and resume later."""

import math
import time
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator

from g2lstm.errors import G2Error
from g2lstm.recipes.sections import NtAsgd, TrainSection
from g2lstm.runs.directory import RunDirectory
from g2lstm.runs.records import changes, machine
from g2lstm.tasks.task import Learner, Validation, shown_perplexity
from g2lstm.training.checkpoint import latest_checkpoint, not_finite, save_checkpoint, write_state
from g2lstm.training.environment import Interrupted, gathered, noise_seed, of_first, signals_noticed, sums
from g2lstm.training.optim import build_optimizer, load_optimizer_state, optimizer_state
from g2lstm.training.progress import (
    Metrics,
    Observer,
    Silent,
    TrainingProgress,
    Turn,
    gate_schedule,
    learning_rate,
)

_DIVERGED = 0.5  # nats per token that validation is worse than before training
MAX_SKIPPED = 10  # updates in a row before training gives up
_STOPPING = "stopping after saving the state; press Ctrl-C again to stop at once"


class Trainer:
    """Trains by a recipe's `train` section; checkpoints, metrics and the best weights go into a run directory.

    With a `turn`, it stops after a certain epoch, and the turn rather than the clock says how many epochs there are.
    """

    def __init__(
        self,
        learner: Learner,
        settings: TrainSection,
        run: RunDirectory,
        accelerator: Accelerator,
        observer: Observer,
        turn: Turn | None = None,
    ) -> None:
        self.turn = turn
        self.learner, self.settings, self.run = learner, settings, run
        self.accelerator, self.observer = accelerator, observer
        self.progress = TrainingProgress(epochs=None if settings.minutes else settings.epochs)
        parameters = list(learner.model.parameters())
        optimizer, self.averaging = build_optimizer(settings.optimizer, parameters, settings.average)
        self.module, self.optimizer = accelerator.prepare(learner.module, optimizer)
        self.schedule = gate_schedule(learner.recipe.model, settings)
        self._is_plain = False

    def train(self, *, resume: bool = False) -> TrainingProgress:
        """Trains to the end, from the last checkpoint if `resume`; raises `Interrupted` after saving if interrupted."""
        is_main = self.accelerator.is_main_process
        if is_main:
            _ = self.run.recipe_hash  # reads recipe.toml now rather than later, when someone may have edited it
        self._set_gates()
        if resume:
            self._restore()
        if self.progress.finished:
            return self.progress
        if self.turn is not None:
            self.progress.epochs = float(self.turn.epochs)
        files = Metrics(self.run, self.progress.step) if is_main else nullcontext(Silent())
        with signals_noticed(partial(self.observer.on_message, _STOPPING)) as self._signal, files as metrics:
            self._listeners: list[Observer] = [metrics, self.observer]
            self._saved_at, self._clock = time.monotonic(), time.monotonic() - self.progress.seconds
            if self.progress.best is None:
                for remark in self.learner.remarks:
                    self.observer.on_message(remark)
                self._validate()
                self._save()
            while self._share() < 1:
                batch = self.learner.next_batch()
                if batch is None:
                    self._end_epoch()
                    if self.turn is not None and self.turn.until <= self.progress.epoch < self.turn.epochs:
                        return self.progress
                    continue
                self._update(batch)
                self._heed_requests()
            if self.learner.epoch_progress >= 1:
                self._end_epoch()
            self.progress.epochs = self.progress.epoch + self.learner.epoch_progress
            if self.learner.epoch_progress > 0:  # a budget in minutes may end within an epoch
                self._validate()
            if count := self.averaging.finish():
                self.observer.on_message(f"the mean of the weights of the last {count} validations:")
                self._validate()
            self._check_learnt()
            self.progress.finished = True
            self._save()
        return self.progress

    def _check_learnt(self) -> None:
        """Raises if nothing was learnt or the model has only become worse; a finetuned one may stay as it was."""
        if self.progress.step == 0:
            raise G2Error("no time was left for an update; start a new run with more train.minutes and another --out")
        first, last, best = self.progress.first_loss, self.progress.last_loss, self.progress.best_loss
        if self.settings.finetune_from is not None or first is None or last is None:
            return
        if best == first and last > first + _DIVERGED:
            raise self._diverged(f"training has diverged: validation loss was {first:.2f} at first and is {last:.2f}")

    def _update(self, batch: Any) -> None:
        self.learner.model.train()
        self._set_gates()
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
        values = {"loss": nats, "perplexity": shown_perplexity(nats), "learning_rate": rate}
        for listener in self._listeners:
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
            raise self._diverged(f"{several}, and {what}")

    def _end_epoch(self) -> None:
        self.progress.epoch += 1
        self.learner.start_epoch()
        has_fired = self._validate()
        optimizer, stale, end = self.settings.optimizer, self.progress.stale, None
        if has_fired and isinstance(optimizer, NtAsgd) and optimizer.start == "asgd":
            end = "validation has stopped improving: finetuning ends"
        elif self.settings.patience is not None and stale >= self.settings.patience:
            end = f"{stale} validation{'' if stale == 1 else 's'} without improvement: training ends"
        if end is not None:
            self.observer.on_message(end)
            self.progress.epochs = float(self.progress.epoch)
        if self._share() < 1:  # otherwise the last checkpoint follows at once
            self._save()

    def _validate(self) -> bool:
        """Evaluates, keeps the weights if they are the best yet, and says whether NT-ASGD's trigger fired."""
        start, was_averaging = time.monotonic(), self.averaging.is_averaging
        validation, is_best = self._evaluate()
        has_fired = self.progress.step > 0 and not self._is_plain and self.averaging.check(validation.criterion)
        if has_fired and not was_averaging:
            self.observer.on_message("validation has stopped improving: averaging the weights from here on")
        (self.progress.validation_seconds,) = of_first(self.accelerator, time.monotonic() - start)
        self.progress.validating_seconds += self.progress.validation_seconds
        self._note_time()
        for listener in self._listeners:
            listener.on_validation(self.progress, validation, is_best)
        return has_fired

    def _evaluate(self) -> tuple[Validation, bool]:
        """Evaluates the model; writes its weights, and says so, if they are the best yet."""
        progress = self.progress
        with self.averaging.evaluation_weights():
            validation = self.learner.validate()
            loss, criterion = of_first(self.accelerator, validation.loss, validation.criterion)
            if not math.isfinite(loss):
                raise self._diverged(f"the validation loss became {loss}")
            validation = validation._replace(loss=loss, criterion=criterion)
            progress.last_loss = loss
            if progress.step == 0:
                progress.first_loss = loss
            if not progress.is_improved_by(criterion, loss, is_plain=self._is_plain):
                progress.stale += not self._is_plain  # patience is for the recipe's own gates
                return validation, False
            progress.best, progress.best_loss, progress.stale = criterion, loss, 0
            progress.best_scores, progress.best_is_plain = dict(validation.scores), self._is_plain
            self._check_finite(self.learner.model.state_dict())
            if self.accelerator.is_main_process:
                self.run.save_weights(self.learner.model, {**self.learner.facts, "steps": str(progress.step)})
            return validation, True

    def _share(self) -> float:
        return self.progress.share(self.settings, self.learner.epoch_progress)

    def _set_gates(self) -> None:
        if self.schedule is not None:
            was_plain = self._is_plain
            self._is_plain = not self.schedule.apply_(self.learner.model, self._share())
            if was_plain and not self._is_plain:
                self.observer.on_message(f"{self.schedule.method} gates from here on, step {self.progress.step}")

    def _note_time(self) -> None:
        self.progress.seconds = time.monotonic() - self._clock
        if self.progress.epochs is None:  # the clock still decides, so all processes need the same time
            (self.progress.seconds,) = of_first(self.accelerator, self.progress.seconds)

    def _heed_requests(self) -> None:
        """Stops if any process was interrupted; saves if a checkpoint is due by the first process's clock."""
        is_due = time.monotonic() - self._saved_at > 60 * self.settings.checkpoint_minutes
        own = [float(self._signal.is_set()), float(is_due and self.accelerator.is_main_process)]
        interrupted, due = sums(self.accelerator, own)
        if interrupted:
            raise Interrupted(f"training was interrupted; its state is saved in {self._save()}")
        if due:
            self._save()

    # ------------------------------------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Everything that resuming needs, from all processes; all of them must call this."""
        scaler, device = self.accelerator.scaler, self.accelerator.device
        own = {
            "task": self.learner.state_dict(),
            "random": torch.get_rng_state(),
            "random_device": [] if device.type == "cpu" else [torch.get_device_module(device).get_rng_state()],
            "machine": machine(),
        }
        return {
            "recipe": self.run.recipe_hash if self.accelerator.is_main_process else None,
            "progress": self.progress.model_dump(),
            "model": dict(self.learner.model.state_dict()),
            "optimizer": optimizer_state(self.optimizer),
            "averaging": self.averaging.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
            "facts": self.learner.facts,
            "processes": gathered(self.accelerator, own),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from what `state_dict` returned, maybe with a different number of processes."""
        self.progress = TrainingProgress.model_validate(state["progress"])
        if self.progress.epochs is None and self.settings.minutes is None:
            raise ValueError("it does not say how many epochs to train for")
        self._check_unchanged(state)
        self.learner.model.load_state_dict(state["model"])
        load_optimizer_state(self.optimizer, state["optimizer"])
        if state["averaging"] is not None:  # older versions saved none for optimisers that do not average
            self.averaging.load_state_dict(state["averaging"])
        if self.accelerator.scaler is not None and state.get("scaler"):
            self.accelerator.scaler.load_state_dict(state["scaler"])
        saved, device, rank = state["processes"], self.accelerator.device, self.accelerator.process_index
        self.learner.load_state_dict([one["task"] for one in saved])
        self._set_gates()
        if len(saved) != (now := self.accelerator.num_processes):
            torch.manual_seed(noise_seed(self.settings.seed, rank, self.progress.step))
            self.observer.on_message(f"{len(saved)} process(es) before, {now} now: noise and dropout start new streams")
            return
        if found := changes(saved[rank].get("machine", {})):  # older versions did not save it
            self.observer.on_message(f"{', '.join(found)}: sums round differently, so this resume may not be exact")
        torch.set_rng_state(saved[rank]["random"])
        if device.type != "cpu" and saved[rank]["random_device"]:  # a run that began on another device has none
            torch.get_device_module(device).set_rng_state(saved[rank]["random_device"][0])

    def _check_unchanged(self, state: dict[str, Any]) -> None:
        """Raises if the data or the recipe has changed since the state was saved."""
        before, recipe = state.get("facts", {}), self.run.recipe_hash  # older versions did not save all of them
        if changed := [name for name, value in self.learner.facts.items() if before.get(name, value) != value]:
            what = f"the data of {self.run.path} has changed since its last checkpoint ({', '.join(changed)})"
        elif state.get("recipe", recipe) != recipe:
            what = f"{self.run.recipe_file} has changed since its last checkpoint"
        else:
            return
        raise G2Error(f"{what}; put back what was there before, or start a new run with another --out")

    def _save(self) -> str:
        self._saved_at = time.monotonic()
        state = self.state_dict()
        self._check_finite(state)
        if not self.accelerator.is_main_process:
            return str(self.run.checkpoints)
        try:
            return str(save_checkpoint(self.run.checkpoints, self.progress.step, state))
        except G2Error as error:
            raise G2Error(f"{error}; {self._last_good()}; then continue with --resume") from None

    def _restore(self) -> None:
        state, problems = latest_checkpoint(self.run.checkpoints)
        for problem in problems:
            self.observer.on_message(f"{problem}; using the checkpoint before it")
        try:
            if state is not None:
                self.load_state_dict(state)
        except G2Error:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
            raise G2Error(
                f"the newest checkpoint in {self.run.checkpoints} is intact, but belongs to another training run "
                f"({error!r:.200}); put the right one back, or start a new run with another --out"
            ) from error
        step = -1 if state is None else self.progress.step
        if of_first(self.accelerator, step) != [step]:
            raise G2Error(
                f"the processes see different checkpoints; put {self.run.path} on a disk that all of them share"
            )
        if state is None:
            self.observer.on_message("there is no checkpoint yet: starting from the beginning")
            return
        if self.turn is None or self.turn.until == 1:  # after that, it has only waited for its turn
            self.observer.on_message(f"continuing from step {step}")
        if not of_first(self.accelerator, self.run.has_weights())[0]:
            self.progress.best, stale = None, self.progress.stale
            self._evaluate()
            self.progress.stale = stale
            self.observer.on_message(
                f"{self.run.model_file} was missing or damaged: it now holds the last checkpoint's weights"
            )

    def _check_finite(self, state: dict[str, Any]) -> None:
        if name := not_finite(state):
            raise self._diverged(f"{name} is no longer finite")

    def _diverged(self, what: str) -> G2Error:
        advice = "Start a new run with another --out and a lower train.optimizer.lr, or with train.clip"
        if self.progress.epoch > 0:
            advice += f"; train.finetune_from={self.run.path} starts from the best weights"
        return G2Error(f"{what} after step {self.progress.step}; {self._last_good()}. {advice}")

    def _last_good(self) -> str:
        checkpoints = sorted(self.run.checkpoints.glob("step-*.json"))
        return f"the last good state is {checkpoints[-1]}" if checkpoints else "there is no checkpoint yet"
