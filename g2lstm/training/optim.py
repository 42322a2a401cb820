"""The optimisers: NT-ASGD (SGD that averages its weights once validation stalls), AdamW and AdaDelta; and averages."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_swa_multi_avg_fn

from g2lstm.recipes.sections import AdaDelta, AdamW, NtAsgd

State = dict[str, Any]  # tensors, numbers, strings, lists and dicts: nothing that needs pickle
_REMEMBERED: dict[type, tuple[str, ...]] = {  # for each parameter
    torch.optim.SGD: (),
    torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"),
    torch.optim.Adadelta: ("step", "square_avg", "acc_delta"),
}


class NonMonotoneAveraging:
    """Turns SGD into NT-ASGD: once validation stops improving, the mean of the weights is kept and evaluated.

    The mean is over the weights after each update since averaging began: Polyak averaging, the "A" of ASGD.
    `torch.optim.ASGD` with t0=0 and lambd=0 keeps the same mean except that it forgets the first update. But it applies
    each learning rate one update late, which is wrong when the rate depends on the length of the batch. So plain SGD
    makes the updates, and this class only keeps the mean.

    Args:
        parameters: of the model.
        window: how many validations may pass without a new low (AWD-LSTM uses 5); None never to average.
        is_averaging: average from the start, as in the finetuning phase.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], window: int | None = 5, *, is_averaging: bool = False
    ) -> None:
        self.parameters = list(parameters)
        self.window = window
        self.is_averaging = is_averaging
        self.losses: list[float] = []
        self.updates = 0  # in the mean
        self.means: list[Tensor] = []  # in the order of the parameters; empty before the first update
        self._average = get_swa_multi_avg_fn()

    def after_update(self) -> None:
        """Adds the current weights to the mean; call it after each update."""
        if not self.is_averaging:
            return
        if self.means:
            self._average(self.means, self.parameters, self.updates)
        else:
            self.means = [p.detach().clone() for p in self.parameters]
        self.updates += 1

    def finish(self) -> int:
        """Called after the last validation; how many weights there are to average now."""
        return 0

    def check(self, loss: float) -> bool:
        """Records a validation loss, and begins averaging if it exceeds the lowest of all but the last `window` losses.

        Returns whether it does; then the finetuning phase ends.
        """
        if self.window is None:
            return False
        earlier = self.losses[: max(len(self.losses) - self.window, 0)]
        self.losses.append(float(loss))
        fired = bool(earlier) and loss > min(earlier)
        self.is_averaging = self.is_averaging or fired
        return fired

    @contextmanager
    def evaluation_weights(self) -> Iterator[None]:
        """Gives the model the weights to evaluate and save: the mean if there is one, otherwise the current ones.

        Afterwards the model has exactly its own weights again, even if an exception was raised.
        """
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for mean, p in zip(self.means, self.parameters, strict=bool(self.means)):
            own = p.clone()
            p.copy_(mean)
            mean.copy_(own)

    def state_dict(self) -> State:
        """The losses, the mean, and whether averaging has begun."""
        return {
            "is_averaging": int(self.is_averaging),
            "trigger": {"losses": list(self.losses)},
            "average": {"updates": self.updates, "means": list(self.means)},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state_dict` returned; raises an exception of any kind if it does not fit."""
        means = list(state["average"]["means"])
        pairs = zip(means, self.parameters, strict=bool(means))
        self.means = [mean.to(p.device, p.dtype, copy=True).view(p.shape) for mean, p in pairs]
        self.is_averaging = bool(state["is_averaging"])
        self.losses = [float(loss) for loss in state["trigger"]["losses"]]
        self.updates = int(state["average"]["updates"])


class LastAveraging(NonMonotoneAveraging):
    """Keeps the weights of the last validations; after the last of them, their mean is one more candidate.

    Args:
        parameters: of the model.
        most: how many validations count; fewer than two make no mean.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], most: int) -> None:
        super().__init__(parameters, window=None)
        self.most = most
        self.kept: list[list[Tensor]] = []  # oldest first, each in the order of the parameters

    def check(self, loss: float) -> bool:
        """Keeps the current weights."""
        self.kept = [*self.kept, [p.detach().clone() for p in self.parameters]][-self.most :] if self.most > 1 else []
        return False

    def finish(self) -> int:
        """Makes the mean of the kept weights what is evaluated from now on; returns how many they were, or 0."""
        count, kept = len(self.kept), self.kept
        self.kept, self.most = [], 0
        if count < 2:
            return 0
        self.means = kept[0]
        for number, weights in enumerate(kept[1:], start=1):
            self._average(self.means, weights, number)
        return count

    def state_dict(self) -> State:
        """The kept weights, too."""
        return {**super().state_dict(), "kept": [list(each) for each in self.kept]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state_dict` returned; raises an exception of any kind if it does not fit."""
        super().load_state_dict(state)  # an earlier version kept no weights
        pairs = [zip(each, self.parameters, strict=True) for each in state.get("kept", [])]
        self.kept = [[one.to(p.device, p.dtype, copy=True).view(p.shape) for one, p in each] for each in pairs]


def build_optimizer(
    settings: AdamW | NtAsgd | AdaDelta, parameters: list[nn.Parameter], average: int | None = None
) -> tuple[torch.optim.Optimizer, NonMonotoneAveraging]:
    """The optimiser that a recipe names, and its averaging: NT-ASGD has its own, others that of `train.average`."""
    never = LastAveraging(parameters, average or 0)
    lr, decay = settings.lr, settings.weight_decay
    match settings:
        case AdamW():
            groups = [  # biases do not decay
                {"params": [p for p in parameters if p.dim() > 1], "weight_decay": decay},
                {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
            ]
            betas = (settings.beta1, settings.beta2)
            used = [group for group in groups if group["params"]]
            return torch.optim.AdamW(used, lr=lr, betas=betas, eps=settings.epsilon, fused=True), never
        case AdaDelta():
            return torch.optim.Adadelta(parameters, lr, settings.rho, settings.epsilon, decay), never
        case NtAsgd():
            averaging = NonMonotoneAveraging(parameters, settings.window, is_averaging=settings.start == "asgd")
            return torch.optim.SGD(parameters, lr=lr, weight_decay=decay, fused=True), averaging


def optimizer_state(optimizer: torch.optim.Optimizer) -> State:
    """What an optimiser remembers, without anything that needs pickle: its rates, and each parameter's tensors."""
    state = optimizer.state_dict()
    return {
        "learning_rates": [float(group["lr"]) for group in state["param_groups"]],
        "parameters": {
            str(index): {name: value for name, value in entry.items() if value is not None}
            for index, entry in state["state"].items()
        },
    }


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Puts the result of `optimizer_state` into an optimiser that was built with the same arguments.

    Raises an exception of any kind if it does not fit; torch itself would notice only during an update, or never.
    """
    inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
    names, groups = _REMEMBERED[type(inner)], optimizer.state_dict()["param_groups"]
    shapes = [p.shape for group in inner.param_groups for p in group["params"]]
    memories = {
        int(index): {name: memory[name].view(() if name == "step" else shapes[int(index)]) for name in names}
        for index, memory in state["parameters"].items()
    }
    for group, rate in zip(groups, state["learning_rates"], strict=True):
        group["lr"] = float(rate)
    optimizer.load_state_dict({"state": memories, "param_groups": groups})
