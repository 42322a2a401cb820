"""The ways to train: SGD that turns to averaging when validation stalls (NT-ASGD), AdamW over one cycle, AdaDelta."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from g2lstm.errors import G2Error
from g2lstm.recipes.sections import AdaDelta, AdamW, NtAsgd

State = dict[str, Any]  # tensors, numbers, strings, lists and dicts of them: nothing that needs pickle
_REMEMBERED: dict[type, set[str]] = {  # of each parameter
    torch.optim.SGD: set(),
    torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"},
    torch.optim.Adadelta: {"step", "square_avg", "acc_delta"},
}


class NonMonotoneTrigger:
    """Fires when a validation loss is above the lowest of all earlier ones but the last `window`.

    Args:
        window: n, how many checks a new low may take; the AWD-LSTM has 5.
    """

    def __init__(self, window: int = 5) -> None:
        if window < 0:
            raise G2Error(f"window must be at least 0 checks, got {window}; AWD-LSTM uses 5")
        self.window = window
        self.losses: list[float] = []

    def check(self, loss: float) -> bool:
        """Whether this loss fires the trigger; then it is one of the earlier ones."""
        if math.isnan(loss):
            raise G2Error("the validation loss is not a number; resume from an earlier checkpoint, or lower the rate")
        earlier = self.losses[: len(self.losses) - self.window] if len(self.losses) > self.window else []
        self.losses.append(float(loss))
        return bool(earlier) and loss > min(earlier)

    def state_dict(self) -> State:
        """The losses so far."""
        return {"losses": list(self.losses)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up where `state_dict` was taken."""
        self.losses = [float(loss) for loss in state["losses"]]


class WeightAverage:
    """The plain mean of the weights after each update since it began: Polyak averaging, the "A" of ASGD.

    `torch.optim.ASGD` with t0=0, lambd=0 keeps the same mean but for its first update, which it forgets, and it applies
    each learning rate one update late, which is wrong for rates that change with the length of a batch. So the updates
    are left to plain SGD and only the mean is kept here.

    Args:
        parameters: of the model.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.updates = 0
        self.means: list[Tensor] = []

    @torch.no_grad()
    def update(self) -> None:
        """Takes the present weights into the mean; to be called after each update."""
        self.updates += 1
        if not self.means:
            self.means = [p.detach().clone() for p in self.parameters]
            return
        for mean, p in zip(self.means, self.parameters, strict=True):
            mean.lerp_(p, 1 / self.updates)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """The model has the mean for weights; at the end, also by an exception, it has its own again, to the bit."""
        if not self.means:
            yield
            return
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for mean, p in zip(self.means, self.parameters, strict=True):
            own = p.clone()
            p.copy_(mean)
            mean.copy_(own)

    def state_dict(self) -> State:
        """The mean of each parameter, in their order, and over how many updates it is."""
        return {"updates": self.updates, "means": list(self.means)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up where `state_dict` was taken."""
        means = list(state["means"])
        if means and [m.shape for m in means] != [p.shape for p in self.parameters]:
            raise G2Error(
                f"the saved average has {len(means)} tensors that do not fit the model's {len(self.parameters)} "
                "parameters; resume with the recipe that the checkpoint was written with"
            )
        self.updates = int(state["updates"])
        self.means = [m.to(p.device, p.dtype, copy=True) for m, p in zip(means, self.parameters, strict=bool(means))]


class NonMonotoneAveraging:
    """What makes SGD NT-ASGD: from the check that fires the trigger, the weights' mean is kept and evaluated.

    Args:
        parameters: of the model.
        window: n of the trigger.
        is_averaging: average from the start, as in the finetune phase.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], window: int = 5, *, is_averaging: bool = False) -> None:
        self.trigger = NonMonotoneTrigger(window)
        self.average = WeightAverage(parameters)
        self.is_averaging = is_averaging

    def after_update(self) -> None:
        """To be called after each update of the optimiser."""
        if self.is_averaging:
            self.average.update()

    def check(self, loss: float) -> bool:
        """Notes a validation loss; whether the trigger fired. From then on the weights are averaged."""
        fired = self.trigger.check(loss)
        self.is_averaging = self.is_averaging or fired
        return fired

    @contextmanager
    def evaluation_weights(self) -> Iterator[None]:
        """The weights to evaluate and to save as the model: the mean if there is one, else the present ones."""
        with self.average.swapped_in():
            yield

    def state_dict(self) -> State:
        """Trigger, mean, and whether averaging goes on."""
        return {
            "is_averaging": int(self.is_averaging),
            "trigger": self.trigger.state_dict(),
            "average": self.average.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up where `state_dict` was taken."""
        self.is_averaging = bool(state["is_averaging"])
        self.trigger.load_state_dict(state["trigger"])
        self.average.load_state_dict(state["average"])


