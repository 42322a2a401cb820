"""How small the paper's 24M language model gets, and how long that takes; with random weights, so that none is needed.

Weights are normal of deviation 0.2, as spread as trained ones, so that rounding finds all its levels in use.

    python benchmarks/compress_24m.py [SPEC…] [--json]
"""

import argparse
import json
import math
import time

import torch
from rich.console import Console
from rich.table import Table

from g2lstm.compression import storage
from g2lstm.compression.model import compress, encoded_matrices
from g2lstm.compression.spec import Spec
from g2lstm.compression.targets import find_targets
from g2lstm.tasks.lm.model import LanguageModel

SPECS = ("small", "gates=round:0.2,clip:0.4", "gates=svd:64")


def measure(model: LanguageModel, text: str) -> dict[str, float | str]:
    """Seconds, and bytes of the file and of the gates, before and after one compression."""
    start = time.perf_counter()
    small = compress(model, text)
    seconds = time.perf_counter() - start
    matrices, targets = encoded_matrices(small), find_targets(model).matrices
    gates = [matrices[name] for name, target in targets.items() if target.group == "gates"]
    return {
        "spec": text,
        "seconds": seconds,
        "file_before": sum(4 * parameter.numel() for parameter in model.parameters()),
        "file_after": len(storage.save(matrices, dict(small.named_parameters()), Spec.parse(text), {})),
        "gates_before": sum(4 * math.prod(matrix.shape) for matrix in gates),
        "gates_after": sum(matrix.stored_bytes for matrix in gates),
    }


def main() -> None:
    """Measures each spec, and prints a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="*", default=SPECS, help="compression specs or presets")
    parser.add_argument("--json", action="store_true", help="for scripts")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = LanguageModel(10_000)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, 0.2)
    rows = [measure(model, spec) for spec in arguments.specs]
    if arguments.json:
        print(json.dumps(rows))
        return
    table = Table("spec", "seconds", "file, MB", "", "gates, MB", "", "bits per gate weight")
    for row in rows:
        before, after, gates_before, gates_after = (
            float(row[name]) for name in ("file_before", "file_after", "gates_before", "gates_after")
        )
        table.add_row(
            str(row["spec"]),
            f"{row['seconds']:.1f}",
            f"{before / 1e6:.1f} → {after / 1e6:.1f}",
            f"1/{before / after:.2f}",
            f"{gates_before / 1e6:.1f} → {gates_after / 1e6:.1f}",
            f"1/{gates_before / gates_after:.2f}",
            f"{32 * gates_after / gates_before:.3f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
