"""Tables over run directories that were written by hand: means, deviations, differences, comparisons, forms."""

import json
import shutil
import statistics
from dataclasses import replace

import numpy as np
import pytest

from g2lstm.lab.study import results
from g2lstm.lab.study.plan import Column, Measurement, PlannedTable, methods_with_seeds
from g2lstm.lab.study.significance import Term, bootstrap, perplexity_of
from g2lstm.lab.study.table import LEAST, build, signed

SVD = Measurement(compression="gates=svd:2")
COLUMNS = (
    Column("test", "ptb-small", paper={"sigmoid": 58.8, "gumbel": 58.2}, digits=1),
    Column("svd 2", "ptb-small", SVD, against=Measurement(), paper={"gumbel": 1.2}),
    Column("saturated", "ptb-small", what="saturation"),
    Column("valid", "ptb-small", Measurement("valid")),
)
PLAN = PlannedTable("A table", {"sigmoid": "LSTM", "gumbel": "G²"}, COLUMNS, (("gumbel", "sigmoid"),), ("A note.",))
ONE = replace(PLAN, columns=COLUMNS[:1])
RUNS = methods_with_seeds("ptb-small", COLUMNS, seeds=2)


def losses(seed, mean, sentences):
    generator = np.random.default_rng(seed)
    tokens = generator.integers(3, 30, sentences)
    return [[round(float(n * mean + generator.normal()), 4), int(n)] for n in tokens]


def result(seed, mean, *, sentences=60, **more):
    rows = losses(seed, mean, sentences)
    nats, tokens = np.sum(rows, axis=0)
    return {
        "perplexity": float(np.exp(nats / tokens)),
        "signature": f"s{seed}",
        "split": "test",
        "eval_gate": "soft",
        "data": "x/0",
        **more,
        "by_sentence": rows,
    }


