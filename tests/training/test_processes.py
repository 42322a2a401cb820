"""Two processes on the CPU train as one does with the joint batch; each keeps what is its own; none waits for ever."""

import json
import sys

import pytest
import torch

from g2lstm import G2Error
from g2lstm.recipes.files import recipe_to_toml
from g2lstm.runs.directory import RunDirectory
from g2lstm.training.checkpoint import latest_checkpoint
from g2lstm.training.environment import deaths_explained
from g2lstm.training.start import train_recipe
from tests.training import pair
from tests.training.launch import start_pair, start_torchrun, wait_for
from tests.training.toys import Recorder, lm_recipe, mt_recipe, write_text


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The folder that two processes have worked in; see `pair.main`."""
    folder = tmp_path_factory.mktemp("pair")
    write_text(folder / "data")
    pair.interrupt(pair.QUIET["lm"](folder / "data"), folder / "one-to-two")
    pair.interrupt(pair.QUIET["mt"](folder / "data"), folder / "one-to-two-mt")
    processes = start_pair("-m", "tests.training.pair", folder)
    messages = wait_for(processes)
    assert [process.returncode for process in processes] == [0, 0], messages
    return folder


def curve_of(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


def alone(recipe, out, **options):
    curve = Recorder()
    train_recipe(recipe, out, curve, **options)
    return curve


def state_of(folder):
    return latest_checkpoint(folder / "checkpoints")[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", pair.QUIET)
def test_the_losses_are_those_of_one_process(done, tmp_path, name):
    two, one = curve_of(done, name), alone(pair.QUIET[name](done / "data"), tmp_path / "one")
    assert two["losses"] == pytest.approx(one.losses, rel=1e-4)
    assert two["validations"] == pytest.approx([one.loss for one in one.validations], rel=1e-4)
    assert two["tokens"] == one.tokens
    assert one.losses[-1] < one.losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["noisy", "noisy-mt"])
def test_resumed_is_uninterrupted_in_each_process(done, name):
    whole, cut = state_of(done / name), state_of(done / f"{name}-cut")
    assert all(torch.equal(cut["model"][key], value) for key, value in whole["model"].items())
    for ours, theirs in zip(cut["processes"], whole["processes"], strict=True):
        assert torch.equal(ours["random"], theirs["random"])
    first, second = (process["random"] for process in whole["processes"])
    assert not torch.equal(first, second)


@pytest.mark.slow
def test_another_number_of_processes_goes_on_where_they_were(done, tmp_path):
    for name, folder in (("lm", "one-to-two"), ("mt", "one-to-two-mt")):
        curve = curve_of(done, folder)
        expected = curve_of(done, name)["losses"]
        assert curve["losses"] == pytest.approx(expected[-len(curve["losses"]) :], rel=1e-4)
        assert "1 process(es) before, 2 now: noise and dropout start new streams" in curve["messages"]
    for name, folder in (("lm", "two-to-one"), ("mt-tokens", "two-to-one-mt")):
        curve = alone(pair.QUIET[name](done / "data"), done / folder, resume=True)
        expected = curve_of(done, name)["losses"]
        assert 0 < len(curve.losses) < len(expected)
        assert curve.losses == pytest.approx(expected[-len(curve.losses) :], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "validations"), [("lm", 4), ("mt", 3)])
def test_only_one_process_writes(done, name, validations):
    steps = [line["step"] for line in RunDirectory(done / name).metrics() if line["kind"] == "valid"]
    assert len(steps) == validations
    assert steps == sorted(set(steps))
    first, *_ = [line["step"] for line in RunDirectory(done / name).metrics() if line["kind"] == "train"]
    assert [line["step"] for line in RunDirectory(done / name).metrics()].count(first) == 1
    assert len(list((done / name / "events").iterdir())) == 1
    assert len(list((done / name / "checkpoints").glob("*.json"))) == 2
    assert not list((done / name / "checkpoints").glob(".*"))


@pytest.mark.slow
def test_all_processes_leave_out_the_same_updates(done):
    found = [json.loads((done / f"skipped-{rank}.json").read_text()) for rank in range(2)]
    assert found[0] == found[1]
    assert found[0][1] == 1
    assert sorted(path.name for path in (done / "skipped").glob("skipped-*.json")) == [
        "skipped-batch-1.json",
        "skipped-batch.json",
    ]


@pytest.mark.slow
def test_clocks_that_differ_do_not_make_processes_wait_for_ever(done):
    found = [json.loads((done / f"minutes-{rank}.json").read_text()) for rank in range(2)]
    assert found[0] == found[1]
    assert found[0][2]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the names of threads")
def test_no_thread_of_gloo_outlives_python(done):
    for rank in range(2):
        before, after = (
            json.loads((done / f"{name}-{rank}.json").read_text()) for name in ("threads", "threads-at-end")
        )
        assert any("gloo" in name for name in before)
        assert not any("gloo" in name for name in after)


TASKS = {"lm": ("noisy", lm_recipe, 12), "mt": ("noisy-mt", mt_recipe, 11)}
DIES = (  # once: the second of two processes, at a step
    "import os; from pathlib import Path; from g2lstm.cli import main; from g2lstm.training.progress import Silent\n"
    "def die(self, progress, share, values):\n"
    "    if progress.step == int(os.environ['DIES_AT']) and not Path(os.environ['GRAVE']).exists():\n"
    "        Path(os.environ['GRAVE']).touch()\n"
    "        os.kill(os.getpid(), 9)\n"
    "Silent.on_step = die\n"
    "main.main()\n"
)


def write_recipe(path, recipe):
    path.write_text(recipe_to_toml(recipe))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_process_that_dies_ends_the_other_with_a_clear_message(tmp_path, task):
    write_text(tmp_path / "data")
    _, make_recipe, step = TASKS[task]
    recipe = write_recipe(tmp_path / "recipe.toml", make_recipe(tmp_path / "data", epochs=200))
    command = ("-c", DIES, "train", recipe, "--out", tmp_path / "run")
    processes = start_pair(*command, DIES_AT=step, GRAVE=tmp_path / "grave")
    messages = wait_for(processes)
    assert [process.returncode for process in processes] == [2, -9], messages
    assert "another process of this training run has died" in messages[0]
    assert "Traceback" not in messages[0]
    assert 0 < latest_checkpoint(tmp_path / "run/checkpoints")[0]["progress"]["step"] < step


@pytest.mark.slow
@pytest.mark.parametrize(("task", "nodes"), [("lm", 1), ("mt", 2)])
def test_torchrun_brings_a_run_back_with_one_restart(done, tmp_path, task, nodes):
    """Also over two nodes, of which only the one whose process died counts a restart."""
    name, make_recipe, step = TASKS[task]
    recipe = write_recipe(tmp_path / "recipe.toml", make_recipe(done / "data"))
    script = tmp_path / "script.py"
    script.write_text(DIES)
    out = tmp_path / "run"
    command = (script, "train", recipe, "--out", out, "--resume")
    agents = start_torchrun(nodes, *command, DIES_AT=step, GRAVE=tmp_path / "grave")
    messages = wait_for(agents)
    assert [agent.returncode for agent in agents] == [0] * nodes, messages
    whole, died = state_of(done / name), state_of(out)
    assert all(torch.equal(died["model"][key], value) for key, value in whole["model"].items())
    for only_once in ("continuing from step ", "best validation "):
        assert "".join(messages).count(only_once) == 1, messages


def test_torchrun_is_not_trusted_with_restarts_where_it_shares_its_store(tmp_path, data, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    with pytest.raises(G2Error, match=r"set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its .*, or .* --max-restarts 0"):
        train_recipe(lm_recipe(data), tmp_path / "run")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "0")
    assert train_recipe(lm_recipe(data, epochs=1), tmp_path / "run").finished


def test_what_gloo_says_of_a_death_is_told_and_other_errors_are_not():
    with pytest.raises(G2Error, match="another process of this training run has died.*--resume"), deaths_explained():
        raise RuntimeError("[/pytorch/third_party/gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:1")
    with pytest.raises(RuntimeError, match="size mismatch"), deaths_explained():
        raise RuntimeError("size mismatch")
