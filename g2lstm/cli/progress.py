"""Progress bars for downloads, prepared texts, training, studies, and any other work that reports its progress."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from g2lstm.cli.shared import error_console, safe, say, tell

if TYPE_CHECKING:
    from g2lstm.lab.study.jobs import Job
    from g2lstm.tasks.task import Validation
    from g2lstm.training.progress import TrainingProgress

_PREPARING = logging.getLogger("g2lstm.text")
_SECONDS_BETWEEN_LINES = 30.0  # in a log, where no bar can be drawn
_WIDE = 120  # columns of a terminal that has room for a bar beside the numbers of a training


class Bar:
    """Shows what is being done, how much of it is done, the total, and the time left.

    Nothing is drawn before its first call, nor where standard error is not a terminal.
    """

    def __init__(self) -> None:
        texts = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        console = error_console()
        self._progress = Progress(
            *texts, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
        )
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Draws."""
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(safe(what), total=total)
            self._progress.start()
        self._progress.update(self._tasks[what], completed=done, total=total)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Nothing is drawn within, so that other things can be printed."""
        is_drawn = self._progress.live.is_started
        _stop(self._progress)
        yield
        if is_drawn:
            self._progress.start()

    def close(self) -> None:
        """Removes it from the screen."""
        _stop(self._progress)


@contextmanager
def bar() -> Iterator[Bar]:
    """A bar that disappears in the end."""
    with closing(Bar()) as made:
        yield made


def _stop(progress: Progress) -> None:
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
    """BLEU and chrF, if there are such, perplexity, and bits per character, if they are known."""
    named = {"bleu": "BLEU", "chrf": "chrF"}
    bleu = "".join(f"{title} {scores[name]:.2f}, " for name, title in named.items() if name in scores)
    bits = f", {scores['bits_per_character']:.3f} bits per character" if "bits_per_character" in scores else ""
    return f"{bleu}perplexity {scores['perplexity']:.2f}{bits}"


class TrainingBar:
    """Shows training as a bar with speed, perplexity and time left; validations are lines, and in a log everything is.

    Nothing is drawn before the first step, so an error before that stands alone.
    """

    def __init__(self, is_shown: bool = True) -> None:
        console = error_console()
        is_wide = console.width >= _WIDE
        columns = (
            TextColumn("{task.description}", markup=False),
            *([BarColumn()] if is_wide else []),
            TextColumn("{task.percentage:.0f}%{task.fields[state]}"),
            *([TextColumn("after"), TimeElapsedColumn()] if is_wide else []),
            TimeRemainingColumn(),
            TextColumn("left"),
        )
        is_drawn = is_shown and console.is_terminal
        self.bar = Progress(*columns, console=console, speed_estimate_period=120, disable=not is_drawn)
        self.task = self.bar.add_task("training", total=1.0, state="")
        self.title = ""  # stands before the bar
        self._smooth: float | None = None
        self._next_line = 0.0

    def close(self) -> None:
        """Stops drawing."""
        _stop(self.bar)

    def on_step(self, progress: "TrainingProgress", share: float, values: dict[str, float]) -> None:
        """Moves the bar; the perplexity shown is that of a running mean of the loss."""
        self.bar.start()
        loss = values["loss"]
        self._smooth = loss if self._smooth is None else 0.98 * self._smooth + 0.02 * loss
        seconds = progress.seconds - progress.validating_seconds
        perplexity = f"perplexity {math.exp(min(self._smooth, 99)):,.1f}"  # another digit would say no more
        speed = f"{progress.tokens / max(seconds, 1e-9):,.0f} tokens/s"
        state = f", epoch {progress.epoch + 1}, {perplexity}, {speed}"  # the percentage stands before it
        self.bar.update(self.task, completed=share, description=safe(self.title or "training"), state=state)
        if not self.bar.console.is_terminal and progress.seconds >= self._next_line:
            self._next_line = progress.seconds + _SECONDS_BETWEEN_LINES
            left = f"{duration(progress.seconds * (1 / share - 1))} left" if share >= 0.01 else "just begun"
            self.on_message(f"{f'{self.title}, ' if self.title else ''}{share:.0%} of the training{state}, {left}")

    def on_validation(self, progress: "TrainingProgress", validation: "Validation", is_best: bool) -> None:
        """Prints the scores, and how many of the sampled gates are binary: below 0.1 or above 0.9 in evaluation."""
        gates = [value for name, value in validation.scores.items() if name.startswith("saturation/")]
        beyond = (progress.epochs or 0) - progress.epoch  # minutes may end within an epoch
        number = f"{progress.epochs:.1f}" if 0 < beyond < 1 else f"{progress.epoch}"
        text = f"epoch {number}: {scores_in_words(validation.scores)}"
        if gates:
            text += f", {sum(gates) / len(gates):.0%} binary gates"
        self.on_message(text + (" (best)" if is_best else ""))

    def on_message(self, message: str) -> None:
        """Prints it."""
        say(message, self.bar.console, is_prose=True)


class StudyBar(TrainingBar):
    """Shows a study: the current training or measurement as a bar, and an estimate for everything that is left."""

    def __init__(self, jobs: "list[Job]") -> None:
        super().__init__()
        self.jobs = jobs

    def on_stage(self, job: "Job", stage: str, is_new: bool = True) -> None:
        """Names the run and the stage, and estimates how long the rest will take, unless it was said before."""
        number, stages = self.jobs.index(job), list(job.stages)
        here = sum(job.stages[each] for each in stages[stages.index(stage) :])
        left = here + sum(sum(later.stages.values()) for later in self.jobs[number + 1 :])
        text = f"run {number + 1} of {len(self.jobs)}, {job.run.name}"
        self.title = text
        self.bar.start()
        self.bar.reset(self.task, description=safe(f"{self.title}, {stage}"), state="")
        self._smooth, self._next_line = None, self._next_line if not is_new else 0.0
        if is_new:
            self.on_message(f"{text}: {stage}" + (f"; about {duration(left)} left in all" if left else ""))

    def on_share(self, share: float) -> None:
        """Moves the bar of a measurement."""
        self.bar.update(self.task, completed=share)


def duration(seconds: float) -> str:
    """A duration in its two largest units: "2 h 10 min"."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{round(seconds)} s"
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours / 24:.0f} days"
