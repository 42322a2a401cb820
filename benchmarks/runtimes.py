"""Size, speed and quality of a trained language model's LSTM layers, compressed by g2lstm and in other runtimes.

python benchmarks/runtimes.py RUN [--rounds N] [--split NAME] [--data-dir DIR] [--json]
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from g2lstm.cli.bench import print_reports
from g2lstm.errors import G2Error
from g2lstm.lab.bench.infer import STEP_TIME, make_candidate, measure_candidates, missing_notes
from g2lstm.lab.bench.measure import Field, Report, Row
from g2lstm.lab.bench.peers import Runner, Vectors
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


def main() -> None:
    """Measures, and prints a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run of a language model that is not compressed")
    parser.add_argument("--rounds", type=int, default=15, help="the number of interleaved rounds")
    parser.add_argument("--split", default="test", help="the split to read: valid, test or train")
    parser.add_argument("--data-dir", type=Path, help="the folder that holds the named data sets")
    parser.add_argument("--json", action="store_true", help="for scripts")
    given = parser.parse_args()
    print_reports(given.json, measure(given.run, given.rounds, given.data_dir, given.split))


if __name__ == "__main__":
    main()
