"""Tables over measurements that were written by hand: means, deviations, differences, comparisons, forms."""

import json
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from g2lstm.lab.study.jobs import Job, Measured, Training
from g2lstm.lab.study.plan import METHODS, Column, Measurement, PlannedTable, plan_runs
from g2lstm.lab.study.table import LEAST, Term, bootstrap, build, perplexity_of, signed

PLAIN, SVD = Measurement(), Measurement(compression="gates=svd:2")
COLUMNS = (
    Column("test", "ptb-small", paper={"sigmoid": 58.8, "gumbel": 58.2}, digits=1),
    Column("svd 2", "ptb-small", SVD, against=PLAIN, paper={"gumbel": 1.2}),
    Column("saturated", "ptb-small", what="saturation"),
    Column("valid", "ptb-small", Measurement("valid")),
)
ROWS = {"sigmoid": METHODS["sigmoid"], "gumbel": replace(METHODS["gumbel"], against=("sigmoid",))}
PLAN = PlannedTable("A table", COLUMNS, ("A note.",), ROWS)
ONE = replace(PLAN, columns=COLUMNS[:1])
RUNS = plan_runs("ptb-small", COLUMNS, seeds=2, rows=ROWS)
MEANS = {"sigmoid": 4.5, "gumbel": 4.4}


def losses(seed, mean, sentences):
    generator = np.random.default_rng(seed)
    tokens = generator.integers(3, 30, sentences)
    return [[round(float(n * mean + generator.normal()), 4), int(n)] for n in tokens]


def result(mean, *, sentences=60, rows=None, **more):
    rows = losses(7, mean, sentences) if rows is None else rows
    nats, tokens = np.sum(rows, axis=0)
    score = {"perplexity": float(np.exp(nats / tokens)), "signature": "s7", "split": "test", "eval_gate": "soft"}
    return Measured(**{**score, "data": "x/0", "by_sentence": [list(map(float, row)) for row in rows], **more})


