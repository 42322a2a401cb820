"""Bars: one that begins while another is drawn stands below it, and leaves no trace."""

import io

from rich.console import Console

from g2lstm.cli import output, progress


def test_a_stream_has_one_console():
    assert output.console() is output.console()
    assert output.error_console() is output.error_console()
    assert output.console() is not output.error_console()


def test_a_bar_below_another(monkeypatch):
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=80)
    monkeypatch.setattr(progress, "error_console", lambda: console)
    outer = progress.study_progress()
    outer.live.auto_refresh = False
    outer.start()
    outer.add_task("run 1 of 3", total=10, rate="", perplexity="")
    with progress.bar() as show:
        show("preparing x", 1, 4)
        outer.refresh()
        upper, lower = text.getvalue().split("\r")[-1].splitlines()
        assert "run 1 of 3" in upper
        assert "preparing x" in lower
    outer.refresh()
    assert "preparing" not in text.getvalue().split("\r")[-1]
    outer.stop()
