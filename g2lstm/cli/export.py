"""`g2lstm export`: a run as files for another runtime."""

import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from g2lstm.cli.shared import EvalGate, Json, Run, print_json, say, tell, usable
from g2lstm.errors import G2Error, needs

if TYPE_CHECKING:
    from g2lstm.tasks.trained import Trained

FORMATS = ("onnx", "c", "html")
_EXAMPLES = 6


def export(
    run: Run,
    file_format: Annotated[str, typer.Option("--format", help="onnx, c for plain C, or html for one page.")] = "onnx",
    out: Annotated[
        Path | None,
        typer.Option(help="The file NAME.onnx, NAME.c or NAME.html; by default model in RUN/export.", callback=usable),
    ] = None,
    activations: Annotated[
        str,
        typer.Option(
            help="ONNX: float32, or int8: packed weights then run faster, but results are slightly less exact."
        ),
    ] = "float32",
    title: Annotated[str | None, typer.Option(help="HTML: the title of the page.")] = None,
    example: Annotated[
        list[str] | None,
        typer.Option(
            help="HTML: a sentence that visitors can pick; repeatable. By default the lines of RUN/examples.txt, or "
            "some of a named data set; none of your own text."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    eval_gate: EvalGate = None,
    as_json: Json = False,
) -> None:
    """Export a run to ONNX, C or HTML.

    Files of ONNX and C are kept only if they give the same results as PyTorch.

    In ONNX, a language model becomes NAME.onnx, which maps tokens (time, batch) and states to log-probabilities and
    states. A translation model becomes NAME.encoder.onnx and NAME.decoder.onnx, which decodes one step. NAME.json
    describes inputs, outputs and token ids; the tokenizers are beside it. Packed weights of up to four bits need ONNX
    Runtime; everything else runs in any ONNX runtime.

    In C, NAME.h and NAME.c need nothing but a C99 compiler, and allocate no memory. NAME_test.c is their self-test; it
    runs now if there is a compiler, cc. NAME_tokens.c holds the tokens as strings.

    In HTML, NAME.html is one page that runs the model in the browser, without a server or a network: it continues a
    text or translates it, and shows the gates of every word.

    Example: `g2lstm export runs/ptb-small --format onnx --out device/words.onnx`
    """
    from g2lstm.runs.trained import load

    if file_format != "html" and (title is not None or example):
        raise G2Error(f"--title and --example are for --format html, got --format {file_format}; leave them out")
    if file_format not in FORMATS:
        raise G2Error(f"models are exported as onnx, c or html, got --format {file_format!r}")
    if file_format == "html":
        if activations != "float32":
            raise G2Error(f"--activations is for ONNX; a page computes in floats, got {activations!r}; leave it out")
        _to_html(run, out, title, example or [], eval_gate, force, as_json)
    elif file_format == "c":
        if activations != "float32":
            raise G2Error(f"--activations is for ONNX; C rounds vectors to 16 bits, got {activations!r}; leave it out")
        _to_c(load(run), out, eval_gate, force, as_json)
    else:
        _to_onnx(load(run), out, activations, eval_gate, force, as_json)


def _to_onnx(
    trained: "Trained", out: Path | None, activations: str, eval_gate: str | None, force: bool, as_json: bool
) -> None:
    with needs("export", "g2lstm export"):
        from g2lstm.export.onnx import export_onnx

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        path = out or trained.run.own("export") / "model.onnx"
        made = export_onnx(trained, path, activations=activations, eval_gate=eval_gate, force=force)
    for warning in caught:
        tell(f"g2lstm: {warning.message}")
    sizes = {str(file): file.stat().st_size for file in made.files}
    if as_json:
        facts = {"difference": made.difference, "tolerance": made.tolerance, "expanded": made.expanded}
        print_json({"files": sizes, **facts, "example": made.example})
        return
    _print_files(sizes)
    say(
        f"agrees with PyTorch: largest difference {made.difference:.1e} over several lengths and batches "
        f"({made.tolerance:.1e} is allowed)"
    )
    say(f"run it with:\n\n{made.example}")


def _to_c(trained: "Trained", out: Path | None, eval_gate: str | None, force: bool, as_json: bool) -> None:
    from g2lstm.export.c.export import export_c

    path = out or trained.run.own("export") / "model.c"
    made = export_c(trained, path, eval_gate=eval_gate, compiler=shutil.which("cc"), force=force)
    files = {str(file): file.stat().st_size for file in made.files}
    if as_json:
        sizes = made.sizes
        needed = {"weights": sizes.weights, "state": sizes.state, "scratch": sizes.scratch, "macs": sizes.macs}
        print_json({"files": files, **needed, "tolerance": made.tolerance, "checked": made.checked})
        return
    _print_files(files)
    say("\n".join(made.sizes.lines()))
    say(made.checked or f"not run: there is no C compiler, cc, to compile {path.stem}_test.c with")


def _to_html(
    run: Path,
    out: Path | None,
    title: str | None,
    examples: list[str],
    eval_gate: str | None,
    force: bool,
    as_json: bool,
) -> None:
    from g2lstm.export.html.page import EXAMPLES, export_html
    from g2lstm.runs.directory import RunDirectory
    from g2lstm.tasks.trained import example_sentences

    directory = RunDirectory.open(run)
    if not examples and directory.recipe.data.name is not None and not (directory.path / EXAMPLES).exists():
        examples = example_sentences(directory.recipe, _EXAMPLES)
    path = out or directory.own("export") / "model.html"
    made = export_html(run, path, title=title, examples=examples, eval_gate=eval_gate, force=force)
    if as_json:
        print_json({"files": {str(path): made.bytes}, "weights": made.weights})
        return
    _print_files({str(path): made.bytes})
    say("open it in a browser; it needs no server and no network")


def _print_files(sizes: dict[str, int]) -> None:
    width = max(map(len, sizes))
    for file, size in sizes.items():
        say(f"{file:<{width}}  {size / 1e6:9.3f} MB")
