"""Two processes on the CPU train as one does with the joint batch; each keeps what is its own; none waits for ever."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from g2lstm import G2Error
from g2lstm.data.corpus import prepare_stream, prepare_tokenizer
from g2lstm.data.windows import Columns
from g2lstm.runs.directory import RunDirectory
from g2lstm.training.checkpoint import latest_checkpoint
from g2lstm.training.processes import deaths_told, noise_seed
from g2lstm.training.start import train
from tests.training import pair

ROOT = Path(__file__).parent.parent.parent


def start_pair(*arguments):
    """Two processes as torchrun would start them, but with nobody who ends the one if the other dies."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            cwd=ROOT,
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


def wait_for(processes, timeout=300):
    """Their messages; one that does not end in time fails the test."""
    try:
        return [process.communicate(timeout=timeout)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The folder that two processes have worked in; see `pair.main`."""
    folder = tmp_path_factory.mktemp("pair")
    pair.write_text(folder / "data")
    pair.interrupted(pair.lm_recipe(folder / "data"), folder / "one-to-two", 20)
    pair.interrupted(pair.mt_recipe(folder / "data"), folder / "one-to-two-mt", 11)
    processes = start_pair("-m", "tests.training.pair", folder)
    messages = wait_for(processes)
    assert [process.returncode for process in processes] == [0, 0], messages
    return folder


def curve_of(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


def alone(recipe, out, **options):
    curve = pair.Curve()
    train(recipe, out, curve, **options)
    return curve


def state_of(folder):
    return latest_checkpoint(folder / "checkpoints")[0]


RECIPES = {
    "lm": pair.lm_recipe,
    "mt": pair.mt_recipe,
    "mt-tokens": lambda data: pair.mt_recipe(data, batch_tokens=120),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_the_losses_are_those_of_one_process(done, tmp_path, name):
    two, one = curve_of(done, name), alone(RECIPES[name](done / "data"), tmp_path / "one")
    assert two["losses"] == pytest.approx(one.losses, rel=1e-4)
    assert two["validations"] == pytest.approx(one.validations, rel=1e-4)
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
        assert "1 process(es) before, 2 now: noise and dropout are drawn anew" in curve["messages"]
    for name, folder, recipe in (
        ("lm", "two-to-one", pair.lm_recipe(done / "data")),
        ("mt-tokens", "two-to-one-mt", pair.mt_recipe(done / "data", batch_tokens=120)),
    ):
        curve = alone(recipe, done / folder, resume=True)
        expected = curve_of(done, name)["losses"]
        assert 0 < len(curve.losses) < len(expected)
        assert curve.losses == pytest.approx(expected[-len(curve.losses) :], rel=1e-4)


@pytest.mark.slow
def test_only_one_process_writes(done):
    steps = [line["step"] for line in RunDirectory(done / "lm").metrics() if line["kind"] == "valid"]
    assert len(steps) == 4
    assert steps == sorted(set(steps))
    assert len(list((done / "lm/events").iterdir())) == 1
    assert len(list((done / "lm/checkpoints").glob("*.json"))) == 2
    assert not list((done / "lm/checkpoints").glob(".*"))


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
def test_a_process_that_dies_ends_the_other_with_a_clear_message(tmp_path):
    pair.write_text(tmp_path / "data")
    script = (
        "import os, sys; from pathlib import Path; from tests.training import pair; from g2lstm.training import start\n"
        "from g2lstm.cli import main\n"
        "if os.environ['RANK'] == '1':\n"
        "    def die(self, progress, share, values):\n"
        "        if progress.step == 20: os.kill(os.getpid(), 9)\n"
        "    start.Silent.on_step = die\n"
        "main.main()\n"
    )
    recipe = tmp_path / "recipe.toml"
    from g2lstm.config import recipe_to_toml

    recipe.write_text(recipe_to_toml(pair.lm_recipe(tmp_path / "data", epochs=200)))
    processes = start_pair("-c", script, "train", recipe, "--out", tmp_path / "run")
    messages = wait_for(processes)
    assert [process.returncode for process in processes] == [2, -9], messages
    assert "another process of this training has ended" in messages[0]
    assert "Traceback" not in messages[0]
    assert 0 < latest_checkpoint(tmp_path / "run/checkpoints")[0]["progress"]["step"] < 20


@pytest.mark.slow
def test_torchrun_brings_a_run_back_after_a_death(done, tmp_path):
    """Some restarts are for gloo, which now and then does not find the new processes at the first try."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys; from pathlib import Path; from tests.training import pair; from g2lstm.training import start\n"
        "folder = Path(sys.argv[1])\n"
        "def die(self, progress, share, values):\n"
        "    if progress.step == 20 and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "        os.kill(os.getpid(), 9)\n"
        "start.Silent.on_step = die\n"
        "start.train(pair.lm_recipe(folder / 'data', quiet=False), folder / 'dies', pair.Curve(), resume=True)\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=3"]
    ended = subprocess.run(
        [*command, str(script), str(done)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    whole, died = state_of(done / "noisy"), state_of(done / "dies")
    assert all(torch.equal(died["model"][name], value) for name, value in whole["model"].items())


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_columns_of_all_processes_are_the_text_once(tmp_path, size):
    pair.write_text(tmp_path / "data")
    text = tmp_path / "data/train.txt"
    stream = prepare_stream(text, prepare_tokenizer(text, cache=tmp_path), cache=tmp_path)
    everyone = [Columns(stream, 8, rank=rank, world_size=size) for rank in range(size)]
    windows = [columns.window(0, columns.rows) for columns in everyone]
    read = torch.cat([window.tokens.t().flatten() for window in windows])
    assert torch.equal(read, torch.from_numpy(stream.read(0, len(read))))
    assert len(stream) - 1 - len(read) < 8
    targets = torch.cat([window.targets.t().flatten() for window in windows])
    assert torch.equal(targets, torch.from_numpy(stream.read(1, len(read))))


@pytest.mark.parametrize("options", [{}, {"batch_tokens": 120}])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_batches_of_all_processes_are_the_pairs_once(tmp_path, size, options):
    from accelerate import Accelerator

    from g2lstm.training.mt import TranslationTask
    from g2lstm.training.prepare import prepare

    pair.write_text(tmp_path / "data")
    recipe = pair.mt_recipe(tmp_path / "data", **options)
    made = prepare(recipe, Accelerator(cpu=True)).task
    tasks = [
        TranslationTask(
            recipe, made.model, made.batches.corpus, made.valid, made.tokenizers, rank=rank, world_size=size
        )
        for rank in range(size)
    ]
    read, tokens = [], 0
    while (batches := [task.next_batch() for task in tasks])[0] is not None:
        for batch in batches:
            for column, length in zip(batch.source.t(), batch.source_lengths.tolist(), strict=True):
                read.append(tuple(column[: length - 1].tolist()))
        tokens += sum(int((batch.targets >= 0).sum()) for batch in batches)
        assert {batch.target_tokens for batch in batches} == {sum(int((b.targets >= 0).sum()) for b in batches)}
    expected = [tuple(made.batches.corpus.read(index)[0].tolist()) for index in range(len(made.batches.corpus))]
    assert sorted(read) == sorted(expected)


def test_an_epoch_ends_with_the_batches_it_began_with(tmp_path):
    """Batches by tokens depend on the number of processes, each of which needs a pair of every batch."""
    from accelerate import Accelerator

    from g2lstm.training.mt import TranslationTask
    from g2lstm.training.prepare import prepare

    pair.write_text(tmp_path / "data")
    recipe = pair.mt_recipe(tmp_path / "data", batch_tokens=60)
    made = prepare(recipe, Accelerator(cpu=True)).task

    def task(rank, size):
        given = (made.model, made.batches.corpus, made.valid, made.tokenizers)
        return TranslationTask(recipe, *given, rank=rank, world_size=size)

    two = task(1, 2)
    one = task(0, 1)
    assert one.plan.bounds.tolist() != two.plan.bounds.tolist()  # else the test says nothing
    two.next_batch()
    one.load_state_dict([two.state_dict()] * 2)
    assert one.index == 1
    assert one.plan.bounds.tolist() == two.plan.bounds.tolist()
    assert one.state_dict()["planned_for"] == 2
    one.start_epoch()
    assert one.state_dict()["planned_for"] == 1
    assert one.plan.bounds.tolist() == task(0, 1).batches.plan(1).bounds.tolist()
    with pytest.raises(G2Error, match=r"begun with 1 process\(es\) and has a batch of 1 pair\(s\), which 2 processes"):
        task(0, 2).load_state_dict([task(0, 1).state_dict()])


def test_streams_of_noise_differ_by_process_seed_and_step():
    seeds = {noise_seed(seed, rank, step) for seed in range(9) for rank in range(9) for step in range(9)}
    assert len(seeds) == 9**3
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_what_gloo_says_of_a_death_is_told_and_other_errors_are_not():
    with pytest.raises(G2Error, match="another process of this training has ended.*--resume"), deaths_told():
        raise RuntimeError("[/pytorch/third_party/gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:1")
    with pytest.raises(RuntimeError, match="size mismatch"), deaths_told():
        raise RuntimeError("size mismatch")
