"""Every study through the command line at toy size: trained, measured, its table; stopped, resumed, listed."""

import json
import os
import signal
from contextlib import closing
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from g2lstm.cli import study
from g2lstm.cli.main import app
from g2lstm.cli.progress import StudyBar, duration
from g2lstm.lab.study.table import Cell, StudyTable
from g2lstm.training.progress import TrainingProgress
from tests.lab.study.toys import change_weights, of_language, of_translation, write_pairs, write_text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studies")
    write_text(folder / "text")
    write_pairs(folder / "pairs")
    return folder


def command(folder, name, *options, out="out"):
    is_language = name in ("table1", "table3", "ablations", "bits")
    toy = of_language(folder / "text") if is_language else of_translation(folder / "pairs")
    where = ["--out", str(folder / out)]
    return ["study", name, *where, *options, *(word for each in toy for word in ("--set", each))]


def invoke(folder, name, *options, out="out"):
    return CliRunner().invoke(app, command(folder, name, *options, out=out))


def ours(table):
    """The rows that are not the paper's, as {row: [text, ...]}."""
    return {row["row"]: [cell["text"] for cell in row["cells"]] for row in table["rows"] if "paper" not in row["row"]}


CASES = [  # studies that share runs follow one another
    ("table3", "small", (), ["original", "round 0.2", "round 0.2, clip 0.4", "svd 1"], 4),
    ("table1", "small", (), ["valid", "test", "valid, finetuned", "test, finetuned", "valid, finetuned, cache"], 8),
    ("table4", "small", (), ["original", "round 0.5", "round 0.5, clip 1.0"], 8),
    ("table2", "small", (), ["Multi30k German to English", "IWSLT'14 German to English"], 8),
    ("table5", "paper", (), ["original", "round 0.5", "round 0.5, clip 1.0"], 4),
    (
        "ablations", "small", ("*-gumbel-*", "*sigmoid*", "*ifo*", "*converted4*"),
        ["test", "tempered", "hard", "round 0.2", "round 0.2, clip 0.4", "svd 1"], 8,
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "scale", "only", "columns", "runs"),
    [
        pytest.param(*case, id=case[0], marks=() if case[0] in ("table1", "table4") else pytest.mark.slow)
        for case in CASES
    ],
)
def test_a_study_from_nothing_to_its_table_and_again_from_its_directories(folder, name, scale, only, columns, runs):
    options = ["--scale", scale, *(word for each in only for word in ("--only", each)), "--json"]
    done = invoke(folder, name, *options)
    assert done.exit_code == 0, done.output + str(done.exception)
    found = json.loads(done.stdout)
    assert len(found["runs"]) == runs
    assert all(run["is_trained"] and run["measured"] == run["measurements"] for run in found["runs"])
    table = found["tables"][0]
    assert set(table["columns"]) >= set(columns)
    measured = [texts for texts in ours(table).values() if texts[0] != "-"]
    assert len(measured) >= (5 if name == "ablations" else 3)
    assert all("-" not in texts for texts in measured)
    assert {(first, second) for first, second in map(tuple, (one["rows"] for one in table["comparisons"]))} >= {
        ("G²", "LSTM")
    }
    again = invoke(folder, name, *options, "--table-only")
    assert json.loads(again.stdout)["tables"] == found["tables"]
    assert "training" not in again.stderr


def test_the_papers_scale_finetunes_what_it_compresses(folder):
    small_steps = ["--set", "train.optimizer.lr=1"]  # the paper's would only make a toy worse
    done = invoke(folder, "table3", "--scale", "paper", "--only", "*gumbel*", "--json", *small_steps, out="paper")
    assert done.exit_code == 0, done.output + str(done.exception)
    found = json.loads(done.stdout)
    assert [run["run"] for run in found["runs"]] == ["ptb-gumbel-seed1", "ptb-finetune-gumbel-seed1"]
    assert all(run["is_trained"] and run["measured"] == run["measurements"] for run in found["runs"])
    assert list(found["tables"][0]["signatures"]) == ["ptb-finetune-gumbel-seed1"]
    began_with = (folder / "paper" / "ptb-finetune-gumbel-seed1" / "recipe.toml").read_text()
    assert f'finetune_from = "{folder / "paper" / "ptb-gumbel-seed1"}"' in began_with


