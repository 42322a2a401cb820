"""Everything that resuming needs: taken from a training, and put back into one of as many or other many processes."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor

from g2lstm.tasks.task import Task
from g2lstm.training import optim
from g2lstm.training.processes import gathered, noise_seed


class Parts(NamedTuple):
    """What has a state, besides the progress."""

    task: Task
    optimizer: torch.optim.Optimizer
    averaging: optim.NonMonotoneAveraging | None
    accelerator: Accelerator


def take(parts: Parts) -> dict[str, Any]:
    """The state of all processes; to be called by all of them."""
    own = {
        "task": parts.task.state_dict(),
        "random": torch.get_rng_state(),
        "random_device": _device_random(parts.accelerator.device),
    }
    return {
        "model": dict(parts.task.model.state_dict()),
        "optimizer": optim.optimizer_state(parts.optimizer),
        "averaging": None if parts.averaging is None else parts.averaging.state_dict(),
        "scaler": None if parts.accelerator.scaler is None else parts.accelerator.scaler.state_dict(),
        "facts": parts.task.facts,
        "processes": gathered(parts.accelerator, own),
    }


def put_back(parts: Parts, state: Mapping[str, Any], *, seed: int, step: int) -> bool:
    """Goes on from a state; whether noise and dropout do so too.

    With another number of processes they do not: each begins a new stream. All else is kept.

    Args:
        parts: of this training.
        state: from `take`.
        seed: of the recipe.
        step: of the state.
    """
    parts.task.model.load_state_dict(state["model"])
    optim.load_optimizer_state(parts.optimizer, state["optimizer"])
    if parts.averaging is not None:
        parts.averaging.load_state_dict(state["averaging"])
    if parts.accelerator.scaler is not None and state.get("scaler"):
        parts.accelerator.scaler.load_state_dict(state["scaler"])
    processes: Sequence[Mapping[str, Any]] = state["processes"]
    parts.task.load_state_dict([one["task"] for one in processes])
    rank = parts.accelerator.process_index
    if len(processes) != parts.accelerator.num_processes:
        torch.manual_seed(noise_seed(seed, rank, step))
        return False
    torch.set_rng_state(processes[rank]["random"])
    _set_device_random(parts.accelerator.device, processes[rank]["random_device"])
    return True


def not_finite(state: Any, name: str = "") -> str | None:
    """The name of a tensor with a value that is infinite or not a number, if there is one."""
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
