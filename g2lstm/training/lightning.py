"""A callback for Lightning: converts at the start, logs how binary the gates are, freezes at the end."""

from contextlib import ExitStack
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from g2lstm.nn.convert import convert_, freeze_
from g2lstm.nn.record import GateRecord, record_gates
from g2lstm.nn.schedule import GateSchedule


class LightningCallback(Callback):  # type: ignore[misc]  # of a library that is not always there
    """Trains the recurrent layers of a `LightningModule` with our gates.

    Args:
        every: training batches between two measurements of the gates, logged as "gates/saturation": the share of
            sampled gates below 0.1 or above 0.9. None for no measurements.
        freeze: whether to turn the layers back into torch's own when training ends.
        schedule: gates that change over the course of training.
        **options: arguments of `g2lstm.convert_`.

    Examples:
        >>> trainer = lightning.Trainer(callbacks=[g2lstm.LightningCallback(noise_rate=0.2)])
        >>> binary = g2lstm.LightningCallback(schedule=g2lstm.GateSchedule("binary"), freeze=False)
    """

    def __init__(
        self, *, every: int | None = 50, freeze: bool = True, schedule: GateSchedule | None = None, **options: Any
    ) -> None:
        if schedule is not None:
            schedule.check_frozen(freeze)
        self.every, self.freeze, self.schedule, self.options = every, freeze, schedule, options
        self._block = ExitStack()
        self._record: GateRecord | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Converts before the optimisers are made."""
        if stage == "fit":
            convert_(pl_module, **self.options)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Sets the gates, and begins a measurement when one is due."""
        if self.schedule is not None:
            self.schedule.apply_(pl_module, min(trainer.global_step / trainer.estimated_stepping_batches, 1.0))
        if self.every is not None and batch_idx % self.every == 0:
            self._record = self._block.enter_context(record_gates(pl_module))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Logs what was measured."""
        self._block.close()
        if self._record is not None:
            pl_module.log("gates/saturation", self._record.saturation)
        self._record = None

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Ends a measurement that an error interrupted."""
        self._block.close()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leaves torch's own layers, for deployment."""
        if self.freeze:
            freeze_(pl_module)