def test_figures(folder, request):
    done = invoke(folder, "figures", "--json")
    assert done.exit_code == 0, done.output + str(done.exception)
    files = json.loads(done.stdout)["files"]
    assert {os.path.basename(file) for file in files} == {
        "figure1and3-histograms.png", "figure1and3-histograms.svg", "figure2-sigmoid.png", "figure2-sigmoid.svg",
        "figure4-words.png", "figure4-words.svg", "gates.json",
    }  # fmt: skip
    assert all(os.path.getsize(file) > 500 for file in files)
    numbers = json.loads((folder / "out" / "figures-multi30k-small" / "gates.json").read_text())
    assert [run["method"] for run in numbers["runs"]] == ["sigmoid", "gumbel", "binary"]
    assert [run["mode"] for run in numbers["runs"]] == [
        f"evaluation, {gate} gates" for gate in ("soft", "soft", "hard")
    ]
    first, second, third = (run["text"]["tokens"] for run in numbers["runs"])
    assert first == second == third, "all read the same sentence and the same translation of it"
    times = [os.path.getmtime(file) for file in files]
    assert json.loads(invoke(folder, "figures", "--json", "--table-only").stdout)["files"] == files
    assert [os.path.getmtime(file) for file in files] == times
    change_weights(folder / "out" / "multi30k-small-gumbel-seed1")  # as if trained anew
    request.getfixturevalue("no_drawing")
    assert json.loads(invoke(folder, "figures", "--json", "--only", "*gumbel*").stdout)["files"] == files
    assert all(os.path.getmtime(file) > before for file, before in zip(files, times, strict=True))
    numbers = json.loads((folder / "out" / "figures-multi30k-small" / "gates.json").read_text())
    assert [run["method"] for run in numbers["runs"]] == ["sigmoid", "gumbel", "binary"], "all, whatever was trained"


@pytest.mark.slow
def test_the_league_of_few_bits(folder):
    only = ["ptb-300-sigmoid*", "ptb-300-gumbel*", "*2bits-sigmoid*", "*2bits-gumbel*", "*1.6bits-binary*"]
    options = ["--json", *(word for each in only[:4] for word in ("--only", each))]
    done = invoke(folder, "bits", *options, out="league")
    assert done.exit_code == 0, done.output + str(done.exception)
    found = json.loads(done.stdout)
    assert [run["run"] for run in found["runs"]] == [
        "ptb-300-sigmoid-seed1", "ptb-300-gumbel-seed1", "ptb-300-2bits-sigmoid-seed1", "ptb-300-2bits-gumbel-seed1",
    ]  # fmt: skip
    trained, tuned = found["tables"]
    assert trained["columns"] == tuned["columns"] == ["full", "4 bits", "3 bits", "2 bits", "1.6 bits"]
    assert "-" not in ours(trained)["G²"]
    assert [text != "-" for text in ours(tuned)["LSTM"]] == [False, False, False, True, False]
    assert {tuple(one["rows"]) for one in tuned["comparisons"]} == {("G²", "LSTM")}
    assert {one["column"] for one in tuned["comparisons"]} == {"2 bits"}
    signature = tuned["signatures"]["ptb-300-2bits-gumbel-seed1"]["2 bits"]
    assert "|compressed:int2|" in signature
    assert {os.path.basename(file) for file in found["files"]} == {"bits.png", "bits.svg"}
    assert all(os.path.getsize(file) > 5000 for file in found["files"])
    assert any("HitNet" in note for note in tuned["notes"])
    recipe = (folder / "league" / "ptb-300-2bits-gumbel-seed1" / "recipe.toml").read_text()
    assert f'finetune_from = "{folder / "league" / "ptb-300-gumbel-seed1"}"' in recipe
    again = json.loads(invoke(folder, "bits", *options, "--table-only", out="league").stdout)
    assert again["tables"] == found["tables"]
    refused = invoke(folder, "bits", "--only", only[4], "--json", out="league")
    assert refused.exit_code == 2
    assert "starts from ptb-300-binary-seed1, which has not been trained" in refused.stdout
    refused = invoke(folder, "bits", "--set", "train.compression=int8", out="league")
    assert "--set can't change train.compression here: `g2lstm study bits` compares compressions" in str(
        refused.exception
    )


