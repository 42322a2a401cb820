"""What stands below a table about its runs: for how long each was trained, and on how much of the data."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from g2lstm.lab.study import results
from g2lstm.lab.study.plan import Plan, TablePlan


def training_notes(plan: TablePlan, runs: Sequence[Plan], out: Path) -> list[str]:
    """How long each row was trained, seed by seed, and on how much of the data if that was not all of it."""
    notes = []
    for series in dict.fromkeys(column.series for column in plan.columns):
        mine = [run for run in runs if run.series == series and run.row in plan.rows]
        if not mine:
            continue
        epochs: dict[str, list[str]] = {}
        shares: dict[str, list[str]] = {}
        for run in mine:
            row, path = plan.rows[run.row], out / run.name
            training = results.training_of(path)
            epochs.setdefault(row, []).append("none" if training is None else f"{training.epochs:.1f}")
            found = [results.measured(path, one) for one in run.measurements[:1]]
            shares.setdefault(row, []).extend(one["trained_on"] for one in found if one and "trained_on" in one)
        by_epochs: dict[str, list[str]] = {}
        for row, many in epochs.items():
            same = set(many)
            by_epochs.setdefault(same.pop() if len(same) == 1 else ", ".join(many), []).append(row)
        if set(by_epochs) != {"none"}:
            notes.append(f"Epochs of {mine[0].recipe}: {_by_rows(by_epochs, len(epochs))}.")
        by_share: dict[str, list[str]] = {}
        for row, said in shares.items():
            for share in dict.fromkeys(said):
                by_share.setdefault(share, []).append(row)
        notes += [
            f"{mine[0].recipe} was trained on {_by_rows({share: rows}, len(epochs))}."
            for share, rows in by_share.items()
        ]
    return notes


def _by_rows(rows: Mapping[str, Sequence[str]], number: int) -> str:
    """Such as "18.0 in LSTM / sharpened; none in G²", or "18.0 in every row" of that number of rows."""
    return "; ".join(
        f"{what} in {'every row' if len(names) == number else ' / '.join(names)}" for what, names in rows.items()
    )
