"""Language modelling through the command line, end to end at toy size, and its errors."""

import json
import math
import os
import re
import shutil
import signal
import tomllib

import pytest
import torch

import g2lstm
from g2lstm.cli.progress import TrainingBar
from g2lstm.cli.train import say_trained
from g2lstm.text.datasets import embedded_files
from g2lstm.text.tokenize import Tokenizer
from g2lstm.training.progress import TrainingProgress
from tests.cli.command import run

TOY = [
    "--set", "model.embedding=16", "--set", "model.hidden=24", "--set", "train.minutes=", "--set", "train.epochs=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "toy"
    done = run("train", "embedded", *TOY, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def test_train_writes_a_run(trained):
    names = {path.name for path in trained.iterdir()}
    assert {"recipe.toml", "tokenizer.json", "model.safetensors", "metrics.jsonl", "checkpoints", "events"} <= names


def test_resume_of_a_finished_run_is_quick_and_changes_nothing(trained):
    before = (trained / "model.safetensors").read_bytes()
    done = run("train", "embedded", *TOY, "--out", trained, "--resume")
    assert done.returncode == 0, done.stderr
    assert (trained / "model.safetensors").read_bytes() == before


def test_a_second_start_in_the_same_place_is_refused(trained):
    done = run("train", "embedded", *TOY, "--out", trained)
    assert done.returncode == 2
    assert "already holds a run" in done.stderr
    assert "--resume" in done.stderr


def test_resume_with_another_recipe_is_refused(trained):
    done = run("train", "embedded", *TOY, "--set", "model.method=sigmoid", "--out", trained, "--resume")
    assert done.returncode == 2
    assert 'model.method was "gumbel", is now "sigmoid"' in done.stderr


def test_evaluate(trained):
    plain = json.loads(run("eval", trained, "--split", "test", "--json").stdout)
    assert set(plain) == {
        "perplexity", "bits_per_character", "unknown_share", "split", "tokens", "eval_gate", "recipe", "data",
        "signature", "weights", "machine", "tokenizers",
    }  # fmt: skip
    text, tokenizer = embedded_files()["test.txt"], Tokenizer.load(trained / "tokenizer.json")
    assert plain["bits_per_character"] == pytest.approx(
        plain["tokens"] * math.log2(plain["perplexity"]) / len(text), rel=1e-6
    )
    words = [word for line in text.splitlines() for word in (*line.split(), "<eos>")][1:]  # the first is not predicted
    assert len(words) == plain["tokens"]
    assert plain["unknown_share"] == pytest.approx(sum(word not in tokenizer for word in words) / len(words))
    assert plain["split"] == "test"
    assert plain["eval_gate"] == "soft"
    assert 1 < plain["perplexity"] < 2000
    assert "seed:1" in plain["signature"]
    cached = json.loads(run("eval", trained, "--split", "test", "--cache", "--cache-lambda", "0.2", "--json").stdout)
    assert cached["perplexity"] < plain["perplexity"]
    assert cached["cache"].endswith(",0.2")
    hard = json.loads(run("eval", trained, "--split", "test", "--eval-gate", "hard", "--json").stdout)
    assert hard["perplexity"] != plain["perplexity"]
    scores = json.loads((trained / "result.json").read_text())["scores"]
    assert len(scores) == 3
    shown = run("eval", trained).stdout
    for words in ("perplexity", "bits per character", "of them unknown words"):
        assert words in shown


@pytest.mark.parametrize(
    ("prompt", "warning"),
    [
        (
            "the zebrafish the [bold]yak zebrafish",
            "g2lstm: not in the vocabulary, so read as <unk>: zebrafish, [bold]yak\n",
        ),
        ("the <unk>", ""),
        ("", ""),
    ],
)
def test_unknown_words_of_the_prompt_are_named(trained, prompt, warning):
    done = run("generate", trained, "--prompt", prompt, "--tokens", "3", "--seed", "1")
    assert done.stderr == warning
    assert done.stdout.strip()


def test_generate(trained):
    options = ["generate", trained, "--prompt", "the", "--tokens", "12", "--seed", "3"]
    first, second = run(*options), run(*options)
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    assert first.stdout.startswith("the")
    assert "<unk>" not in first.stdout


def test_a_prompt_that_is_not_utf8(trained):
    done = run("generate", trained, "--prompt", "the \udcff", "--tokens", "3")
    assert done.returncode == 2
    assert done.stderr.startswith("g2lstm: the text is not valid Unicode: character ")
    done = run("generate", trained, "--prompt", "-", standard_input=b"the \xff")
    assert done.returncode == 2
    assert done.stderr.startswith("g2lstm: the prompt is not UTF-8 text: byte 0xff at position 5; convert it first")


def test_a_prompt_that_is_too_long(trained, tmp_path):
    options = ["generate", trained, "--prompt", "-", "--tokens", "3"]
    assert run(*options, standard_input="the" + " " * (2**20 - 3)).returncode == 0
    (tmp_path / "prompt").touch()
    os.truncate(tmp_path / "prompt", 2**43)  # nothing can hold it
    with open(tmp_path / "prompt") as endless:
        done = run(*options, standard_input=endless)
    assert done.returncode == 2
    assert done.stderr == "g2lstm: the prompt has more than 1,048,576 bytes; give only its end\n"


def test_from_python(trained):
    import g2lstm

    model = g2lstm.load(trained)
    assert model.generate("the", tokens=5, seed=1).startswith("the")
    assert model.perplexity("the value is an object .\n") > 1


def test_interrupt_saves_and_exits_130_and_resume_goes_on(tmp_path, monkeypatch):
    out, on_step = tmp_path / "run", TrainingBar.on_step

    def interrupt(self, progress, share, values):
        on_step(self, progress, share, values)
        if progress.step == 5:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingBar, "on_step", interrupt)
        stopped = run("train", "embedded", *TOY, "--out", out)
    assert stopped.returncode == 130, stopped.stderr
    assert "--resume" in stopped.stderr
    saved = sorted(out.glob("checkpoints/*.json"))[-1]
    assert json.loads(saved.read_text())["state"]["progress"]["step"] == 5
    done = run("train", out / "recipe.toml", "--resume")  # a run's own recipe means that run
    assert done.returncode == 0, done.stderr
    assert "continuing from step 5" in done.stderr
    assert json.loads(run("eval", out, "--json").stdout)["perplexity"] > 1


def test_runs_are_compared(trained, tmp_path):
    done = run("eval", trained, "--split", "test", "--against", trained, "--json")
    (same,) = json.loads(done.stdout)["against"]
    assert (same["difference"], same["low"], same["high"], same["p_value"]) == (0, 0, 0, 1)
    kept = (trained / "result.json").read_text()
    assert "against" not in kept
    assert "by_sentence" not in kept
    other = shutil.copytree(trained, tmp_path / "other")
    tokenizer = other / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"the"', '"thhe"'))
    assert "different tokenizers" in run("eval", trained, "--split", "test", "--against", other).stderr


def test_options_reach_the_evaluation(trained):
    def score(*options):
        done = run("eval", trained, *options, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    plain, cached = score(), score("--cache-lambda", "0.3", "--cache-window", "40")
    assert cached["cache"].startswith("40,")
    assert cached["perplexity"] != plain["perplexity"]
    usual = score("--cache")
    assert score("--cache", "--eval-gate", "hard")["perplexity"] != usual["perplexity"]
    assert score("--tune-cache")["cache"] != usual["cache"]
    refused = run("eval", trained, "--tune-cache", "--cache-window", "50")
    assert refused.returncode == 2
    assert "--tune-cache chooses" in refused.stderr
    assert "is a language model" in run("eval", trained, "--beam", "3").stderr


def test_options_reach_the_generation(trained):
    def text(*options):
        return run("generate", trained, "--tokens", "30", "--seed", "1", *options).stdout

    texts = [text(), text("--temperature", "0.5"), text("--top-k", "2"), text("--top-p", "0.6")]
    assert len(set(texts)) == 4


def test_a_damaged_result_is_told_before_the_work(trained, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(trained, out)
    (out / "result.json").write_text('{"scores": [1]}')
    done = run("eval", out)
    assert done.returncode == 2
    assert "result.json is damaged" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "no-such-recipe"], "no recipe 'no-such-recipe'"),
        (["train", "embedded", "--set", "model.hiden=3", "--set", "train.seed=x"], "2 mistakes"),
        (["eval", "no/such/run"], "no/such/run is not a run directory: it does not exist"),
        (["generate", "."], "is not a run directory: it has no recipe.toml"),
        (["data", "get", "nothing"], "nothing"),
    ],
)
def test_mistakes_are_one_clear_error(arguments, message):
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("damage", ["truncated", "newer", "foreign", "mixed", "missing", "tokenizer"])
def test_broken_runs_are_refused(trained, tmp_path, damage):
    from safetensors.torch import load_file, save_file

    out = tmp_path / "run"
    shutil.copytree(trained, out)
    model = out / "model.safetensors"
    weights = load_file(model)
    if damage == "truncated":
        model.write_bytes(model.read_bytes()[:-100])
    elif damage == "newer":
        save_file(weights, model, {"format": "g2lstm", "version": "99"})
    elif damage == "foreign":
        save_file(weights, model)
    elif damage == "mixed":
        recipe = out / "recipe.toml"
        recipe.write_text(recipe.read_text().replace("hidden = 24", "hidden = 25"))
    elif damage == "missing":
        model.unlink()
    else:
        (out / "tokenizer.json").write_text("{}")
    expected = {
        "truncated": "can't be read", "newer": "has version 99", "foreign": "was not written by g2lstm",
        "mixed": "does not fit the recipe", "missing": "no trained model yet", "tokenizer": "tokenizer.json",
    }  # fmt: skip
    done = run("eval", out)
    assert done.returncode == 2
    assert expected[damage] in done.stderr
    assert "Traceback" not in done.stderr


