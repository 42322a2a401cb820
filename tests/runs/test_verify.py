"""`g2lstm verify`: a score holds if all that it rests on is as it was; whatever was changed is named."""

import hashlib
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from g2lstm import G2Error
from g2lstm.runs.directory import RunDirectory
from g2lstm.runs.trained import load, verify
from tests.cli.command import run as command
from tests.runs.toys import language_run, translation_run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Runs of both tasks with their texts, scored in several ways."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("G2LSTM_CACHE", str(folder / "cache"))
        language, translation = language_run(folder / "lm"), translation_run(folder / "mt")
        for arguments in ([language, "--split", "test"], [language, "--cache", "--eval-gate", "hard"]):
            assert command("eval", *arguments).returncode == 0
        assert command("eval", translation, "--beam", "2").returncode == 0
        yield {"lm": language, "mt": translation}


@pytest.fixture
def run(made, tmp_path, monkeypatch):
    """A copy of the language model, with texts and a cache of its own, and one score."""
    monkeypatch.setenv("G2LSTM_CACHE", str(tmp_path / "cache"))
    shutil.copytree(made["lm"].parent / "texts", tmp_path / "texts")
    copy = shutil.copytree(made["lm"], tmp_path / "run")
    recipe = (copy / "recipe.toml").read_text().replace(str(made["lm"].parent / "texts"), str(tmp_path / "texts"))
    (copy / "recipe.toml").write_text(recipe)
    (copy / "result.json").unlink()
    assert command("eval", copy, "--split", "test").returncode == 0
    return copy


def verdicts(run):
    done = command("verify", run, "--json")
    found = json.loads(done.stdout)
    assert done.returncode == (0 if found["holds"] else 2), done.stderr
    return {check["what"]: check["verdict"] for score in found["scores"] for check in score["checks"]}


def change_result(run, change):
    content = json.loads((run / "result.json").read_text())
    change(content["scores"][0])
    (run / "result.json").write_text(json.dumps(content))


@pytest.mark.parametrize("which", ["lm", "mt"])
def test_a_score_that_was_just_computed_holds(made, which):
    found = verdicts(made[which])
    assert set(found.values()) == {"same"}
    basis = {"recipe", "weights", "tokenizers", "text", "g2lstm", "torch", "threads", "processor", "kernel"}
    numbers = {
        "lm": {"perplexity", "bits_per_character", "unknown_share", "tokens"},
        "mt": {"bleu", "chrf", "sentences"},
    }
    assert set(found) == basis | numbers[which]


def test_it_is_told_in_a_table(made):
    done = command("verify", made["lm"], "--split", "test")
    assert done.returncode == 0
    assert done.stdout.count("the score holds") == 1
    assert "processor" in done.stdout


def test_other_weights(run):
    file = run / "model.safetensors"
    weights = load_file(file)
    weights["softmax_bias"][3] += 0.5
    save_file(weights, file, RunDirectory(run).training_facts())
    found = verdicts(run)
    assert {what for what, verdict in found.items() if verdict == "different"} == {
        "weights", "perplexity", "bits_per_character",
    }  # fmt: skip
    done = command("verify", run)
    assert "the score does not hold" in done.stdout
    assert f"1 of 1 scores of {run} do not hold; the first is recipe:" in done.stderr


def test_another_text(run):
    text = run.parent / "texts" / "test.txt"
    text.write_text(text.read_text() + "w1 w2\n")
    found = verdicts(run)
    assert {found["text"], found["perplexity"], found["tokens"]} == {"different"}
    assert found["weights"] == "same"


def test_another_tokenizer_and_recipe(run):
    tokenizer = json.loads((run / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"]
    words["w1"], words["w2"] = words["w2"], words["w1"]
    (run / "tokenizer.json").write_text(json.dumps(tokenizer))
    (run / "recipe.toml").write_text((run / "recipe.toml").read_text().replace("seed = 1", "seed = 7"))
    found = verdicts(run)
    assert {found["tokenizers"], found["recipe"], found["perplexity"]} == {"different"}


@pytest.mark.parametrize(
    ("change", "what", "verdict"),
    [
        ({"perplexity": 8.6}, "perplexity", "different"),
        ({"tokens": 1}, "tokens", "different"),
        ({"machine": {"threads": 64, "torch": "1.0"}}, "threads", "elsewhere"),
        ({"machine": {"threads": 64, "torch": "1.0"}}, "torch", "elsewhere"),
        ({"machine": None}, "kernel", "not recorded"),
        ({"weights": None}, "weights", "not recorded"),
        ({"weights": "0" * 16}, "weights", "different"),
    ],
)
def test_what_was_recorded_is_compared(run, change, what, verdict):
    change_result(run, lambda score: score.update(change))
    found = verdicts(run)
    assert found.pop(what) == verdict
    assert "different" not in found.values()


def test_rounding_is_no_difference(run):
    change_result(run, lambda score: score.update(perplexity=score["perplexity"] * (1 + 1e-7)))
    found = verdicts(run)
    assert found.pop("perplexity") == "rounding"
    assert set(found.values()) == {"same"}


def test_prepared_tokens_are_not_trusted(run):
    """Someone who can write into the cache can also write the checksums there."""
    for tokens in (run.parent / "cache" / "prepared").glob("*.tokens"):
        ids = np.frombuffer(tokens.read_bytes(), "<u2").copy()
        ids[ids > 1] = 2
        tokens.write_bytes(ids.tobytes())
        files = (tokens, tokens.with_suffix(".lines"))
        sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
        tokens.with_suffix(".sha256").write_text("".join(sums))
    assert set(verdicts(run).values()) == {"same"}
    (run / "result.json").unlink()
    assert command("eval", run, "--split", "test").returncode == 0
    found = verdicts(run)
    assert found["perplexity"] == "different"
    assert found["text"] == "same"


def test_what_cannot_be_verified(run):
    assert "has no score of the split 'valid' to verify" in command("verify", run, "--split", "valid").stderr
    trained = load(run)
    score = trained.run.results()[0]
    for change, message in [
        ({"dynamic": "1"}, "dynamic evaluation can't be verified"),
        ({"cache": "1,2"}, "'1,2', which"),
    ]:
        with pytest.raises(G2Error, match=message):
            verify(trained, score.model_copy(update=change))
    (run / "result.json").unlink()
    done = command("verify", run)
    assert done.returncode == 2
    assert "has no score to verify; make one with `g2lstm eval" in done.stderr


def test_equal_weights_are_equal_files(run):
    """Whatever order the metadata are given in; the library itself writes them in a new order every time."""
    weights, facts = load_file(run / "model.safetensors"), RunDirectory(run).training_facts()
    model, contents = load(run).model, set()
    for _ in range(4):
        facts = dict(reversed(facts.items()))
        RunDirectory(run).save_weights(model, facts)
        contents.add((run / "model.safetensors").read_bytes())
    assert len(contents) == 1
    assert RunDirectory(run).training_facts() == facts
    for name, value in load_file(run / "model.safetensors").items():
        assert torch.equal(value, weights.pop(name))
    assert not weights
