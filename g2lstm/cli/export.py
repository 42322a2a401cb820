"""`g2lstm export`: a run as files for another runtime."""

import warnings
from pathlib import Path
from typing import Annotated

import typer

from g2lstm.cli.shared import EvalGate, Json, Run, print_json, say, tell
from g2lstm.errors import G2Error, needs


def export(
    run: Run,
    file_format: Annotated[str, typer.Option("--format", help="The file format; so far only onnx.")] = "onnx",
    out: Annotated[Path | None, typer.Option(help="The file NAME.onnx; RUN/export/model.onnx by default.")] = None,
    activations: Annotated[
        str, typer.Option(help="float32, or int8: packed weights then run faster, but results are slightly less exact.")
    ] = "float32",
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    eval_gate: EvalGate = None,
    as_json: Json = False,
) -> None:
    """Export a run to ONNX; the files are kept only if ONNX Runtime gives the same results as PyTorch.

    A language model becomes NAME.onnx, which maps tokens (time, batch) and states to log-probabilities and states. A
    translation model becomes NAME.encoder.onnx and NAME.decoder.onnx, which decodes one step. NAME.json describes
    inputs, outputs and token ids; the tokenizers are beside it. Packed weights of up to four bits need ONNX Runtime;
    everything else runs in any ONNX runtime.

    Example: `g2lstm export runs/ptb-small --format onnx --out device/words.onnx`
    """
    with needs("export", "g2lstm export"):
        from g2lstm.export.onnx import export_onnx
    from g2lstm.runs.trained import load

    if file_format != "onnx":
        raise G2Error(f"models are exported as onnx, got --format {file_format!r}")
    trained = load(run)
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
    width = max(map(len, sizes))
    for file, size in sizes.items():
        say(f"{file:<{width}}  {size / 1e6:9.3f} MB")
    say(
        f"agrees with PyTorch: largest difference {made.difference:.1e} over several lengths and batches "
        f"({made.tolerance:.1e} is allowed)"
    )
    say(f"run it with:\n\n{made.example}")
