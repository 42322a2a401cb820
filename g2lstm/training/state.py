"""Everything that resuming needs, taken from a training run and put back into one that may have more processes."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from g2lstm.errors import G2Error
from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.task import Learner
from g2lstm.training.optim import NonMonotoneAveraging, load_optimizer_state, optimizer_state
from g2lstm.training.processes import gathered, noise_seed


@dataclass
class TrainingState:
    """The state of a training run, apart from its progress."""

    learner: Learner
    optimizer: torch.optim.Optimizer
    averaging: NonMonotoneAveraging
    accelerator: Accelerator

    def take(self) -> dict[str, Any]:
        """The state of all processes; all of them must call this."""
        scaler = self.accelerator.scaler
        own = {
            "task": self.learner.state_dict(),
            "random": torch.get_rng_state(),
            "random_device": _device_random(self.accelerator.device),
        }
        return {
            "model": dict(self.learner.model.state_dict()),
            "optimizer": optimizer_state(self.optimizer),
            "averaging": self.averaging.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
            "facts": self.learner.facts,
            "processes": gathered(self.accelerator, own),
        }

    def put_back(self, state: Mapping[str, Any], *, seed: int, step: int) -> bool:
        """Continues from a state, and says whether noise and dropout continue too.

        With a different number of processes they don't: each process begins a new stream, at `step`.
        """
        self.learner.model.load_state_dict(state["model"])
        load_optimizer_state(self.optimizer, state["optimizer"])
        if state["averaging"] is not None:  # older versions saved none for optimisers that do not average
            self.averaging.load_state_dict(state["averaging"])
        if self.accelerator.scaler is not None and state.get("scaler"):
            self.accelerator.scaler.load_state_dict(state["scaler"])
        processes: Sequence[Mapping[str, Any]] = state["processes"]
        self.learner.load_state_dict([one["task"] for one in processes])
        rank = self.accelerator.process_index
        if len(processes) != self.accelerator.num_processes:
            torch.manual_seed(noise_seed(seed, rank, step))
            return False
        torch.set_rng_state(processes[rank]["random"])
        _set_device_random(self.accelerator.device, processes[rank]["random_device"])
        return True


def max_checkpoint_bytes(model: nn.Module) -> int:
    """More than a checkpoint of this model can take: optimisers and averages keep a few numbers per weight."""
    return 2**30 + 16 * sum(weights.nbytes for weights in model.state_dict().values())


def check_unchanged(state: Mapping[str, Any], run: RunDirectory, facts: Mapping[str, str]) -> None:
    """Raises if the data or the recipe has changed since the state was saved."""
    before = state.get("facts", {})  # older versions did not save all of them
    if changed := [name for name, value in facts.items() if before.get(name, value) != value]:
        raise G2Error(
            f"the data of {run.path} has changed since its last checkpoint ({', '.join(changed)}); restore the old "
            "files, or start a new run with another --out"
        )
    if state.get("recipe", run.recipe_hash) != run.recipe_hash:
        raise G2Error(
            f"{run.recipe_file} has changed since its last checkpoint; restore the old one, or start a new run with "
            "another --out"
        )


@contextmanager
def foreign_state_refused(run: RunDirectory) -> Iterator[None]:
    """Turns whatever goes wrong when a state does not fit this training run into a clear error."""
    try:
        yield
    except G2Error:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        raise G2Error(
            f"the newest checkpoint in {run.checkpoints} is intact, but belongs to another training run "
            f"({error!r:.200}); put the right one back, or start a new run with another --out"
        ) from error


def not_finite(state: Any, name: str = "") -> str | None:
    """The name of a tensor that holds an infinity or NaN, or None if there is none."""
    if isinstance(state, Tensor):
        return name if state.is_floating_point() and not state.isfinite().all() else None
    items: list[tuple[Any, Any]] = []
    if isinstance(state, Mapping):
        items = list(state.items())
    elif isinstance(state, list | tuple):
        items = list(enumerate(state))
    found = (not_finite(value, f"{name}.{key}" if name else str(key)) for key, value in items)
    return next((one for one in found if one is not None), None)


def _device_random(device: torch.device) -> list[Tensor]:
    return [] if device.type == "cpu" else [torch.get_device_module(device).get_rng_state()]


def _set_device_random(device: torch.device, states: Sequence[Tensor]) -> None:
    if device.type != "cpu" and states:  # a run that began on another device has none
        torch.get_device_module(device).set_rng_state(states[0])
