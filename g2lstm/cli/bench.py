"""`g2lstm bench`: measurements against named peers."""

import json
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.progress import Progress
from rich.table import Table

from g2lstm.cli.bench_gates import gates
from g2lstm.cli.options import DataDir, Json
from g2lstm.cli.output import console, error_console, progress_columns
from g2lstm.errors import G2Error
from g2lstm.lab.bench import layer as layer_bench

TaskName = Annotated[str, typer.Option("--task", help="lm or mt.")]

app = typer.Typer(help="Measure speed and memory against named peers, interleaved in one run.", no_args_is_help=True)
app.command()(gates)


@app.callback()
def _bench() -> None:
    """Measure speed and memory against named peers, interleaved in one run."""


def _parse_shape(text: str) -> tuple[int, int, int, int]:
    try:
        T, B, I, H = (int(part) for part in text.split(","))
        if min(T, B, I, H) < 1:
            raise ValueError
    except ValueError:
        raise G2Error(f"a shape is four whole numbers above 0, T,B,I,H such as 35,20,200,200; got {text!r}") from None
    return T, B, I, H


@app.command()
def layer(
    shape: Annotated[list[str] | None, typer.Option(help="T,B,I,H; may be given several times.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds at least; medians are shown.")] = 11,
    as_json: Json = False,
) -> None:
    """One layer: a training step and an evaluation of each backend against torch.nn.LSTM."""
    shapes = tuple(_parse_shape(text) for text in shape) if shape else layer_bench.SHAPES
    rows = []
    with Progress(*progress_columns(), console=error_console(), transient=True) as progress:
        task = progress.add_task("measuring", total=len(shapes) * (len(layer_bench.BACKENDS) + 3))
        for row in layer_bench.measure(shapes, rounds):
            rows.append(row)
            progress.advance(task)
    if as_json:
        print(json.dumps({"threads": torch.get_num_threads(), "rows": [row._asdict() for row in rows]}))
        return
    table = Table(title=f"one layer, float32, {torch.get_num_threads()} threads, median of {rounds} rounds or more")
    for heading in ("T,B,I,H", "what", "layer", "ms", "ratio", "GFLOP/s", "of GEMM peak", "peak MB", "memory ratio"):
        table.add_column(heading, justify="left" if heading in ("what", "layer") else "right")
    for row in rows:
        memory = ("", "") if row.megabytes is None else (f"{row.megabytes:.0f}", f"{row.memory_ratio:.2f}")
        table.add_row(
            ",".join(map(str, row.shape)), row.what, row.name, f"{row.milliseconds:.1f}", f"{row.ratio:.2f}",
            f"{row.gflops:.0f}", f"{row.share_of_peak:.0%}", *memory,
            end_section=row.what == "eval" and row.name == "auto",
        )  # fmt: skip
    console().print(table)


