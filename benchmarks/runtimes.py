"""Size, speed and quality of a trained language model's LSTM layers, compressed by g2lstm and in other runtimes.

python benchmarks/runtimes.py RUN [--rounds N] [--split NAME] [--tokens N] [--data-dir DIR] [--json]
python benchmarks/runtimes.py RUN --tokens 1000000 --compressed RUN+small RUN+tiny --picture docs/images/bytes

The second draws perplexity against the bytes of whole files: in other runtimes the layers take fewer bytes and the rest
stays as it is; of our compressed runs it takes the files and the scores that `g2lstm compress` reported.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from g2lstm.cli.bench import print_reports
from g2lstm.errors import G2Error
from g2lstm.lab.bench.infer import PEERS, STEP_TIME, make_candidate, measure_candidates, missing_notes
from g2lstm.lab.bench.measure import Field, Report, Row
from g2lstm.lab.bench.peers import Runner, Vectors
from g2lstm.look.pictures.style import COLOURS, INK, new_figure, save, styled
from g2lstm.nn.record import lstms
from g2lstm.runs.compressed import silent
from g2lstm.runs.directory import RunDirectory
from g2lstm.runs.trained import load_as
from g2lstm.tasks.lm.evaluate import score
from g2lstm.tasks.recipes import LM

TOKENS = 20_000  # to predict


def measure(
    run: Path,
    rounds: int = 15,
    data_dir: Path | None = None,
    split: str = "test",
    tokens: int = TOKENS,
) -> Report:
    """Size, speed and quality of an uncompressed language model's LSTM layers in every runtime.

    Each candidate reads the same tokens, the first of the split, one at a time, with the model's own embedding and
    softmax. It is then timed, layer by layer, on what it read.
    """
    trained = load_as(LM, run)
    if trained.run.compression is not None:
        raise G2Error(f"{run} is already compressed; use the run that it was made from")
    model = trained.model
    text = torch.from_numpy(trained.split(split, data_dir).read(0, tokens + 1))
    plain = [layer.to_lstm().eval().requires_grad_(False) for layer in lstms(model)]
    embedded = model.embedding(text[:-1]).detach().numpy()

    @torch.no_grad()
    def make(name: str) -> tuple[Runner, Row]:
        layers, inputs, size = [], embedded, 0
        for lstm in plain:
            layer, own = make_candidate(name, lstm, inputs)
            size += own
            layers.append(layer)
            inputs = np.stack([layer(1).copy() for _ in range(len(inputs))])
        losses = model.token_losses(torch.from_numpy(inputs), text[1:])

        def together(number: int) -> Vectors:
            return [layer(number) for layer in layers][-1]

        return together, {"megabytes": size / 1e6, "perplexity": score([-losses]).perplexity}

    count = len(text) - 1
    empty = {"megabytes": None, "perplexity": None, "tokens": count}
    rows = measure_candidates(make, empty, rounds, silent)
    title = f"LSTM layers of {run}, batch 1, {torch.get_num_threads()} threads, {count:,} tokens of {split}"
    size, quality = Field("megabytes", "MB of weights", ".2f"), Field("perplexity", "perplexity", ".2f")
    return Report(title, (Field("name", "candidate"), size, *STEP_TIME, quality), rows, missing_notes(rows))


def draw(run: Path, rows: list[Row], compressed: list[Path], out: Path) -> None:
    """Draws perplexity against the bytes of the whole model, in each runtime and compressed."""
    layers = {str(row["name"]): row for row in rows if row["megabytes"] is not None}
    whole = RunDirectory(run).model_file.stat().st_size / 1e6
    rest = whole - layers["torch.nn.LSTM float32"]["megabytes"]  # type: ignore[operator]
    points = {name: (rest + row["megabytes"], row["perplexity"]) for name, row in layers.items() if name in PEERS}  # type: ignore[operator]
    ours = {}
    for path in compressed:
        report = RunDirectory(path).compression_report()
        if report is None or report.score is None:
            raise G2Error(f"{path} has no score from `g2lstm compress`; compress it again without --no-score")
        ours[f"g2lstm {path.name.partition('+')[2]}"] = report.file.after / 1e6, report.score.after
    with styled():
        figure = new_figure(6.8, 3.4)
        axes = figure.subplots()
        for (name, place), mark in zip(points.items(), "osD^", strict=False):
            axes.plot(*([each] for each in place), mark, color=INK, markerfacecolor="none", markersize=8, label=name)
        for index, ((name, place), mark) in enumerate(zip(ours.items(), "oDsv", strict=False)):
            axes.plot(*([each] for each in place), mark, color=COLOURS[index], markersize=9, label=name)
        axes.set(xlabel="MB of the whole model", ylabel="test perplexity")
        axes.set_xscale("log")
        axes.set_xticks(ticks := [tick for tick in (0.5, 1, 2, 5, 10, 20, 50) if tick < 1.2 * whole], map(str, ticks))
        axes.minorticks_off()
        middle = points["torch.nn.LSTM float32"][1]
        values = [place[1] for place in (points | ours).values()]
        axes.set_ylim(min(0.97 * middle, 0.99 * min(values)), max(1.1 * middle, 1.01 * max(values)))
        axes.grid(axis="y")
        figure.legend(loc="outside right center")
    save(figure, out)


def main() -> None:
    """Measures, and prints a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run of a language model that is not compressed")
    parser.add_argument("--rounds", type=int, default=15, help="the number of interleaved rounds")
    parser.add_argument("--split", default="test", help="the split to read: valid, test or train")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="the number of tokens to predict")
    parser.add_argument("--compressed", type=Path, nargs="*", default=[], help="runs to draw too")
    parser.add_argument("--picture", type=Path, help="NAME: draw NAME.png and NAME.svg")
    parser.add_argument("--data-dir", type=Path, help="the folder that holds the named data sets")
    parser.add_argument("--json", action="store_true", help="for scripts")
    given = parser.parse_args()
    report = measure(given.run, given.rounds, given.data_dir, given.split, given.tokens)
    print_reports(given.json, report)
    if given.picture is not None:
        draw(given.run, list(report.rows), given.compressed, given.picture)


if __name__ == "__main__":
    main()
