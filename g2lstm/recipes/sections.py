"""Parts of a recipe that every task has: gates, optimizers, and how long and how to train."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from g2lstm.nn.lstm import DEFAULT_TAU

Count = Annotated[int, Field(ge=1, lt=2**31)]
Width = Annotated[int, Field(ge=1, le=2**20)]  # beyond what trains, and no product of two is beyond 64 bits
Layers = Annotated[int, Field(ge=1, le=256)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
DropProbability = Annotated[float, Field(ge=0, lt=1)]


def _can_be_a_folder(name: str) -> str:
    try:
        path = Path(name).expanduser()
    except RuntimeError:
        raise ValueError("there is no such user's folder") from None
    if "\0" in name or len(str(path).encode()) > 4000 or any(len(part.encode()) > 255 for part in path.parts):
        raise ValueError("no folder can be called so")
    return name


FolderName = Annotated[str, AfterValidator(_can_be_a_folder)]


class Section(BaseModel):
    """A table of a recipe: unknown keys, text for a number and infinities are errors; values do not change later."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, validate_by_alias=True)


class GateSection(Section):
    """The gates of `G2LSTM`, whose arguments these are.

    Attributes:
        method: "gumbel" (the paper's G2), "sigmoid" (a plain LSTM) or "sharpened".
        tau: temperature; that of the method if not given.
        noise_rate: probability that a gate element gets noise.
        gates: which gates are pushed to 0 or 1.
        eval_gate: how gates are computed in evaluation.
        weight_dropout: DropConnect on the recurrent weights.
    """

    method: Literal["gumbel", "sigmoid", "sharpened"] = "gumbel"
    tau: Positive | None = Field(default=None, validate_default=True)
    noise_rate: Share = 0.2
    gates: Literal["if", "ifo"] = "if"
    eval_gate: Literal["soft", "tempered", "hard"] = "soft"
    weight_dropout: DropProbability = 0.5

    @field_validator("tau")
    @classmethod
    def _resolve(cls, tau: float | None, others: ValidationInfo) -> float | None:
        return DEFAULT_TAU.get(others.data.get("method", "")) if tau is None else tau


class AdamW(Section):
    """AdamW with a one-cycle schedule: the learning rate rises, then falls, over the whole of the training.

    Attributes:
        name: which optimizer this is.
        lr: the highest learning rate.
        weight_decay: decoupled.
        beta1: of the mean of gradients.
        beta2: of the mean of their squares.
        epsilon: added to the denominator.
        warmup: share of the training in which the learning rate rises.
        final_lr: the last learning rate as a share of `lr`.
    """

    name: Literal["adamw"] = "adamw"
    lr: Positive = 3e-3
    weight_decay: NonNegative = 0.01
    beta1: DropProbability = 0.9
    beta2: DropProbability = 0.99
    epsilon: Positive = 1e-8
    warmup: DropProbability = 0.1
    final_lr: Share = 0.0


class NtAsgd(Section):
    """SGD that begins to average its weights when validation stops improving: the paper's, with its settings.

    Attributes:
        name: which optimizer this is.
        lr: learning rate.
        weight_decay: added to the gradient.
        window: how many validations without a better one are waited for: the non-monotone trigger.
        start: "sgd" to switch to averaging by the trigger; "asgd" to average from the start and stop by the trigger.
    """

    name: Literal["ntasgd"] = "ntasgd"
    lr: Positive = 30.0
    weight_decay: NonNegative = 1.2e-6
    window: Count = 5
    start: Literal["sgd", "asgd"] = "sgd"


class AdaDelta(Section):
    """AdaDelta, which needs no learning rate: the paper's for translation.

    Attributes:
        name: which optimizer this is.
        lr: what its updates are multiplied by.
        rho: decay of the means of squares.
        epsilon: added under the roots.
        weight_decay: added to the gradient.
    """

    name: Literal["adadelta"] = "adadelta"
    lr: Positive = 1.0
    rho: DropProbability = 0.95
    epsilon: Positive = 1e-6
    weight_decay: NonNegative = 0.0


class TrainSection(Section):
    """How to train, whatever the task.

    Attributes:
        optimizer: "adamw", "ntasgd" or "adadelta" under `name`, with its settings.
        epochs: passes over the training data at most.
        minutes: wall-clock budget that the schedule is fitted to; with epochs given too, whichever ends first.
        seed: of everything random.
        clip: norm that gradients are clipped to; 0 for no clipping.
        patience: stop after so many validations without a better one; never if not given.
        checkpoint_minutes: how often the state is saved between validations.
        precision: "fp32", "bf16" or, on a GPU, "fp16" with a scaled loss.
        finetune_from: a run directory whose weights training starts from.
    """

    optimizer: AdamW | NtAsgd | AdaDelta = Field(default_factory=NtAsgd, discriminator="name")
    epochs: Count | None = None
    minutes: Positive | None = Field(default=None, validate_default=True)
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1
    clip: NonNegative = 0.25
    patience: Count | None = None
    checkpoint_minutes: Positive = 10.0
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    finetune_from: FolderName | None = None

    @field_validator("optimizer", mode="before")
    @classmethod
    def _of_the_default_kind(cls, optimizer: Any) -> Any:
        if isinstance(optimizer, dict) and "name" not in optimizer:
            return {"name": cls.model_fields["optimizer"].get_default(call_default_factory=True).name, **optimizer}
        return optimizer

    @field_validator("minutes")
    @classmethod
    def _has_an_end(cls, minutes: float | None, others: ValidationInfo) -> float | None:
        # An epochs that is wrong is absent here, and has an error of its own.
        if minutes is None and others.data.get("epochs", 0) is None:
            raise ValueError("give train.epochs or train.minutes or both, so that training has an end")
        return minutes