def test_a_text_alone_is_enough(tmp_path):
    (tmp_path / "cats.txt").write_text("The cat sat on the mat.\nThe dog, it seems, saw the cat.\n" * 60)
    toy = ["--set", "train.epochs=1", "--set", "data.vocabulary=9000"]
    done = run("train", tmp_path / "cats.txt", *toy, "--out", tmp_path / "run", G2LSTM_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    first = done.stderr.splitlines()[0]
    assert " parameters, layers of 128 and 64 units, " in first
    assert " sub-words (9,000 were wanted, but the text has no more), 0.0% of the validation text unknown; " in first
    assert first.endswith("; 1 minute or 1 epoch at most")
    score = json.loads(run("eval", tmp_path / "run", "--split", "test", "--json").stdout)
    assert score["unknown_share"] == 0
    written = run("init", tmp_path / "cats.txt", "--out", tmp_path / "cats.toml")
    assert written.returncode == 0, written.stderr
    assert re.match(
        r".*cats.txt: [\d,]+ characters to train on, plain text, \d+ different characters\n", written.stdout
    )
    assert re.search(r"held out from the training text: \d+ lines for valid, \d+ lines for test\n", written.stdout)
    assert "next: g2lstm train" in written.stdout
    again = run("train", tmp_path / "cats.toml", *toy, "--out", tmp_path / "run", "--resume")
    assert again.returncode == 0, again.stderr  # the same recipe
    assert "exists; choose another name" in run("init", tmp_path / "cats.txt", "--out", tmp_path / "cats.toml").stderr


def test_a_recipe_in_another_folder_finds_its_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cats.txt").write_text("The cat sat on the mat.\n" * 100)
    (tmp_path / "elsewhere").mkdir()
    cache = {"G2LSTM_CACHE": str(tmp_path / "cache")}
    for out, path in (("cats.toml", "cats.txt"), ("elsewhere/cats.toml", str(tmp_path / "cats.txt"))):
        assert run("init", "cats.txt", "--out", out, **cache).returncode == 0
        assert tomllib.loads((tmp_path / out).read_text())["data"]["path"] == path


def test_a_key_is_explained():
    assert run("recipe", "explain", "minutes").stdout.startswith(
        "train.minutes: a number, above 0\n  The time to train"
    )
    done = run("recipe", "explain", "minuts")
    assert (done.returncode, done.stderr) == (2, "g2lstm: a recipe has no key 'minuts'; did you mean minutes?\n")


def test_a_prompt_from_standard_input_and_plain_text(trained):
    options = ["--tokens", "12", "--seed", "1"]
    given = run("generate", trained, "--prompt", "the value", *options).stdout
    assert run("generate", trained, "--prompt", "-", *options, standard_input="the value\n").stdout == given
    plain = run("generate", trained, "--prompt", "the value , or", *options, "--detokenize", "en")
    assert plain.stdout.startswith("the value, or")
    wrong = run("generate", trained, "--detokenize", "xx")
    assert (wrong.returncode, "language must be one of 'de', 'en'" in wrong.stderr) == (2, True)


@pytest.mark.parametrize(("passes", "is_told"), [(0.6, True), (2.0, False), (3.4, False)])
def test_a_text_that_was_hardly_read_is_told(passes, is_told, capsys, tmp_path):
    say_trained(tmp_path, TrainingProgress(epochs=passes, best_scores={"perplexity": 9.0}))
    told = f"it read the training text only {passes:.1f} times; more train.minutes usually give a better model"
    assert (told in capsys.readouterr().out) == is_told


def test_completion_can_be_installed():
    assert "--install-completion" in run("--help").stdout
    asked = {"_G2LSTM_COMPLETE": "complete_bash", "COMP_WORDS": "g2lstm gen", "COMP_CWORD": "1"}
    assert run(**asked).stdout.split() == ["generate"]


def test_validations_say_bits_per_character(trained):
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    valid = [line for line in lines if line["kind"] == "valid"][-1]
    score = json.loads(run("eval", trained, "--json").stdout)
    assert valid["bits_per_character"] == pytest.approx(score["bits_per_character"], rel=0.02)


def test_a_loaded_model_says_what_it_is(trained):
    model = g2lstm.load(trained)
    assert repr(model).startswith(f"<TrainedLanguageModel from {trained}: method gumbel, 2 layers, ")
    with pytest.raises(g2lstm.G2Error, match="a text must be a str, got NoneType"):
        model.perplexity(None)
    with pytest.raises(g2lstm.G2Error, match="a text must be a str, got int"):
        model.generate(3)
    with pytest.raises(g2lstm.G2Error, match="load takes the path of a run directory, got int"):
        g2lstm.load(5)


def test_perplexity_counts_the_first_token(trained):
    model, line = g2lstm.load(trained), "the value is returned"
    ids = [model.tokenizer.eos_id, *model.tokenizer.encode(line), model.tokenizer.eos_id]
    with torch.no_grad():
        features, _, _ = model.model(torch.tensor(ids[:-1])[:, None])
        losses = model.model.token_losses(features.flatten(0, 1), torch.tensor(ids[1:]))
    assert model.perplexity(line) == pytest.approx(losses.mean().exp().item(), rel=1e-5)
    with pytest.raises(g2lstm.G2Error, match="the text is empty, so it has no perplexity"):
        model.perplexity("\n")


def test_a_test_set_of_pairs_is_refused_at_once(trained):
    assert "--source can't be used here" in run("eval", trained, "--source", "my.txt").stderr