@pytest.fixture
def out(tmp_path):
    means = {"sigmoid": 4.5, "gumbel": 4.4, "sharpened": 4.6}
    for run in RUNS:
        path = tmp_path / run.name
        mean = means[run.row] + 0.02 * run.seed
        results.keep(path, Measurement(), result(7, mean, trained_on="9 of about 10 pairs"))
        results.write(path, "training.json", {"epochs": 18.75, "seconds": 60.0, "step": 5})
        if (run.row, run.seed) != ("sigmoid", 2):
            results.keep(path, SVD, result(7, mean + 0.05, signature="s7|compressed:x"))
        place = {"step": 1, "tokens": 1, "seconds": 1.0}
        lines = [
            {"kind": "valid", **place, "loss": 3.0, "saturation/a/input": 0.9, "saturation/a/forget": 0.9},
            {"kind": "valid", **place, "loss": 2.0, "saturation/a/input": 0.2, "saturation/a/forget": 0.4},
            {"kind": "train", **place, "loss": 1.0},
        ]
        (path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return tmp_path


def scores(out, row, measurement):
    found = [results.measured(out / run.name, measurement) for run in RUNS if run.row == row]
    return [one.score for one in found if one]


def test_cells_are_means_and_deviations_over_seeds(out):
    table = build(PLAN, RUNS, out)
    assert table.headings == ("test", "svd 2", "saturated", "valid")
    assert [name for name, _ in table.rows] == ["LSTM", "  paper", "G²", "  paper"]
    ours = scores(out, "gumbel", Measurement())
    test, svd, saturated, valid = table.rows[2][1]
    assert test.values == tuple(ours)
    assert test.text == f"{statistics.fmean(ours):.2f} ± {statistics.stdev(ours):.2f}"
    differences = [b - a for a, b in zip(ours, scores(out, "gumbel", SVD), strict=True)]
    assert svd.values == pytest.approx(differences)
    assert svd.text == f"+{statistics.fmean(differences):.2f} ± {statistics.stdev(differences):.2f}"
    assert saturated.text == "30% ± 0%", "of the best validation"
    assert valid.text == "-"


def test_what_is_missing_is_said(out):
    table = build(PLAN, RUNS, out)
    assert table.rows[0][1][1].text.endswith("(1 of 2)")
    assert len(table.rows[0][1][1].values) == 1


def test_the_papers_figures_stand_below(out):
    table = build(PLAN, RUNS, out)
    assert [cell.text for cell in table.rows[1][1]] == ["58.8", "", "", ""]
    assert [cell.text for cell in table.rows[3][1]] == ["58.2", "+1.20", "", ""]


def test_comparisons_are_bootstraps_over_the_same_sentences(out):
    table = build(PLAN, RUNS, out)
    assert [(one.rows, one.column) for one in table.comparisons] == [
        (("G²", "LSTM"), "test"),
        (("G²", "LSTM"), "svd 2"),
    ]
    by_run = {
        (run.row, run.seed, way): results.measured(out / run.name, way) for run in RUNS for way in (Measurement(), SVD)
    }

    def rows(row, way, seeds):
        return [by_run[row, seed, way].sums for seed in seeds]

    plain = [Term(1, rows("gumbel", Measurement(), (1, 2))), Term(-1, rows("sigmoid", Measurement(), (1, 2)))]
    assert table.comparisons[0].difference == bootstrap(plain, perplexity_of, block=3)
    twice = [  # of the seeds that both have
        Term(1, rows("gumbel", SVD, (1,))), Term(-1, rows("sigmoid", SVD, (1,))),
        Term(-1, rows("gumbel", Measurement(), (1,))), Term(1, rows("sigmoid", Measurement(), (1,))),
    ]  # fmt: skip
    assert table.comparisons[1].difference == bootstrap(twice, perplexity_of, block=3)
    value, low, high, _ = table.comparisons[0].difference
    each = [a - b for a, b in zip(*(scores(out, row, Measurement()) for row in ("gumbel", "sigmoid")), strict=True)]
    assert table.comparisons[0].by_seed == {1: each[0], 2: each[1]}
    seeds = f"1: {signed(each[0])}, 2: {signed(each[1])}"
    words = ("G² − LSTM", "test", seeds, signed(value), f"{signed(low)} to {signed(high)}", "< 0.002")
    assert table.comparisons[0].in_words() == words
    assert table.comparisons[1].in_words()[2] == "1"


def test_notes_tell_epochs_and_partial_data(out):
    notes = build(PLAN, RUNS, out).notes
    assert notes == (
        "A note.",
        "Epochs of ptb-small: 18.8 in every row.",
        "ptb-small was trained on 9 of about 10 pairs in every row.",
    )


def test_as_markdown(out):
    lines = build(PLAN, RUNS, out).to_markdown().splitlines()
    assert lines[0] == "### A table"
    assert lines[2] == "|  | test | svd 2 | saturated | valid |"
    assert lines[3] == "| --- | --- | --- | --- | --- |"
    assert lines[5] == "| paper | 58.8 |  |  |  |"
    assert any(line.startswith("| G² − LSTM | test | ") for line in lines)
    assert "- ptb-small-gumbel-seed2, test: `s7`" in lines


def test_as_json(out):
    table = json.loads(json.dumps(build(PLAN, RUNS, out).to_json()))
    assert table["rows"][2]["row"] == "G²"
    assert table["rows"][2]["cells"][0]["values"] == scores(out, "gumbel", Measurement())
    assert set(table["comparisons"][0]) == {"rows", "column", "by_seed", "value", "low", "high", "p_value"}
    assert table["signatures"]["ptb-small-gumbel-seed1"] == {
        "test": "s7",
        "svd 2": "s7|compressed:x",
    }


def test_without_any_run_there_is_nothing_but_the_paper(tmp_path):
    table = build(PLAN, RUNS, tmp_path)
    assert {cell.text for cell in table.rows[0][1]} == {"-"}
    assert table.comparisons == ()


def test_rows_that_were_trained_for_other_numbers_of_epochs_are_told(out):
    results.write(out / RUNS[0].name, "training.json", {"epochs": 20.0, "seconds": 60.0, "step": 5})
    assert build(PLAN, RUNS, out).notes[1] == "Epochs of ptb-small: 20.0, 18.8 in LSTM; 18.8 in G²."


def test_rows_that_are_not_trained_are_told(out):
    for run in RUNS:
        if run.row == "sigmoid":
            shutil.rmtree(out / run.name)
    notes = build(PLAN, RUNS, out).notes
    assert notes[1:] == (
        "Epochs of ptb-small: none in LSTM; 18.8 in G².",
        "ptb-small was trained on 9 of about 10 pairs in G².",
    )


@pytest.mark.parametrize(
    "other",
    [{"data": "x/2"}, {"trained_on": "8 of about 10 pairs"}, {"trained_on_text": "of other words"}],
)
def test_rows_of_other_texts_are_not_compared(out, other):
    first = {"data": "x/1", "trained_on": "9 of about 10 pairs", "trained_on_text": "of words"}
    for run in RUNS:
        mine = first if run.row == "gumbel" else first | other
        results.keep(out / run.name, Measurement(), result(7, 4.0, **mine))
    table = build(PLAN, RUNS, out)
    assert "test" not in {one.column for one in table.comparisons}
    assert any(note.startswith("G² and LSTM are not compared in test") for note in table.notes)


def test_what_earlier_versions_did_not_write_is_no_difference(out):
    for run in RUNS:
        known = {"trained_on_text": "of words"} if run.row == "gumbel" else {}
        results.keep(out / run.name, Measurement(), result(7, 4.0, **known))
    table = build(PLAN, RUNS, out)
    assert "test" in {one.column for one in table.comparisons}
    assert not any("not compared" in note for note in table.notes)


@pytest.mark.parametrize("base", [{"cache": "20,0.5,0.1"}, {"data": "x/2"}])
def test_a_difference_is_of_one_cache_and_one_text(out, base):
    same = {"data": "x/1", "cache": "10,0.5,0.1"}
    for run in RUNS:
        is_apart = run.row == "gumbel" and run.seed == 1
        results.keep(out / run.name, Measurement(), result(7, 4.0, **same | (base if is_apart else {})))
        results.keep(out / run.name, SVD, result(7, 4.1, **same))
    table = build(PLAN, RUNS, out)
    assert [len(cells[1].values) for _, cells in table.rows[::2]] == [2, 1]
    assert "ptb-small-gumbel-seed1 has no svd 2: its scores are on different texts or" in " ".join(table.notes)


def test_what_is_left_out_is_counted_and_told(out):
    one, *_, other = (run.name for run in RUNS if run.row == "sigmoid")
    table = build(PLAN, RUNS, out, {other: "it is another's"})
    (value,) = table.rows[0][1][0].values
    assert table.rows[0][1][0].text == f"{value:.2f} (1 of 2)"
    assert one in table.signatures
    assert other not in table.signatures
    assert table.notes[-1] == f"{other} is left out: it is another's"


def test_all_runs_may_be_left_out(out):
    table = build(PLAN, RUNS, out, {run.name: "of another recipe" for run in RUNS})
    assert table.is_empty
    assert not any(note.startswith("Epochs") for note in table.notes)


def test_seeds_of_other_texts_are_not_averaged(out):
    for run in RUNS:
        mine = {"data": f"x/{run.seed}"} if run.row == "sigmoid" else {}
        results.keep(out / run.name, Measurement(), result(7, 4.0 + run.seed, **mine))
    table = build(PLAN, RUNS, out)
    first, second = scores(out, "sigmoid", Measurement())
    assert table.rows[0][1][0].text == f"{first:.2f} / {second:.2f}"
    assert any(note.startswith("The seeds of LSTM are not averaged in test") for note in table.notes)


@pytest.mark.parametrize(("sentences", "block"), [(LEAST, 1), (99, 4), (199, 9), (220, 10), (5000, 10)])
def test_long_texts_are_drawn_in_blocks(out, sentences, block):
    rows = {}
    for run in RUNS:
        one = result(7, 4.0, sentences=sentences)
        other = np.add(one["by_sentence"], [0.1 * run.seed * len(run.row), 0])
        rows[run.row, run.seed] = other
        results.keep(out / run.name, Measurement(), {**one, "by_sentence": other.tolist()})
    (found,) = build(ONE, RUNS, out).comparisons
    terms = [Term(sign, [rows[row, seed] for seed in (1, 2)]) for sign, row in ((1, "gumbel"), (-1, "sigmoid"))]
    assert found.difference == bootstrap(terms, perplexity_of, block=block)


def test_a_text_of_few_sentences_tells_nothing(out):
    for run in RUNS:
        results.keep(out / run.name, Measurement(), result(7, 4.0, sentences=LEAST - 1))
    table = build(ONE, RUNS, out)
    assert table.comparisons == ()
    assert "A test text of 19 sentences can't tell a difference from chance; 20 can." in table.notes


@pytest.mark.parametrize(("value", "text"), [(0.004, "+0.00"), (-0.004, "+0.00"), (-0.006, "−0.01"), (1.234, "+1.23")])
def test_no_difference_is_minus_nothing(value, text):
    assert signed(value) == text
