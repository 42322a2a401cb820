"""`g2lstm`: the command line. Each file has one command, or some that belong together; errors are handled here."""

import inspect
import re
import signal
import sys
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from g2lstm.cli import (
    bench,
    compress,
    data,
    demo,
    evaluate,
    export,
    gates,
    generate,
    info,
    recipe,
    study,
    train,
    translate,
    view,
)
from g2lstm.cli.progress import preparing_shown
from g2lstm.cli.shared import say, tell
from g2lstm.errors import G2Error
from g2lstm.version import __version__

# Typer carries its own copy of click, without a public name for the base of all mistakes in options and arguments.
_ClickException: type[Exception] = typer.BadParameter.__mro__[2]

_WHERE_TEXT_GOES = {  # by command
    "g2lstm translate": "it reads standard input: `g2lstm translate RUN < FILE` or `echo TEXT | g2lstm translate RUN`",
    "g2lstm generate": "give the beginning of the text with --prompt",
}

app = typer.Typer(
    help="LSTMs whose gates learn to be 0 or 1: train, score, compress and use them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.add_typer(data.app, name="data")
app.command("train")(train.train)
app.command("distill")(train.distill)
app.command("init")(recipe.init)
app.add_typer(recipe.app, name="recipe")
app.command("eval")(evaluate.evaluate)
app.command("verify")(evaluate.verify)
app.command("compress", help=compress.HELP)(compress.compress)
app.command("generate")(generate.generate)
app.command("translate")(translate.translate)
app.command("score")(evaluate.score)
app.command("export")(export.export)
app.command("gates")(gates.gates)
app.command("view")(view.view)
app.command("report")(gates.report)
app.command("study")(study.study)
app.command("info")(info.info)
app.add_typer(bench.app, name="bench")


class _Command(TyperCommand):
    """A command whose help is wrapped to the terminal, not where its docstring is; flags take no value, so no type."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        # Lines that begin with spaces are those of a list.
        self.help = re.sub(r"(?<!\n)\n(?![\n ])", " ", inspect.cleandoc(self.help or ""))

    def get_params(self, ctx: Any) -> list[Any]:
        """Its options and arguments, with those of its help."""
        found: list[Any] = super().get_params(ctx)
        for one in found:
            if getattr(one, "is_flag", False):
                one.metavar = ""
        return found


for _command in [each for group in (app, bench.app, data.app, recipe.app) for each in group.registered_commands]:
    _command.cls = _Command


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"g2lstm {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the full traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Exit codes: 0 done; 2 the user's mistake; 130 interrupted, state saved; 1 a bug in g2lstm."""


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Runs the command line; a user's mistake becomes one line and exit code 2.

    SIGTERM counts as an interrupt, so that half-written files are cleaned up. Training has its own handlers.
    """
    try:
        signal.signal(signal.SIGTERM, _interrupt)
        with preparing_shown():
            sys.exit(app(prog_name="g2lstm", standalone_mode=False) or 0)
    except (G2Error, _ClickException) as error:
        if "--debug" in sys.argv[1:]:
            raise
        if message := _message(error):
            tell(f"g2lstm: {message}")
        sys.exit(2)


def _message(error: Exception) -> str:
    """What is wrong, in one line; empty if typer printed the help because there were no arguments."""
    if isinstance(error, G2Error):
        return str(error)
    text = " ".join(error.format_message().split())  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    command = "g2lstm" if context is None else context.command_path
    text = text.replace("Value error, ", "").removesuffix(".")
    if "unexpected extra argument" in text and (hint := _WHERE_TEXT_GOES.get(command)):
        return f"{text}; {hint}"
    return text and f"{text}; see `{command} --help`"
