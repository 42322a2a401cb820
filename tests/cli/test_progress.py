"""Bars: one that begins while another is drawn stands below it, and leaves no trace."""

import io

from rich.console import Console

from g2lstm.cli import progress, shared


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
