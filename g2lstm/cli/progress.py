"""Progress bars for any work that reports how far it is, for downloads and preparations, for training, for studies."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from g2lstm.cli.output import error_console, tell

if TYPE_CHECKING:
    from g2lstm.lab.study.runner import Job
    from g2lstm.tasks.task import Validation
    from g2lstm.training.progress import TrainingProgress

_PREPARING = logging.getLogger("g2lstm.text")
_SECONDS_BETWEEN_LINES = 30.0  # in a log, where no bar can be drawn


@contextmanager
def bar() -> Iterator[Callable[[str, int, int], None]]:
    """A function that shows what is being done, how much of it is done, and the total.

    Nothing is drawn before its first call, nor where standard error is not a terminal.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = error_console()
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    tasks = {}

    def show(what: str, done: int, total: int) -> None:
        if what not in tasks:
            tasks[what] = progress.add_task(escape(what), total=total)
            progress.start()
        progress.update(tasks[what], completed=done, total=total)

    with drawn(progress):
        yield show


@contextmanager
def drawn(progress: Progress) -> Iterator[None]:
    """Stops a bar at the end if its work has started it.

    Nothing is drawn before the work's first report, so an error before that stands alone, without an empty bar above.
    """
    try:
        yield
    finally:
        if progress.live.is_started:  # otherwise stopping would print an empty line
            progress.stop()


class _PreparingBar(logging.Handler):
    """Turns log records into steps of a bar or, where none can be drawn, into lines; a warning is always a line."""

    def __init__(self) -> None:
        super().__init__()
        self._drawn = ExitStack()
        self._show: Callable[[str, int, int], None] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno > logging.INFO:
            tell(record.getMessage())
            return
        assert isinstance(record.args, tuple)
        what, done, total = (str(argument) for argument in record.args)
        if self._show is None:
            self._show = self._drawn.enter_context(bar())
        self._show(what, int(done), int(total))
        if not error_console().is_terminal:
            tell(record.getMessage())
        if done == total:  # the next bar belongs to other work
            self.erase()

    def erase(self) -> None:
        """Removes the bar from the screen."""
        self._drawn.close()
        self._show = None


@contextmanager
def preparing_shown() -> Iterator[None]:
    """Shows downloads and preparations of texts that take a while."""
    handler, level = _PreparingBar(), _PREPARING.level
    _PREPARING.addHandler(handler)
    _PREPARING.setLevel(logging.INFO)
    try:
        yield
    finally:
        handler.erase()
        _PREPARING.removeHandler(handler)
        _PREPARING.setLevel(level)


def scores_in_words(scores: Mapping[str, float]) -> str:
    """BLEU, if there is one, and perplexity."""
    bleu = f"BLEU {scores['bleu']:.2f}, " if "bleu" in scores else ""
    return f"{bleu}perplexity {scores['perplexity']:.2f}"


