"""Size, speed and output of three models: in float32, after torch's quantize_dynamic, and compressed by g2lstm.

Every model reads one sequence, step by step, keeping its state, on one thread. The deviation is the root mean square of
the difference from the float32 outputs, relative to that of the outputs. Weights are random: what a trained model loses
is in docs/results.md.

    python benchmarks/quantize_dynamic.py [--steps N] [--json]
"""

import argparse
import io
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import g2lstm

Step = Callable[[int], Tensor]  # the output at the step of this number


class Network(nn.Module):
    """An LSTM or GRU with an input of vectors or tokens, and a linear output."""

    def __init__(self, recurrent: nn.Module, outputs: int, tokens: int = 0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, recurrent.input_size) if tokens else nn.Identity()
        self.recurrent = recurrent
        self.output = nn.Linear(recurrent.hidden_size, outputs)

    def forward(self, x: Tensor, state: object = None) -> tuple[Tensor, object]:
        """One or more steps."""
        out, state = self.recurrent(self.embedding(x), state)
        return self.output(out), state


MODELS = {
    "keyword spotter: LSTM 40 → 128, 12 classes": (lambda: Network(nn.LSTM(40, 128), 12), 40),
    "noise filter: GRU 64 → 256 × 2, 64 outputs": (lambda: Network(nn.GRU(64, 256, 2), 64), 64),
    "word model: embedding 10,000 × 256, LSTM 512 × 2": (lambda: Network(nn.LSTM(256, 512, 2), 10_000, 10_000), 0),
}


def stepper(model: nn.Module, inputs: Tensor) -> Step:
    """Steps a model of torch."""
    state: object = None

    @torch.inference_mode()
    def step(number: int) -> Tensor:
        nonlocal state
        out, state = model(inputs[number][None, None], state)
        return out[0, 0]

    return step


def session_stepper(model: nn.Module, inputs: Tensor) -> Step:
    """Steps a session on packed weights."""
    session = g2lstm.stream(model)
    return lambda number: torch.as_tensor(session.step(inputs[number]))


def saved_size(model: nn.Module, folder: Path) -> int:
    """Of a file: torch's own if torch quantised it, else ours."""
    if any("quantized" in type(module).__module__ for module in model.modules()):
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)  # noqa: TID251  # as those who use it do
        return buffer.tell()
    if any(type(module).__module__.startswith("g2lstm") for module in model.modules()):
        g2lstm.save(model, folder / "model.safetensors")
        return (folder / "model.safetensors").stat().st_size
    return sum(parameter.nbytes for parameter in model.parameters())


def measure(name: str, steps: int) -> list[dict[str, object]]:
    """A row for each version of one model; their blocks of steps are timed in turns."""
    make, width = MODELS[name]
    torch.manual_seed(1)
    model = make().eval()
    inputs = torch.randn(steps, width) if width else torch.randint(10_000, (steps,))
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.LSTM, nn.GRU, nn.Linear}, dtype=torch.qint8)
    versions = {"float32": model, "quantize_dynamic": quantised}
    versions |= {f"g2lstm {spec}": g2lstm.compress(model, spec) for spec in ("int8", "int4")}
    made = {
        key: (session_stepper if key.startswith("g2lstm") else stepper)(each, inputs) for key, each in versions.items()
    }
    outputs: dict[str, list[Tensor]] = {key: [] for key in made}
    times: dict[str, list[float]] = {key: [] for key in made}
    block = max(steps // 20, 1)
    for start in range(0, steps, block):
        for key, step in made.items():
            begin = time.perf_counter()
            outputs[key] += [step(number) for number in range(start, min(start + block, steps))]
            times[key].append((time.perf_counter() - begin) / (min(start + block, steps) - start))
    exact = torch.stack([one.flatten() for one in outputs["float32"]])
    rows = []
    with TemporaryDirectory() as folder:
        for key, each in versions.items():
            off = torch.stack([one.flatten() for one in outputs[key]]) - exact
            rows.append(
                {
                    "model": name,
                    "version": key,
                    "bytes": saved_size(each, Path(folder)),
                    "microseconds": 1e6 * float(np.median(times[key])),
                    "deviation": (off.square().mean() / exact.square().mean()).sqrt().item(),
                }
            )
    return rows


def main() -> None:
    """Prints a table, or one object per line."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--steps", type=int, default=2000)
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=r"compression changes|(?s:.*)deprecated")
    for name in MODELS:
        rows = measure(name, options.steps)
        if options.json:
            print(*map(json.dumps, rows), sep="\n", flush=True)
            continue
        table = Table("version", "kB", "µs per step", "deviation", title=name, title_justify="left")
        for row in rows:
            numbers = (f"{row['bytes'] / 1e3:,.0f}", f"{row['microseconds']:,.1f}", f"{row['deviation']:.2%}")
            table.add_row(row["version"], *numbers)
        Console().print(table)


if __name__ == "__main__":
    main()
