"""What each encoding of a group of matrices costs a trained language model: ours, and others that we decided against.

Every row changes one group alone and leaves the rest in float32. Beside our encodings stand alternating multi-bit codes
(Xu et al. 2018, arXiv 1802.00150) and product quantisation: one codebook of D columns and K entries per matrix, after
each row is divided by its deviation.

    python benchmarks/few_bits.py RUN [--groups gates cell embedding…] [--split NAME] [--data-dir DIR] [--json]
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from g2lstm.compression.spec import Spec, encode
from g2lstm.compression.targets import Target, find_targets
from g2lstm.runs.trained import load_as
from g2lstm.tasks.lm.evaluate import perplexity
from g2lstm.tasks.recipes import LM

OURS = (
    "int6", "int4", "int3", "int3,group:64", "int2", "int2,group:64", "levels:5", "levels:3", "bits:3", "bits:2",
    "bits:1.6", "bits:3,zipf", "bits:2,zipf", "bits:1.6,zipf", "svd:64,int4",
)  # fmt: skip


class Approximation(NamedTuple):
    """A matrix that is near another, and the bits that storing it takes."""

    values: Tensor
    bits: float


Method = Callable[[Tensor], Approximation]


def ours(text: str) -> Method:
    """An encoding of this package."""
    operations = Spec.parse(f"linear={text}").linear

    def apply(weights: Tensor) -> Approximation:
        encoding = encode(weights, operations)
        return Approximation(torch.from_numpy(encoding.decode()), 8 * encoding.stored_bytes)

    return apply


def multibit(count: int, group: int | None = None, rounds: int = 15) -> Method:
    """Each row or group of columns as a sum of `count` vectors of ±1, each times a float16 number of its own."""

    def apply(weights: Tensor) -> Approximation:
        parts = weights.split(group or weights.shape[1], dim=1)
        fitted = torch.cat([_fit_signs(part, count, rounds) for part in parts], dim=1)
        return Approximation(fitted, count * (weights.numel() + 16 * len(parts) * len(weights)))

    return apply


def _fit_signs(groups: Tensor, count: int, rounds: int) -> Tensor:
    """Fits numbers (n, count) to signs and signs to numbers in turn, starting greedily."""
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * count).view(-1, count)
    rest, numbers = groups.clone(), []
    for _ in range(count):
        numbers.append(rest.abs().mean(dim=1))
        rest -= numbers[-1].unsqueeze(1) * torch.where(rest >= 0, 1.0, -1.0)
    fitted = torch.stack(numbers, dim=1)
    for turn in range(rounds + 1):
        if turn == rounds:
            fitted = fitted.half().float()
        levels = fitted @ signs.t()
        chosen = signs[(groups.unsqueeze(-1) - levels.unsqueeze(1)).abs().argmin(-1)]
        if turn < rounds:
            square = chosen.mT @ chosen + 1e-4 * torch.eye(count)
            fitted = torch.linalg.solve(square, chosen.mT @ groups.unsqueeze(-1)).squeeze(-1)
    return (chosen @ fitted.unsqueeze(-1)).squeeze(-1)


def codebook(width: int, entries: int, rounds: int = 12) -> Method:
    """Neighbouring columns as the nearest entry of a codebook in float16, found by k-means."""

    def apply(weights: Tensor) -> Approximation:
        scales = weights.square().mean(dim=1, keepdim=True).sqrt().clamp_min(1e-8).half().float()
        padded = torch.nn.functional.pad(weights / scales, (0, -weights.shape[1] % width))
        points = padded.reshape(-1, width)
        generator = torch.Generator().manual_seed(0)
        book = points[torch.randperm(len(points), generator=generator)[:entries]].clone()
        for _ in range(rounds):
            nearest = _nearest(points, book)
            sums = torch.zeros_like(book).index_add_(0, nearest, points)
            counts = torch.bincount(nearest, minlength=len(book)).unsqueeze(1)
            book = torch.where(counts > 0, sums / counts.clamp_min(1), book)
        book = book.half().float()
        near = book[_nearest(points, book)].view_as(padded)[:, : weights.shape[1]] * scales
        bits = len(points) * math.log2(entries) + 16 * (book.numel() + len(weights))
        return Approximation(near, bits)

    return apply


def _nearest(points: Tensor, book: Tensor) -> Tensor:
    return torch.cat([torch.cdist(part, book).argmin(-1) for part in points.split(8192)])


METHODS: dict[str, Method] = {
    **{text: ours(text) for text in OURS},
    "multi-bit 2": multibit(2),
    "multi-bit 3": multibit(3),
    "multi-bit 2, group 64": multibit(2, 64),
    "codebook 4 x 256": codebook(4, 256),
    "codebook 2 x 64": codebook(2, 64),
}


def measure(targets: list[Target], method: Method, score: Callable[[], float]) -> dict[str, float]:
    """Bits per weight, the relative error, and the score with these matrices replaced; then they are restored."""
    kept = [target.values.clone() for target in targets]
    near = [method(values) for values in kept]
    try:
        for target, one in zip(targets, near, strict=True):
            target.values.copy_(one.values)
        found = score()
    finally:
        for target, values in zip(targets, kept, strict=True):
            target.values.copy_(values)
    squared = sum(float((one.values - values).square().sum()) for one, values in zip(near, kept, strict=True))
    return {
        "bits_per_weight": sum(one.bits for one in near) / sum(values.numel() for values in kept),
        "error": math.sqrt(squared / sum(float(values.square().sum()) for values in kept)),
        "perplexity": found,
    }


def main() -> None:
    """Measures every method for every group, and prints a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run of a language model that is not compressed")
    parser.add_argument("--groups", nargs="+", default=["gates", "cell", "embedding"], help="groups of matrices")
    parser.add_argument("--split", default="valid", help="the text to score")
    parser.add_argument("--tokens", type=int, help="score only so many tokens")
    parser.add_argument("--data-dir", type=Path, help="where data sets are")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), help="names as in the table, or specs")
    parser.add_argument("--json", action="store_true", help="for scripts")
    arguments = parser.parse_args()
    trained = load_as(LM, arguments.run)
    stream = trained.split(arguments.split, arguments.data_dir)
    tokens = stream.read(0, arguments.tokens or len(stream))

    @torch.no_grad()
    def score() -> float:
        return perplexity(trained.model, torch.from_numpy(tokens)).perplexity

    before, rows = score(), []
    found = find_targets(trained.model).matrices.values()
    for group in arguments.groups:
        targets = [target for target in found if target.group == group]
        for name in arguments.methods:
            row = measure(targets, METHODS.get(name) or ours(name), score)
            rows.append({"group": group, "method": name, **row, "change": row["perplexity"] / before - 1})
            if not arguments.json:
                print(rows[-1], flush=True)
    if arguments.json:
        print(json.dumps({"before": before, "rows": rows}))
        return
    table = Table("group", "method", "bits per weight", "relative error", "perplexity", "change", title=f"{before:.2f}")
    for row in sorted(rows, key=lambda row: (row["group"], row["bits_per_weight"])):
        numbers = f"{row['bits_per_weight']:.2f}", f"{row['error']:.3f}", f"{row['perplexity']:.2f}"
        table.add_row(row["group"], row["method"], *numbers, f"{row['change']:+.2%}")
    Console().print(table)


if __name__ == "__main__":
    main()
