"""`g2lstm demo`: the three training methods on a task whose ideal gates are 0 and 1, compared in a table."""

from typing import Annotated, NamedTuple

import torch
import typer
from rich.progress import Progress, TaskID
from rich.table import Table
from torch import Tensor, nn

from g2lstm.cli.output import console, error_console, progress_columns
from g2lstm.nn.lstm import G2LSTM

SYMBOLS, HIDDEN, STEPS_OF_TIME, BATCH = 8, 48, 60, 64
METHODS = {"sigmoid": "LSTM (baseline)", "sharpened": "sharpened sigmoid", "gumbel": "G² (Gumbel gates)"}


class Latch(nn.Module):
    """Says at each step which symbol was marked last: the memory must be written at a mark, and kept between."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2 * SYMBOLS, HIDDEN)
        self.lstm = G2LSTM(HIDDEN, HIDDEN, method=method)
        self.head = nn.Linear(HIDDEN, SYMBOLS)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (T, B) to scores (T, B, SYMBOLS)."""
        scores: Tensor = self.head(self.lstm(self.embedding(tokens))[0])
        return scores


class Result(NamedTuple):
    """What the table shows of one method."""

    accuracy: float
    hard_accuracy: float
    rounded_accuracy: float
    saturated: float


def draw_batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens (T, B), symbol or marked symbol; and the symbol marked last, which is marked at the first step."""
    symbols = torch.randint(SYMBOLS, (STEPS_OF_TIME, BATCH), generator=generator)
    marked = torch.rand(STEPS_OF_TIME, BATCH, generator=generator) < 0.1
    marked[0] = True
    last = torch.where(marked, torch.arange(STEPS_OF_TIME).unsqueeze(1), 0).cummax(0).values
    return symbols + SYMBOLS * marked, symbols.gather(0, last)


def train_and_test(method: str, steps: int, progress: Progress, task: TaskID) -> Result:
    """Trains one method on fresh batches and tests it on others."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = Latch(method)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        tokens, targets = draw_batch(generator)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        progress.advance(task)
    return _test(model.eval(), [draw_batch(generator) for _ in range(20)])


@torch.no_grad()
def _test(model: Latch, batches: list[tuple[Tensor, Tensor]]) -> Result:
    def accuracy() -> float:
        return sum((model(x).argmax(-1) == y).float().mean().item() for x, y in batches) / len(batches)

    soft = accuracy()
    _, _, gates = model.lstm(model.embedding(batches[0][0]), return_gates=True)
    values = torch.cat([gates.input[0], gates.forget[0]])
    saturated = ((values < 0.1) | (values > 0.9)).float().mean().item()
    model.lstm.eval_gate = "hard"
    hard = accuracy()
    model.lstm.eval_gate = "soft"
    for name in ("weight_ih_l0", "weight_hh_l0"):
        gate_rows = model.lstm.get_parameter(name)[: 2 * HIDDEN]
        gate_rows.copy_((gate_rows / 0.5).round().mul(0.5).clamp(-1, 1))  # the paper's round and clip for translation
    return Result(soft, hard, accuracy(), saturated)


def demo(
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each method.")] = 600,
) -> None:
    """Trains the three methods on a small task and compares them: accuracy, hard and rounded gates, saturation.

    The task: symbols go by, some are marked; say at each step which was marked last. A memory for that needs gates that
    are fully open or fully shut.
    """
    with Progress(*progress_columns(), console=error_console(), transient=True) as progress:
        task = progress.add_task("training", total=steps * len(METHODS))
        results = {method: train_and_test(method, steps, progress, task) for method in METHODS}
    table = Table(title=f"Remember the marked symbol: {steps} steps, {HIDDEN} units, seed 0")
    for heading in ("trained as", "accuracy", "hard gates", "gates rounded to 5 values", "gates beyond 0.1/0.9"):
        table.add_column(heading, justify="left" if heading == "trained as" else "right")
    for method, result in results.items():
        table.add_row(METHODS[method], *(f"{value:.1%}" for value in result))
    console().print(table)
    console().print(
        "Measured just now, in evaluation mode. In your own script: [bold]g2lstm.convert_(model)[/] before training, "
        "[bold]g2lstm.freeze_(model)[/] after."
    )
