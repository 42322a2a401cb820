"""Measures up to how many sequences a compressed layer is faster when it reads packed, one after the other.

Each line is one layer and so many sequences, of one step (as a search for a translation makes) or of twenty; seconds of
both ways in interleaved rounds. `MOST_SEQUENCES` in g2lstm/compression/lstm.py rests on it.

    python benchmarks/packed_rows.py [--rounds 30] [--threads 1]
"""

import argparse
from functools import partial

import torch
from torch import Tensor

import g2lstm
from g2lstm.compression import lstm
from g2lstm.lab.bench.measure import interleaved, timings

WIDTHS, STEPS, SEQUENCES = (256, 512), (1, 20), (1, 2, 5, 8)
SPECS = ("gates=round:0.2,clip:0.4; cell=int4", "gates=int8; cell=int8", "gates=round:0.2", "gates=svd:32; cell=svd:32")


def _run(layer: lstm.CompressedLSTM, x: Tensor, packed: bool) -> None:
    layer.reads_packed = packed
    with torch.no_grad():
        layer(x)


def main() -> None:
    """Prints a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    lstm.MOST_SEQUENCES = max(SEQUENCES)
    print("width  steps  sequences  packed µs  unpacked µs  ratio  spec")
    for width in WIDTHS:
        for spec in SPECS:
            layer = g2lstm.compress(torch.nn.LSTM(width, width), spec)
            assert isinstance(layer, lstm.CompressedLSTM)
            layer.is_coded = True  # so that all specs are read packed
            for steps in STEPS:
                for sequences in SEQUENCES:
                    x = torch.rand(steps, sequences, width) * 2 - 1
                    ways = {name: partial(_run, layer, x, name == "packed") for name in ("packed", "unpacked")}
                    took = interleaved(ways, arguments.rounds, fill=0)
                    found = timings(took, "unpacked")
                    packed, unpacked = (1e6 * each.seconds for each in found.values())
                    ratio = found["packed"].ratio
                    print(
                        f"{width:5}{steps:7}{sequences:11}{packed:11,.0f}{unpacked:13,.0f}{ratio:7.2f}  {spec}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