def sgd(
    parameters: Iterable[nn.Parameter], learning_rate: float = 30.0, weight_decay: float = 1.2e-6
) -> torch.optim.SGD:
    """The AWD-LSTM's optimiser: plain SGD, no momentum."""
    return torch.optim.SGD(list(parameters), lr=learning_rate, weight_decay=weight_decay, fused=True)


def adamw(
    parameters: Iterable[nn.Parameter],
    learning_rate: float = 3e-3,
    weight_decay: float = 0.01,
    betas: tuple[float, float] = (0.9, 0.99),
    epsilon: float = 1e-8,
) -> torch.optim.AdamW:
    """AdamW that decays matrices and leaves biases alone."""
    every = list(parameters)
    groups = [
        {"params": [p for p in every if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in every if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=learning_rate, betas=betas, eps=epsilon, fused=True)


def build_optimizer(
    settings: AdamW | NtAsgd | AdaDelta, parameters: list[nn.Parameter]
) -> tuple[torch.optim.Optimizer, NonMonotoneAveraging | None]:
    """The optimiser that a recipe names, and the averaging beside it if it has that."""
    match settings:
        case AdamW():
            betas = (settings.beta1, settings.beta2)
            return adamw(parameters, settings.lr, settings.weight_decay, betas, settings.epsilon), None
        case AdaDelta():
            decay = settings.weight_decay
            return torch.optim.Adadelta(parameters, settings.lr, settings.rho, settings.epsilon, decay), None
        case NtAsgd():
            averaging = NonMonotoneAveraging(parameters, settings.window, is_averaging=settings.start == "asgd")
            return sgd(parameters, settings.lr, settings.weight_decay), averaging


def one_cycle(progress: float, warm_up: float = 0.1, initial: float = 0.04, final: float = 0.0) -> float:
    """The factor of the peak learning rate: a line from `initial` up to 1, then half a cosine down to `final`.

    Args:
        progress: the part of the budget that is used, steps or minutes, in [0, 1]; what lies beyond counts as the end.
        warm_up: the part of the budget that the rise takes, in [0, 1).
        initial: factor at 0.
        final: factor at 1.
    """
    if not 0 <= warm_up < 1:
        raise G2Error(f"warm_up is a part of the budget and must lie in [0, 1), got {warm_up}; try 0.1")
    progress = min(max(progress, 0.0), 1.0)
    if progress < warm_up:
        return initial + (1 - initial) * progress / warm_up
    return final + (1 - final) * (1 + math.cos(math.pi * (progress - warm_up) / (1 - warm_up))) / 2


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Sets the rate of all parameters for the next update."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def optimizer_state(optimizer: torch.optim.Optimizer) -> State:
    """What an optimiser remembers, with nothing that needs pickle: its rates, and tensors and numbers by parameter."""
    state = optimizer.state_dict()
    return {
        "learning_rates": [float(group["lr"]) for group in state["param_groups"]],
        "parameters": {
            str(index): {name: value for name, value in entry.items() if value is not None}
            for index, entry in state["state"].items()
        },
    }


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Puts back what `optimizer_state` took, into an optimiser built with the same arguments."""
    full = optimizer.state_dict()
    rates, groups = state["learning_rates"], full["param_groups"]
    known = {str(index) for group in groups for index in group["params"]}
    if len(rates) != len(groups) or not set(state["parameters"]) <= known:
        raise G2Error(
            f"the saved optimiser has {len(rates)} groups and state for {len(state['parameters'])} parameters, "
            f"this one {len(groups)} groups of {len(known)}; resume with the recipe that wrote the checkpoint"
        )
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = float(rate)
    _check_memories(optimizer, state["parameters"])
    entries = {int(index): dict(entry) for index, entry in state["parameters"].items()}
    optimizer.load_state_dict({"state": entries, "param_groups": groups})


def _check_memories(optimizer: torch.optim.Optimizer, memories: Mapping[str, Any]) -> None:
    """Raises unless each is of the parameter it belongs to; torch would notice in the midst of an update, or never."""
    inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
    names = _REMEMBERED.get(type(inner))
    parameters = [parameter for group in inner.param_groups for parameter in group["params"]]
    for index, memory in memories.items():
        shape = parameters[int(index)].shape
        shapes = {name: torch.Size() if name == "step" else shape for name in memory}
        fits = all(isinstance(value, Tensor) and value.shape == shapes[name] for name, value in memory.items())
        if (names is not None and memory.keys() != names) or not fits:
            raise G2Error(
                f"what the saved optimiser remembers of parameter {index} does not fit: {sorted(memory)}; "
                "resume with the recipe that wrote the checkpoint"
            )
