"""Bars: one that begins while another is drawn stands below it, and leaves no trace."""

import io
import re
from contextlib import closing
from types import SimpleNamespace

from rich.console import Console

from g2lstm.cli import progress, shared
from g2lstm.training.progress import TrainingProgress


def test_a_stream_has_one_console():
    assert shared.console() is shared.console()
    assert shared.error_console() is shared.error_console()
    assert shared.console() is not shared.error_console()


def test_a_bar_below_another(monkeypatch):
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=80)
    monkeypatch.setattr(progress, "error_console", lambda: console)
    outer = progress.TrainingBar().bar
    outer.live.auto_refresh = False
    outer.start()
    outer.update(outer.task_ids[0], description="run 1 of 3")
    with progress.bar() as show:
        show("preparing x", 1, 4)
        outer.refresh()
        upper, lower = text.getvalue().split("\r")[-1].splitlines()
        assert "run 1 of 3" in upper
        assert "preparing x" in lower
    outer.refresh()
    assert "preparing" not in text.getvalue().split("\r")[-1]
    outer.stop()


def drawn(width, monkeypatch):
    """What a study shows on a terminal of this width."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width)
    monkeypatch.setattr(progress, "error_console", lambda: console)
    job = SimpleNamespace(stages={"training": 60.0}, run=SimpleNamespace(name="binary"))
    shown = progress.StudyBar([job] * 3)
    shown.bar.live.auto_refresh = False
    with closing(shown):
        shown.on_stage(job, "training")
        shown.on_step(TrainingProgress(step=9, epoch=15, seconds=60.0, tokens=600_000), 0.5, {"loss": 5.4})
        scores = {"perplexity": 179.17, "bits_per_character": 1.42, "saturation/layers.0/input": 0.34}
        shown.on_validation(TrainingProgress(epoch=16), SimpleNamespace(scores=scores), is_best=True)
        shown.on_validation(TrainingProgress(epoch=16, epochs=16.4), SimpleNamespace(scores=scores), is_best=False)
        shown.on_message("a long message " * 9)
        shown.bar.refresh()
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", console.file.getvalue()).replace("\r", "\n").splitlines()


def test_what_a_training_shows_fits_into_80_columns(monkeypatch):
    lines = drawn(80, monkeypatch)
    assert max(map(len, lines)) <= 80
    assert not any("\u2026" in line for line in lines)  # rich writes it where it cuts
    assert any(
        re.match("run 1 of 3, binary 50%, epoch 16, perplexity 221.4, 10,000 tokens/s .* left$", one.rstrip())
        for one in lines
    )
    assert "epoch 16: perplexity 179.17, 1.420 bits per character, 34% binary gates (best)" in lines
    assert "epoch 16.4: perplexity 179.17, 1.420 bits per character, 34% binary gates" in lines
    assert not any("\u2501" in line for line in lines)
    assert any("\u2501" in line for line in drawn(160, monkeypatch))  # the bar


def test_a_log_has_lines_instead_of_a_bar(monkeypatch):
    console = Console(file=io.StringIO(), width=160)
    monkeypatch.setattr(progress, "error_console", lambda: console)
    with closing(progress.TrainingBar()) as shown:
        shown.on_step(TrainingProgress(seconds=60.0), 0.5, {"loss": 0.0})
    assert console.file.getvalue() == "50% of the training, epoch 1, perplexity 1.0, 0 tokens/s, 1 min left\n"