def make(folder, plain=lambda run: {"trained_on": "9 of about 10 pairs"}, svd=lambda run: {}, epochs=lambda run: 18.75):
    """Jobs whose results differ as the functions say; a row and a seed lack a measurement."""
    jobs = []
    for run in RUNS:
        mean, path = MEANS[run.row] + 0.02 * run.seed, folder / run.name
        found = {PLAIN: result(**{"mean": mean, **plain(run)})}
        if (run.row, run.seed) != ("sigmoid", 2):
            shared = {"trained_on": found[PLAIN].trained_on, "signature": "s7|compressed:x"}
            found[SVD] = result(**{"mean": mean + 0.05, **shared, **svd(run)})
        path.mkdir()
        place = {"step": 1, "tokens": 1, "seconds": 1.0}
        lines = [
            {"kind": "valid", **place, "loss": 3.0, "saturation/a/input": 0.9, "saturation/a/forget": 0.9},
            {"kind": "valid", **place, "loss": 2.0, "saturation/a/input": 0.2, "saturation/a/forget": 0.4},
            {"kind": "train", **place, "loss": 1.0},
        ]
        (path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
        jobs.append(Job(run, path, None, Training(epochs=epochs(run), seconds=60.0), found))
    return jobs


@pytest.fixture
def jobs(tmp_path):
    return make(tmp_path)


def scores(jobs, row, measurement):
    return [job.measured[measurement].score for job in jobs if job.run.row == row and measurement in job.measured]


def test_cells_are_means_and_deviations_over_seeds(jobs):
    table = build(PLAN, jobs)
    assert table.headings == ("test", "svd 2", "saturated", "valid")
    assert [name for name, _ in table.rows] == ["LSTM", "  paper", "G²", "  paper"]
    ours = scores(jobs, "gumbel", PLAIN)
    test, svd, saturated, valid = table.rows[2][1]
    assert test.values == tuple(ours)
    assert test.text == f"{statistics.fmean(ours):.2f} ± {statistics.stdev(ours):.2f}"
    differences = [b - a for a, b in zip(ours, scores(jobs, "gumbel", SVD), strict=True)]
    assert svd.values == pytest.approx(differences)
    assert svd.text == f"+{statistics.fmean(differences):.2f} ± {statistics.stdev(differences):.2f}"
    assert saturated.text == "30% ± 0%", "of the best validation"
    assert valid.text == "-"


def test_what_is_missing_is_said(jobs):
    table = build(PLAN, jobs)
    assert table.rows[0][1][1].text.endswith("(1 of 2)")
    assert len(table.rows[0][1][1].values) == 1


def test_the_papers_figures_stand_below(jobs):
    table = build(PLAN, jobs)
    assert [cell.text for cell in table.rows[1][1]] == ["58.8", "", "", ""]
    assert [cell.text for cell in table.rows[3][1]] == ["58.2", "+1.20", "", ""]


def test_comparisons_are_bootstraps_over_the_same_sentences(jobs):
    table = build(PLAN, jobs)
    assert [(one.rows, one.column) for one in table.comparisons] == [
        (("G²", "LSTM"), "test"),
        (("G²", "LSTM"), "svd 2"),
    ]
    by_run = {(job.run.row, job.run.seed, way): found for job in jobs for way, found in job.measured.items()}

    def rows(row, way, seeds):
        return [by_run[row, seed, way].sums for seed in seeds]

    plain = [Term(1, rows("gumbel", PLAIN, (1, 2))), Term(-1, rows("sigmoid", PLAIN, (1, 2)))]
    assert table.comparisons[0].difference == bootstrap(plain, perplexity_of, block=3)
    twice = [  # of the seeds that both have
        Term(1, rows("gumbel", SVD, (1,))), Term(-1, rows("sigmoid", SVD, (1,))),
        Term(-1, rows("gumbel", PLAIN, (1,))), Term(1, rows("sigmoid", PLAIN, (1,))),
    ]  # fmt: skip
    assert table.comparisons[1].difference == bootstrap(twice, perplexity_of, block=3)
    value, low, high, _ = table.comparisons[0].difference
    each = [a - b for a, b in zip(*(scores(jobs, row, PLAIN) for row in ("gumbel", "sigmoid")), strict=True)]
    assert table.comparisons[0].by_seed == {1: each[0], 2: each[1]}
    seeds = f"1: {signed(each[0])}, 2: {signed(each[1])}"
    words = ("G² − LSTM", "test", seeds, signed(value), f"{signed(low)} to {signed(high)}", "< 0.002")
    assert table.comparisons[0].in_words() == words
    assert table.comparisons[1].in_words()[2] == "1"


def test_notes_tell_epochs_and_partial_data(jobs):
    assert build(PLAN, jobs).notes == (
        "A note.",
        "Epochs of ptb-small: 18.8, 18.8 in LSTM; 18.8, 18.8 in G².",
        "ptb-small was trained on 9 of about 10 pairs.",
    )


def test_rows_that_were_trained_for_other_numbers_of_epochs_are_told(tmp_path):
    jobs = make(tmp_path, epochs=lambda run: 20.0 if run == RUNS[0] else 18.75)
    assert build(PLAN, jobs).notes[1] == "Epochs of ptb-small: 20.0, 18.8 in LSTM; 18.8, 18.8 in G²."


def test_as_markdown(jobs):
    lines = build(PLAN, jobs).to_markdown().splitlines()
    assert lines[0] == "### A table"
    assert lines[2] == "|  | test | svd 2 | saturated | valid |"
    assert lines[3] == "| --- | --- | --- | --- | --- |"
    assert lines[5] == "| paper | 58.8 |  |  |  |"
    assert any(line.startswith("| G² − LSTM | test | ") for line in lines)
    assert "- ptb-small-gumbel-seed2, test: `s7`" in lines


def test_as_json(jobs):
    table = json.loads(json.dumps(build(PLAN, jobs).to_json()))
    assert table["rows"][2]["row"] == "G²"
    assert table["rows"][2]["cells"][0]["values"] == scores(jobs, "gumbel", PLAIN)
    assert set(table["comparisons"][0]) == {"rows", "column", "by_seed", "value", "low", "high", "p_value"}
    assert table["signatures"]["ptb-small-gumbel-seed1"] == {"test": "s7", "svd 2": "s7|compressed:x"}


def test_without_any_run_there_is_nothing_but_the_paper():
    table = build(PLAN, [Job(run, Path(), None) for run in RUNS])
    assert {cell.text for cell in table.rows[0][1]} == {"-"}
    assert table.comparisons == ()
    assert table.is_empty
    assert table.notes == ("A note.",)


@pytest.mark.parametrize(
    "other",
    [
        {"data": "x/2"},
        {"trained_on": "8 of about 10 pairs"},
        {"trained_on_text": "of other words"},
        {"tokenizers": "others"},
    ],
)
def test_rows_of_other_texts_are_not_mixed(tmp_path, other):
    first = {"data": "x/1", "trained_on": "9 of about 10 pairs", "trained_on_text": "of words", "tokenizers": "ours"}
    table = build(ONE, make(tmp_path, lambda run: first if run.row == "sigmoid" else first | other))
    assert [cells[0].text == "-" for _, cells in table.rows[::2]] == [False, True]
    assert table.comparisons == ()
    assert "ptb-small-gumbel-seed1 is left out of test: its text, tokenizer or cache differs." in table.notes


def test_what_earlier_versions_did_not_write_is_no_difference(tmp_path):
    table = build(ONE, make(tmp_path, lambda run: {"trained_on_text": "of words"} if run.row == "gumbel" else {}))
    assert [one.column for one in table.comparisons] == ["test"]
    assert not any("left out" in note for note in table.notes)


@pytest.mark.parametrize("base", [{"cache": "20,0.5,0.1"}, {"data": "x/2"}])
def test_a_difference_is_of_one_cache_and_one_text(tmp_path, base):
    same = {"data": "x/1", "cache": "10,0.5,0.1"}
    jobs = make(tmp_path, lambda run: same | (base if (run.row, run.seed) == ("gumbel", 1) else {}), lambda run: same)
    table = build(PLAN, jobs)
    assert [len(cells[1].values) for _, cells in table.rows[::2]] == [1, 1]
    assert "ptb-small-gumbel-seed1 is left out of svd 2: its text, tokenizer or cache differs." in table.notes


def test_seeds_of_other_texts_are_not_averaged(tmp_path):
    jobs = make(tmp_path, lambda run: {"data": f"x/{run.seed}"} if run.row == "sigmoid" else {"data": "x/1"})
    table = build(ONE, jobs)
    assert table.rows[0][1][0].text == f"{scores(jobs, 'sigmoid', PLAIN)[0]:.2f} (1 of 2)"
    assert [one.by_seed.keys() for one in table.comparisons] == [{1}]


def test_what_can_not_be_used_is_left_out_and_told(jobs):
    jobs = [replace(job, problem="it is another's") if job.run.name.endswith("sigmoid-seed2") else job for job in jobs]
    table = build(PLAN, jobs)
    (value,) = table.rows[0][1][0].values
    assert table.rows[0][1][0].text == f"{value:.2f} (1 of 2)"
    assert "ptb-small-sigmoid-seed2" not in table.signatures
    assert table.notes[-1] == "ptb-small-sigmoid-seed2 is left out: it is another's"
    nothing = build(PLAN, [replace(job, problem="it is another's") for job in jobs])
    assert nothing.is_empty
    assert not any(note.startswith("Epochs") for note in nothing.notes)


@pytest.mark.parametrize(("sentences", "block"), [(LEAST, 1), (99, 4), (199, 9), (220, 10), (5000, 10)])
def test_long_texts_are_drawn_in_blocks(tmp_path, sentences, block):
    base = np.array(losses(7, 4.0, sentences))
    rows = {(run.row, run.seed): np.add(base, [0.1 * run.seed * len(run.row), 0]) for run in RUNS}
    (found,) = build(ONE, make(tmp_path, lambda run: {"rows": rows[run.row, run.seed]})).comparisons
    terms = [Term(sign, [rows[row, seed] for seed in (1, 2)]) for sign, row in ((1, "gumbel"), (-1, "sigmoid"))]
    assert found.difference == bootstrap(terms, perplexity_of, block=block)


def test_a_text_of_few_sentences_tells_nothing(tmp_path):
    table = build(ONE, make(tmp_path, lambda run: {"sentences": LEAST - 1}))
    assert table.comparisons == ()
    assert "A test text of 19 sentences is too short to rule out chance; it takes 20." in table.notes


@pytest.mark.parametrize(("value", "text"), [(0.004, "+0.00"), (-0.004, "+0.00"), (-0.006, "−0.01"), (1.234, "+1.23")])
def test_no_difference_is_minus_nothing(value, text):
    assert signed(value) == text