def test_in_a_terminal_and_as_markdown(folder):
    assert invoke(folder, "table3", "--json").exit_code == 0
    shown = invoke(folder, "table3", "--table-only").stdout
    for words in ("Table 3", "G²", "G² − LSTM", "Epochs of ptb-small", "the paper's figures are left out"):
        assert words in shown, words
    text = invoke(folder, "table3", "--table-only", "--markdown").stdout
    assert text.startswith("### Table 3")
    assert "| paper |" not in text, "of other data"
    assert "- ptb-small-gumbel-seed1, original: `recipe:" in text
    assert "\nCommand: `g2lstm study table3 --scale small --seeds 1 --set " in text
    text = invoke(folder, "table4", "--table-only", "--markdown", "--only", "iwslt14*gum*", out="nowhere").stdout
    assert text.startswith("Command: `g2lstm study table4 --scale small --seeds 1 --only 'iwslt14*gum*' --set ")


def test_where_the_terminal_is_narrow_the_table_is_turned(monkeypatch, capsys):
    cells = tuple(Cell((1.0,), "+1.00 ± 0.10") for _ in range(6))
    rows = (("LSTM", cells), ("  paper", cells), ("G²", cells))
    table = StudyTable("A table", tuple(f"column {k}" for k in range(6)), rows, (), ("A note.",), {})

    def lines(width):
        monkeypatch.setattr(study, "console", lambda: Console(width=width))
        study.show_table(table)
        return [
            [cell.strip() for cell in line.strip("┃│").split(line[0])] for line in capsys.readouterr().out.splitlines()
        ]

    assert ["LSTM", *["+1.00 ± 0.10"] * 6] in lines(120)
    narrow = lines(70)
    assert ["", "LSTM", "paper", "G²"] in narrow
    assert ["column 5", *["+1.00 ± 0.10"] * 3] in narrow
    assert ["", "LSTM", "paper", "G²"] in lines(45), "too narrow for both: the narrower one, its cells folded"


def test_nothing_is_there_yet(folder):
    shown = CliRunner().invoke(app, ["study", "table3", "--table-only", "--out", str(folder / "nowhere")])
    assert shown.exit_code == 0
    for words in ("  paper", "52.8 ", "+0.8 "):
        assert words in shown.stdout, words
    assert not (folder / "nowhere").exists()


