"""Training from Python: `g2lstm.train` and `train_recipe`, which leave the caller's settings as they were."""

import doctest
import errno
import math
import shutil
import threading
from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

import g2lstm
from g2lstm import G2Error, load
from g2lstm.nn import kernel
from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.recipes import load_recipe, parse_recipe
from g2lstm.text.datasets import fetch
from g2lstm.training.checkpoint import latest_checkpoint
from g2lstm.training.environment import Interrupted
from g2lstm.training.loop import Trainer
from g2lstm.training.progress import Silent
from g2lstm.training.start import prepare, train_recipe
from tests.training.toys import Recorder, stop_at


@pytest.fixture
def tables(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text("a b c d e f g\n" * 20)
    return {
        "task": "lm",
        "data": {"path": str(folder), "tokenizer": "word"},
        "model": {"embedding": 4, "hidden": 4, "layers": 1},
        "train": {"epochs": 1, "batch_size": 2, "bptt": 5},
    }


def test_training_leaves_the_callers_settings_alone_and_runs_in_a_thread(tables, tmp_path):
    out = tmp_path / "run"
    worker = threading.Thread(target=train_recipe, args=(parse_recipe(tables), out))
    worker.start()
    worker.join()
    assert (out / "model.safetensors").is_file()
    train_recipe(parse_recipe(tables), str(tmp_path / "again"))
    assert (torch.tensor([1e-310], dtype=torch.float64) * 1.0).item() != 0.0


def test_paths_in_the_recipe_mean_the_same_from_any_folder(tables, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tables["data"]["path"] = "data"
    train_recipe(parse_recipe(tables), "run")
    monkeypatch.chdir("/")
    assert load(tmp_path / "run").split("test").read(0, 3).shape == (3,)


def test_finetuning_starts_from_the_weights_and_keeps_the_tokenizer(tables, tmp_path):
    train_recipe(parse_recipe(tables), tmp_path / "first")
    weights = load_file(RunDirectory(tmp_path / "first").model_file)
    finetune = parse_recipe(tables, [f"train.finetune_from={tmp_path / 'first'}", "train.seed=7"])
    learner, _ = prepare(finetune, Accelerator(cpu=True))
    assert all(torch.equal(learner.model.state_dict()[name], value) for name, value in weights.items())
    with pytest.raises(G2Error, match="its tokenizer cannot change: data.lowercase was false, is now true"):
        prepare(
            parse_recipe(tables, [f"train.finetune_from={tmp_path / 'first'}", "data.lowercase=true"]),
            Accelerator(cpu=True),
        )
    with pytest.raises(G2Error, match="does not fit the recipe"):
        prepare(
            parse_recipe(tables, [f"train.finetune_from={tmp_path / 'first'}", "model.hidden=5", "model.layers=2"]),
            Accelerator(cpu=True),
        )


def test_finetuning_goes_on_without_the_run_that_it_began_with(tables, tmp_path):
    train_recipe(parse_recipe(tables), tmp_path / "first")
    finetune = parse_recipe(tables, [f"train.finetune_from={tmp_path / 'first'}", "train.epochs=3"])
    train_recipe(finetune, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train_recipe(finetune, tmp_path / "cut", Recorder(stop_at(2)))
    shutil.rmtree(tmp_path / "first")
    train_recipe(finetune, tmp_path / "cut", resume=True)
    ours, theirs = (load_file(RunDirectory(tmp_path / name).model_file) for name in ("cut", "whole"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    with pytest.raises(G2Error, match="first is not a run directory"):
        train_recipe(finetune, tmp_path / "new")


def test_resuming_with_another_recipe_says_what_differs(tables, tmp_path):
    train_recipe(parse_recipe(tables), tmp_path / "run")
    other = parse_recipe(tables, ["data.vocabulary=20", "train.minutes=3"])
    with pytest.raises(G2Error, match="data.vocabulary was not set, is now 20; train.minutes was not set, is now 3"):
        train_recipe(other, tmp_path / "run", resume=True)


def test_resuming_uses_the_tokenizer_of_the_run(tables, tmp_path):
    train_recipe(parse_recipe(tables), tmp_path / "run")
    (tmp_path / "run/tokenizer.json").unlink()
    with pytest.raises(G2Error, match=r"has no tokenizer\.json"):
        train_recipe(parse_recipe(tables), tmp_path / "run", resume=True)


@pytest.mark.parametrize("where", ["file", "file/below"])
def test_a_folder_that_cannot_be_made(tables, tmp_path, where):
    (tmp_path / "file").write_text("")
    with pytest.raises(G2Error, match="choose"):
        train_recipe(parse_recipe(tables), tmp_path / where)


def test_a_folder_of_others_is_not_touched(tables, tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "letter.txt").write_text("dear")
    (theirs / ".lock").write_text("theirs")
    with pytest.raises(G2Error, match="is not an empty folder"):
        train_recipe(parse_recipe(tables), theirs)
    assert (theirs / ".lock").read_text() == "theirs"
    assert len(list(theirs.iterdir())) == 2


def test_trainings_in_one_process_have_settings_of_their_own(tables, tmp_path):
    """Also beside an accelerator of the caller's, which accelerate would hand out again, and which stays as it is."""
    theirs = Accelerator(cpu=True, gradient_accumulation_steps=4)
    types = {}

    class Watching(Silent):
        def __init__(self, name):
            self.name = name

        def on_step(self, progress, share, values):
            types[self.name] = Accelerator(cpu=True).mixed_precision

    for name in ("fp32", "bf16", "fp32 again"):
        recipe = parse_recipe(tables, [f"train.precision={name.split()[0]}"])
        train_recipe(recipe, tmp_path / name, Watching(name))
    assert types == {"fp32": "no", "bf16": "bf16", "fp32 again": "no"}
    weights = {name: latest_checkpoint(RunDirectory(tmp_path / name).checkpoints)[0]["model"] for name in types}
    assert all(torch.equal(value, weights["fp32 again"][name]) for name, value in weights["fp32"].items())
    assert any(not torch.equal(value, weights["bf16"][name]) for name, value in weights["fp32"].items())
    assert theirs.mixed_precision == "no"
    assert theirs.gradient_accumulation_steps == 4
    assert theirs.gradient_state.num_steps == 4


def test_two_trainings_at_once_in_one_process_are_refused(tables, tmp_path):
    class Starting(Silent):
        def on_step(self, progress, share, values):
            with pytest.raises(G2Error, match="another training run is active in this Python process"):
                train_recipe(parse_recipe(tables), tmp_path / "second")
            self.tried = True

    observer = Starting()
    train_recipe(parse_recipe(tables), tmp_path / "first", observer)
    assert observer.tried
    assert not (tmp_path / "second").exists()
    train_recipe(parse_recipe(tables), tmp_path / "second")


def test_a_full_disk_in_any_file_is_told(tables, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RunDirectory, "append_metrics", full)
    with pytest.raises(
        G2Error,
        match=r"the disk with .*run is full: .*No space left.*free some space, then continue with --resume",
    ):
        train_recipe(parse_recipe(tables), tmp_path / "run")


def test_a_start_that_was_cut_short_can_be_taken_up(tables, tmp_path):
    """Killed after the tokenizer was written and before the recipe was, which is last."""
    train_recipe(parse_recipe(tables), tmp_path / "whole")
    out = tmp_path / "run"
    out.mkdir()
    (out / ".lock").touch()
    (out / "tokenizer.json").write_bytes((tmp_path / "whole/tokenizer.json").read_bytes()[:50])
    (out / ".recipe.toml.12ab.tmp").write_text("task")
    train_recipe(parse_recipe(tables), out, resume=True)
    found, expected = (
        latest_checkpoint(RunDirectory(one).checkpoints)[0]["model"] for one in (out, tmp_path / "whole")
    )
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_resumed_in_bfloat16_is_uninterrupted(tables, tmp_path):
    recipe, found = parse_recipe(tables, ["train.precision=bf16"]), []
    for name in ("whole", "cut"):
        after = stop_at(2) if name == "cut" else lambda progress: None
        with pytest.raises(Interrupted) if name == "cut" else nullcontext():
            train_recipe(recipe, tmp_path / name, Recorder(after))
    train_recipe(recipe, tmp_path / "cut", resume=True)
    for name in ("whole", "cut"):
        state = latest_checkpoint(RunDirectory(tmp_path / name).checkpoints)[0]
        assert {value.dtype for value in state["model"].values()} == {torch.float32}
        found.append(state["model"])
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


@pytest.mark.parametrize("has_it", [True, False])
@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU")
def test_it_says_where_bfloat16_does_not_pay(tables, tmp_path, monkeypatch, has_it):
    monkeypatch.setattr(kernel, "find", lambda: kernel.Found(None, "compiled for AVX2", has_it))
    monkeypatch.setattr(Trainer, "train", lambda *_, **__: None)
    recorder = Recorder()
    train_recipe(parse_recipe(tables, ["train.precision=bf16"]), tmp_path / "run", recorder)
    said = [message for message in recorder.messages if "bfloat16" in message]
    assert said == [] if has_it else "saves no time here" in said[0] and "(compiled for AVX2)" in said[0]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU, which can do it")
def test_float16_needs_a_gpu(tables, tmp_path):
    with pytest.raises(G2Error, match='train.precision = "fp16" needs a GPU, but there is none; use "bf16" or "fp32"'):
        train_recipe(parse_recipe(tables, ["train.precision=fp16"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = [test for test in doctest.DocTestFinder().find(g2lstm.train, "train") if test.examples]
    assert doctest.DocTestRunner().run(example).failed == 0
    assert len(g2lstm.load("runs/tiny").run.results()) == 1


def test_tables_data_and_observer(tables, tmp_path):
    steps = []

    class Watching(Silent):
        def on_step(self, progress, share, values):
            steps.append(progress.step)

    trained = g2lstm.train(tables, tmp_path / "run", ["model.layers=2", "model.hidden=5"], observer=Watching())
    assert trained.recipe.model.hidden == 5
    assert steps
    with pytest.raises(g2lstm.G2Error, match="already holds a run"):
        g2lstm.train(tables, tmp_path / "run")
    again = g2lstm.train(
        tables, tmp_path / "run", ["model.layers=2", "model.hidden=5"], resume=True, data_dir=str(tmp_path)
    )
    assert again.model.vocabulary_size == trained.model.vocabulary_size


def test_a_text_is_enough(tmp_path, monkeypatch):
    monkeypatch.setenv("G2LSTM_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "cats.txt"
    path.write_text("The cat sat on the mat.\nThe dog, it seems, saw the cat.\n" * 60)
    small = ["train.epochs=1", "model.embedding=8", "model.hidden=12"]
    trained = g2lstm.train(path, tmp_path / "run", small)
    assert trained.recipe == load_recipe(path, small)
    assert (trained.recipe.data.tokenizer, trained.recipe.train.minutes) == ("bpe", 1)


def test_the_frequencies_of_words_may_be_known_from_the_start(tables, tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"data/{split}.txt").write_text("the cat saw the dog\nthe dog ran\n" * 20)
    plain, _ = prepare(parse_recipe(tables, ["train.frequency_bias=false"]), Accelerator(cpu=True))
    knowing, tokenizers = prepare(parse_recipe(tables, ["train.frequency_bias=true"]), Accelerator(cpu=True))
    assert not plain.model.softmax_bias.any()
    id_of = tokenizers["tokenizer.json"].id_of
    bias = {word: knowing.model.softmax_bias[id_of(word)].item() for word in ("the", "dog", "cat")}
    assert bias["the"] - bias["cat"] == pytest.approx(math.log(61 / 21))
    assert bias["dog"] - bias["cat"] == pytest.approx(math.log(41 / 21))
    others = [name for name, _ in plain.model.named_parameters() if name != "softmax_bias"]
    same = dict(plain.model.named_parameters())
    assert all(torch.equal(same[name], knowing.model.get_parameter(name)) for name in others)
    assert knowing.validate().loss < plain.validate().loss


DEEP = ["model.layers=8", "model.residual=true", "model.embedding=64", "model.hidden=64"]
SHORT = ["train.minutes=", "train.epochs=1", "train.best_by=loss", "train.optimizer.lr=5e-3"]


def entropy(path):
    """Nats a token of a model that knows how often each occurs in this very text, and nothing else."""
    counts = Counter(word for line in path.read_text().splitlines() for word in [*line.split(), "<eos>"])
    return sum(-count * math.log(count / counts.total()) for count in counts.values()) / counts.total()


@pytest.mark.slow
def test_eight_layers_on_each_side_learn(tmp_path):
    """Counts of words are learnt without any layer; what goes beyond them has come through the stacks."""
    curve = Recorder()
    train_recipe(load_recipe("embedded-mt", [*DEEP, *SHORT]), tmp_path / "run", curve)
    before, after = (validation.loss for validation in curve.validations)
    counts_alone = entropy(fetch("embedded-mt") / "valid.en")
    assert after < 0.75 * counts_alone < counts_alone < before