def training_progress(is_shown: bool = True) -> Progress:
    """What a `TrainingBar` is drawn on."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f}% {task.fields[rate]} {task.fields[perplexity]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=error_console(), speed_estimate_period=120, disable=not is_shown)


class TrainingBar:
    """Shows a training as a bar with speed, perplexity and time left; validations are lines, as is all in a log."""

    def __init__(self, progress: Progress, title: str = "training") -> None:
        self.bar = progress
        self.task = progress.add_task(escape(title), total=1.0, rate="", perplexity="")
        self._smooth: float | None = None
        self._next_line = 0.0

    def on_step(self, progress: "TrainingProgress", share: float, values: dict[str, float]) -> None:
        """Moves the bar; the perplexity shown is that of a running mean of the loss."""
        self.bar.start()
        loss = values["loss"]
        self._smooth = loss if self._smooth is None else 0.98 * self._smooth + 0.02 * loss
        seconds = progress.seconds - progress.validating_seconds
        rate = f"{progress.tokens / max(seconds, 1e-9):,.0f} tokens/s"
        perplexity = f"perplexity {math.exp(min(self._smooth, 99)):,.1f}"  # another digit would say no more
        epoch = f"epoch {progress.epoch + 1}"
        self.bar.update(self.task, completed=share, description=epoch, rate=rate, perplexity=perplexity)
        if not self.bar.console.is_terminal and progress.seconds >= self._next_line:
            self._next_line = progress.seconds + _SECONDS_BETWEEN_LINES
            left = seconds * (1 / share - 1) / 60
            self.on_message(f"{epoch}, {share:.0%}: {perplexity}, {rate}, {left:.0f} minutes left")

    def on_validation(self, progress: "TrainingProgress", validation: "Validation", is_best: bool) -> None:
        """Prints the scores, and how binary the gates are."""
        gates = [value for name, value in validation.scores.items() if name.startswith("saturation/")]
        text = f"epoch {progress.epoch}: validation {scores_in_words(validation.scores)}"
        if gates:
            text += f", {sum(gates) / len(gates):.0%} of i and f beyond 0.1/0.9 in evaluation"
        self.on_message(text + (" (best)" if is_best else ""))

    def on_message(self, message: str) -> None:
        """Prints it as it is."""
        self.bar.console.print(message, highlight=False, markup=False, soft_wrap=True)


def study_progress() -> Progress:
    """What a `StudyBar` is drawn on."""
    form = "{task.percentage:.0f}% {task.fields[rate]} {task.fields[perplexity]}"
    return Progress(TextColumn("{task.description}"), BarColumn(), TextColumn(form), console=error_console())


class StudyBar:
    """Shows a study as two bars: the whole of it, by estimated time, and the training or measurement under way."""

    def __init__(self, progress: Progress, jobs: "list[Job]") -> None:
        self.bar, self.jobs = progress, jobs
        self.seconds = {number: sum(job.stages.values()) for number, job in enumerate(jobs)}
        self.whole = progress.add_task("all", total=max(sum(self.seconds.values()), 1.0), rate="", perplexity="")
        self.training: TrainingBar | None = None
        self._began = time.monotonic()
        self._done = 0.0  # estimated seconds of the stages that are done
        self._stage = 0.0  # estimated seconds of the stage under way
        self._share: float | None = None  # of that stage; a resumed training does not begin at 0
        self._worked = 0.0  # estimated seconds of what this process has done

    def on_stage(self, number: int, job: "Job", stage: str) -> None:
        """Names the run and the stage, and estimates how long the rest will take."""
        self.bar.start()
        self._close_stage()
        self._stage = job.stages[stage]
        text = f"run {number + 1} of {len(self.jobs)}, {job.run.name}"
        self.bar.update(self.whole, description=escape(text), rate=f"{self._left()} left in all")
        self.training = TrainingBar(self.bar, stage)
        if not self.bar.console.is_terminal:
            self.on_message(f"{text}: {stage}; {self._left()} left in all")

    def on_share(self, share: float) -> None:
        """Moves both bars."""
        before = share if self._share is None else self._share
        share = max(share, before)  # tuning a cache starts from 0 for each setting
        self._worked += (share - before) * self._stage
        self._share = share
        self._move_whole(self._done + share * self._stage)
        if self.training is not None:
            self.bar.update(self.training.task, completed=share)

    def on_job_end(self, number: int, job: "Job") -> None:
        """Moves the whole past everything that was estimated for the job."""
        self._close_stage()
        self._done = sum(self.seconds[before] for before in range(number + 1))
        self._move_whole(self._done)

    def on_step(self, progress: "TrainingProgress", share: float, values: dict[str, float]) -> None:
        """Moves both bars."""
        assert self.training is not None
        self.training.on_step(progress, share, values)
        self.on_share(share)

    def on_validation(self, progress: "TrainingProgress", validation: "Validation", is_best: bool) -> None:
        """Prints the scores, as `g2lstm train` does."""
        assert self.training is not None
        self.training.on_validation(progress, validation, is_best)

    def on_message(self, message: str) -> None:
        """Prints it as it is."""
        self.bar.console.print(message, highlight=False, markup=False, soft_wrap=True)

    def _move_whole(self, done: float) -> None:
        self.bar.update(self.whole, completed=done, rate=f"{self._left()} left in all")

    def _close_stage(self) -> None:
        if self.training is not None:
            self.bar.remove_task(self.training.task)
            self.training = None
        self._done += self._stage
        self._stage, self._share = 0.0, None

    def _left(self) -> str:
        """The estimate for what is left, corrected by how long the work has really taken so far."""
        done = self._done + (self._share or 0.0) * self._stage
        passed = time.monotonic() - self._began
        factor = passed / self._worked if passed > 60 and self._worked > 0 else 1.0
        return duration(factor * (sum(self.seconds.values()) - done))


def duration(seconds: float) -> str:
    """A duration in its two largest units: "2 h 10 min"."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{max(round(seconds), 0)} s"
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours / 24:.0f} days"
