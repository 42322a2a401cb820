"""Size, speed and quality of a trained language model's LSTM layers, compressed by g2lstm and in other runtimes.

python benchmarks/runtimes.py RUN [--rounds N] [--split NAME] [--tokens N] [--data-dir DIR] [--json]

With --picture NAME it also draws perplexity against the bytes of the layers' weights, as NAME.png.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from g2lstm.cli.bench import print_reports
from g2lstm.errors import G2Error
from g2lstm.lab.bench.infer import IN_C, PEERS, STEP_TIME, make_candidate, measure_candidates, missing_notes
from g2lstm.lab.bench.measure import Field, Report, Row
from g2lstm.lab.bench.peers import Runner, Vectors
from g2lstm.look.pictures.style import COLOURS, INK, new_figure, save, styled
from g2lstm.nn.record import lstms
from g2lstm.runs.compressed import silent
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


def draw(rows: Sequence[Row], out: Path) -> None:
    """Draws perplexity against the bytes of the layers, in each runtime and compressed."""
    with styled():
        figure = new_figure(7.2, 3.4)
        axes = figure.subplots()
        marks, colours = iter("osD^v"), iter(COLOURS)
        for row in rows:
            name, size, perplexity = (row[key] for key in ("name", "megabytes", "perplexity"))
            if size is None or name in IN_C:  # in C the weights are the same
                continue
            is_peer = name in PEERS
            look = {"color": INK, "markerfacecolor": "none"} if is_peer else {"color": next(colours)}
            axes.plot([size], [perplexity], next(marks) if is_peer else "o", markersize=9, label=name, **look)  # type: ignore[arg-type]
        axes.set(xlabel="MB of weights in the LSTM layers", ylabel="test perplexity")
        axes.set_xlim(left=0)
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, 0.98 * low), 1.03 * high)
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
    parser.add_argument("--picture", type=Path, help="NAME: also draw NAME.png and NAME.svg")
    parser.add_argument("--data-dir", type=Path, help="the folder that holds the named data sets")
    parser.add_argument("--json", action="store_true", help="for scripts")
    given = parser.parse_args()
    report = measure(given.run, given.rounds, given.data_dir, given.split, given.tokens)
    print_reports(given.json, report)
    if given.picture is not None:
        draw(report.rows, given.picture)


if __name__ == "__main__":
    main()
