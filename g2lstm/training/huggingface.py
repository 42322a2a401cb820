"""A callback for Hugging Face's `Trainer`: converts at the start, logs how binary the gates are, freezes at the end."""

from contextlib import ExitStack
from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from g2lstm.nn.convert import convert_, freeze_
from g2lstm.nn.record import GateRecord, record_gates
from g2lstm.nn.schedule import GateSchedule


class HuggingFaceCallback(TrainerCallback):  # type: ignore[misc]  # of a library that is not always there
    """Trains the recurrent layers of a model with our gates.

    Args:
        every: updates between two measurements of the gates, logged as "gates/saturation": the share of sampled gates
            below 0.1 or above 0.9. None for no measurements.
        freeze: whether to turn the layers back into torch's own when training ends.
        schedule: gates that change over the course of training.
        **options: arguments of `g2lstm.convert_`.

    Examples:
        >>> trainer = transformers.Trainer(model, callbacks=[g2lstm.HuggingFaceCallback(noise_rate=0.2)], ...)
    """

    def __init__(
        self, *, every: int | None = 50, freeze: bool = True, schedule: GateSchedule | None = None, **options: Any
    ) -> None:
        if schedule is not None:
            schedule.check_frozen(freeze)
        self.every, self.freeze, self.schedule, self.options = every, freeze, schedule, options
        self._block = ExitStack()
        self._record: GateRecord | None = None
        self._saturation: float | None = None

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: nn.Module, **others: Any
    ) -> None:
        """Converts when the trainer is made."""
        convert_(model, **self.options)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: nn.Module, **others: Any
    ) -> None:
        """Sets the gates, and begins a measurement when one is due."""
        if self.schedule is not None:
            self.schedule.apply_(model, min(state.global_step / state.max_steps, 1.0))
        if self.every is not None and state.global_step % self.every == 0:
            self._block.close()
            self._record = self._block.enter_context(record_gates(model))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """Ends the measurement."""
        self._block.close()
        if self._record is not None:
            self._saturation, self._record = self._record.saturation, None

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, Any], **others: Any
    ) -> None:
        """Adds the last measurement to what the trainer logs."""
        if self._saturation is not None:
            logs["gates/saturation"] = state.log_history[-1]["gates/saturation"] = self._saturation

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: nn.Module, **others: Any
    ) -> None:
        """Leaves torch's own layers, for deployment."""
        self._block.close()
        if self.freeze:
            freeze_(model)