@app.command()
def train(
    task: TaskName = "lm",
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds at least; medians are shown.")] = 7,
    as_json: Json = False,
) -> None:
    """A training step of the paper's models: lm, the 24M one against torch.nn.LSTM; mt, IWSLT'14's against loops."""
    if _checked(task) == "mt":
        _train_mt(rounds, as_json)
        return
    from g2lstm.lab.bench import train as train_bench

    rows = []
    with Progress(*progress_columns(), console=error_console(), transient=True) as progress:
        bar = progress.add_task("measuring", total=len(train_bench.CONTESTANTS))
        for row in train_bench.measure(rounds):
            rows.append(row)
            progress.advance(bar)
    if as_json:
        print(json.dumps({"threads": torch.get_num_threads(), "rows": [row._asdict() for row in rows]}))
        return
    threads = torch.get_num_threads()
    title = f"24M language model, batch 20, 70 steps, gumbel, {threads} threads, median of {rounds} rounds or more"
    table = Table(title=title)
    for heading in ("model", "ms", "ratio", "tokens/s", "peak MB", "memory ratio"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for row in rows:
        memory = ("", "") if row.megabytes is None else (f"{row.megabytes:.0f}", f"{row.memory_ratio:.2f}")
        table.add_row(row.name, f"{row.milliseconds:.0f}", f"{row.ratio:.2f}", f"{row.tokens_per_second:,.0f}", *memory)
    console().print(table)


def _train_mt(rounds: int, as_json: bool) -> None:
    from g2lstm.lab.bench import train_mt

    rows = list(train_mt.measure(rounds))
    threads = torch.get_num_threads()
    if as_json:
        print(json.dumps({"threads": threads, "rows": [row._asdict() for row in rows]}))
        return
    title = f"IWSLT'14 model, batch {train_mt.BATCH}, gumbel, {threads} threads, median of {rounds} rounds or more"
    table = Table("decoder", "ms", "times ours", "tokens/s", title=title)
    for row in rows:
        table.add_row(row.name, f"{row.milliseconds:.0f}", f"{row.ratio:.2f}", f"{row.tokens_per_second:,.0f}")
    console().print(table)


@app.command()
def infer(
    run: Annotated[Path | None, typer.Argument(help="A run directory; none for stacks of LSTM layers.")] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Interleaved rounds, whose median is shown; 15, or 5 of translation.")
    ] = None,
    task: Annotated[str | None, typer.Option("--task", help="lm or mt: what RUN must be, if given.")] = None,
    split: Annotated[str, typer.Option(help="valid, test or train, of a run.")] = "test",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """A step of LSTM stacks at batch 1 against other runtimes; of a RUN, what it gains in use.

    Of a language model: size, speed and perplexity of its LSTM layers, compressed by us and run by others. Of one that
    translates: how many sentences a second.
    """
    if run is None:
        _infer_stacks(rounds or 15, as_json)
        return
    from g2lstm.runs.directory import RunDirectory

    found = RunDirectory.open(run, task=None if task is None else _checked(task))
    if found.recipe.task == "lm":
        _infer_lm(run, rounds or 15, split, data_dir, as_json)
    else:
        _infer_mt(run, rounds or 5, split, data_dir, as_json)


def _infer_lm(run: Path, rounds: int, split: str, data_dir: Path | None, as_json: bool) -> None:
    from g2lstm.lab.bench import infer_lm
    from g2lstm.lab.bench.infer import CONTESTANTS

    with Progress(*progress_columns(), console=error_console(), transient=True) as progress:
        bar = progress.add_task("reading", total=len(CONTESTANTS))
        rows = list(infer_lm.measure(run, rounds, data_dir, split, advance=lambda: progress.advance(bar)))
    threads = torch.get_num_threads()
    if as_json:
        print(json.dumps({"threads": threads, "rows": [row._asdict() for row in rows]}))
        return
    table = Table(title=f"LSTM layers of {run}, batch 1, {threads} threads, {rows[0].tokens:,} tokens of {split}")
    for heading in ("how", "MB of weights", "µs a step", "times the fastest peer", "perplexity"):
        table.add_column(heading, justify="left" if heading == "how" else "right")
    for row in rows:
        numbers = (row.megabytes, row.microseconds, row.ratio, row.perplexity)
        shown = ["-" if number is None else f"{number:,.2f}" for number in numbers]
        table.add_row(f"{row.name}: {row.missing}" if row.missing else row.name, *shown)
    console().print(table)


def _infer_mt(run: Path, rounds: int, split: str, data_dir: Path | None, as_json: bool) -> None:
    from g2lstm.lab.bench import infer_mt

    rows = list(infer_mt.measure(run, rounds, data_dir, split))
    threads = torch.get_num_threads()
    if as_json:
        print(json.dumps({"threads": threads, "rows": [row._asdict() for row in rows]}))
        return
    table = Table(
        "search",
        "sentences",
        "seconds",
        "sentences/s",
        title=f"{run}, {split}, {threads} threads, median of {rounds} rounds or more",
    )
    for row in rows:
        table.add_row(row.name, f"{row.sentences:,}", f"{row.seconds:.2f}", f"{row.sentences_per_second:.0f}")
    console().print(table)


def _infer_stacks(rounds: int, as_json: bool) -> None:
    from g2lstm.lab.bench import infer as infer_bench
    from g2lstm.nn.kernel import find

    with Progress(*progress_columns(), console=error_console(), transient=True) as progress:
        bar = progress.add_task("measuring", total=len(infer_bench.STACKS) * rounds)
        rows = list(infer_bench.measure(rounds, infer_bench.STACKS, lambda: progress.advance(bar)))
    threads, kernel = torch.get_num_threads(), find().description
    if as_json:
        print(json.dumps({"threads": threads, "kernel": kernel, "rows": [row._asdict() for row in rows]}))
        return
    table = Table(title=f"one step, batch 1, {threads} threads, median of {rounds} rounds, kernel {kernel}")
    for heading in ("stack", "how", "µs", "times the fastest peer", "MB in a file"):
        table.add_column(heading, justify="left" if heading in ("stack", "how") else "right")
    for row in rows:
        name = f"{row.name}: {row.missing}" if row.missing else row.name
        time = "-" if row.microseconds is None else f"{row.microseconds:,.1f}"
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        size = "" if row.stored_bytes is None else f"{row.stored_bytes / 1e6:.2f}"
        table.add_row(row.stack, name, time, ratio, size, end_section=row.name == infer_bench.CONTESTANTS[-1])
    console().print(table)


def _checked(task: str) -> str:
    if task not in ("lm", "mt"):
        raise G2Error(f"--task must be lm or mt, got {task!r}")
    return task


@app.command()
def data(
    tokens: Annotated[
        list[str] | None, typer.Option(help="Of a text, such as 100M; may be given several times.")
    ] = None,
    pairs: Annotated[list[str] | None, typer.Option(help="Of sentences, such as 4.5M; also several times.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Of training, spread over the whole text.")] = 300,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that prepare; as many as there are cores.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Time and memory of preparing synthetic texts, large and small, and of training on them."""
    from g2lstm.lab.bench import data as data_bench

    sizes = [("lm", _parse_size(size)) for size in tokens or []] + [("mt", _parse_size(size)) for size in pairs or []]
    rows = []
    for task, size in sizes or [("lm", 40_000), ("lm", 4_000_000)]:
        rows.append(data_bench.measure(task, size, steps, workers))
    if as_json:
        print(json.dumps({"rows": [row._asdict() for row in rows]}))
        return
    table = Table(title=f"prepare and train {steps} steps; memory in MB, above that of the process at its start")
    for heading in ("text", "MB", "prepare s", "tokens/s", "peak", "workers' peak", "train tokens/s", "peak"):
        table.add_column(heading, justify="right")
    for row in rows:
        peaks = (row.prepare_megabytes, row.workers_megabytes, row.train_megabytes)
        prepare, others, train = ("" if peak is None else f"{peak:.0f}" for peak in peaks)
        table.add_row(
            f"{row.size:,} {'tokens' if row.task == 'lm' else 'pairs'}", f"{row.text_megabytes:.0f}",
            f"{row.prepare_seconds:.0f}", f"{row.prepare_tokens_per_second:,.0f}", prepare, others,
            f"{row.train_tokens_per_second:,.0f}", train,
        )  # fmt: skip
    console().print(table)


def _parse_size(text: str) -> int:
    number, factor = (text[:-1], {"k": 1e3, "M": 1e6}[text[-1]]) if text[-1:] in ("k", "M") else (text, 1)
    try:
        size = round(float(number) * factor)
    except (ValueError, OverflowError):
        size = 0
    if not 10_000 <= size <= 10**10:
        raise G2Error(f"a size is a number from 10k on, such as 45k, 4.5M or 100M, got {text!r}")
    return size