def test_a_dry_run_lists_and_does_nothing(folder, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    shown = CliRunner().invoke(app, ["study", "table1", "--dry-run", "--out", str(folder / "nowhere"), "--seeds", "2"])
    assert shown.exit_code == 0
    assert "ptb-small-finetune-gumbel-seed2" in shown.stdout
    assert "56 min" in shown.stdout
    assert "6 operations per weight and token" in " ".join(shown.stdout.split())
    assert not (folder / "nowhere").exists()
    assert invoke(folder, "table3", "--json").exit_code == 0
    facts = json.loads(invoke(folder, "table3", "--dry-run", "--json").stdout)
    assert [run["is_trained"] for run in facts["runs"]] == [True] * 4
    assert sum(run["seconds_left"] for run in facts["runs"]) == 0
    facts = json.loads(invoke(folder, "table3", "--dry-run", "--json", out="nowhere").stdout)
    assert {run["seconds_left"] for run in facts["runs"]} == {None}, "nothing is known of this text"
    shown = " ".join(invoke(folder, "table3", "--dry-run", out="nowhere").stdout.split())
    assert "About 0 s in all, plus 4 runs on a text of unknown size." in shown


def test_stopped_it_exits_with_130_and_goes_on_when_called_again(folder, monkeypatch):
    told = StudyBar.on_step

    def stop(self, progress, share, values):
        told(self, progress, share, values)
        if progress.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(StudyBar, "on_step", stop)
    stopped = invoke(folder, "table3", "--only", "*gumbel*", out="stopped")
    assert stopped.exit_code == 130, stopped.output
    assert "the same command continues" in stopped.stderr
    monkeypatch.setattr(StudyBar, "on_step", told)
    done = invoke(folder, "table3", "--only", "*gumbel*", "--json", out="stopped")
    assert "continuing from step 2" in done.stderr
    values = [cell["values"] for cell in json.loads(done.stdout)["tables"][0]["rows"][2]["cells"]]
    whole = json.loads(invoke(folder, "table3", "--json").stdout)["tables"][0]["rows"][2]["cells"]
    assert values == [cell["values"] for cell in whole], "as if it had not been stopped"


def test_a_run_of_another_recipe_is_left_out_where_others_are_asked_for(folder):
    done = invoke(folder, "table3", "--only", "*gumbel*", "--json", "--set", "train.clip=0.125", out="other")
    assert done.exit_code == 0, done.output + str(done.exception)
    done = invoke(folder, "table3", "--only", "*sigmoid*", "--json", out="other")
    assert done.exit_code == 0, done.output + str(done.exception)
    found = json.loads(done.stdout)
    assert list(found["tables"][0]["signatures"]) == ["ptb-small-sigmoid-seed1"]
    (note,) = (note for note in found["tables"][0]["notes"] if "seed1 is left out: " in note)
    assert note.startswith("ptb-small-gumbel-seed1 is left out: ")
    assert "train.clip was 0.125, is now 0.5" in note
    assert "with a different recipe" in str(invoke(folder, "table3", out="other").exception)


def test_what_fails_is_told_after_the_table_and_exits_with_2(folder):
    assert invoke(folder, "table5", "--scale", "paper", "--json").exit_code == 0
    for file in (folder / "out" / "wmt14-gumbel-seed1" / "measured").glob("test-*.json"):
        file.unlink()
    broken = folder / "out" / "wmt14-gumbel-seed1" / "model.safetensors"
    broken.write_bytes(broken.read_bytes()[:-10])
    done = invoke(folder, "table5", "--scale", "paper")
    assert done.exit_code == 2
    assert "wmt14-gumbel-seed1 was left out:" in done.stderr
    assert "can't be read" in done.stderr
    assert "Table 5" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["study", "table9"], "no study 'table9'"),
        (["study", "table5"], "use --scale paper"),
        (["study", "figures", "--seeds", "2"], "leave out --seeds"),
        (["study", "table1", "--only", "x"], "no run of table1 is called x"),
        (["study", "table1", "--set", "model.hiden=3", "--dry-run"], "did you mean model.hidden?"),
        (["study", "table1", "--set", "train.finetune_from=x"], "a study decides which run starts from which"),
    ],
)
def test_mistakes_are_one_clear_error(arguments, message):
    done = CliRunner().invoke(app, arguments)
    assert message in str(done.exception)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (25, "25 s"), (90, "2 min"), (3599, "1 h 0 min"), (7800, "2 h 10 min"), (1e6, "12 days")],
)
def test_durations(seconds, words):
    assert duration(seconds) == words


def test_the_time_left_is_the_sum_of_the_estimates(capsys):
    first = SimpleNamespace(stages={"training": 1000.0, "test-soft": 200.0}, run=SimpleNamespace(name="one"))
    second = SimpleNamespace(stages={"training": 900.0}, run=SimpleNamespace(name="two"))
    with closing(StudyBar([first, second])) as shown:
        shown.on_stage(first, "training")
        shown.on_step(TrainingProgress(step=1, seconds=600.0, tokens=5), 0.5, {"loss": 1.0})
        shown.on_stage(first, "test-soft")
        shown.on_share(0.5)
        assert shown.bar.tasks[0].completed == 0.5
        shown.on_stage(second, "training")
    told = " ".join(capsys.readouterr().err.split())
    assert "run 1 of 2, one: training; about 35 min left in all" in told
    assert "run 1 of 2, one, 50% of the training, epoch 1, perplexity 2.7, 0 tokens/s, 10 min left" in told
    assert "run 1 of 2, one: test-soft; about 18 min left in all" in told
    assert "run 2 of 2, two: training; about 15 min left in all" in told
