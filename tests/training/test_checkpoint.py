"""Checkpoints: whole or refused, tensors and numbers as they were, nothing pickled."""

import errno
import hashlib
import json
import os
from pathlib import Path

import pytest
import torch

from g2lstm import G2Error
from g2lstm.training.checkpoint import latest_checkpoint, load_checkpoint, pack, save_checkpoint, unpack

STATE = {
    "step": 3,
    "rate": 0.1 + 0.2,
    "name": "x",
    "none": None,
    "flag": True,
    "list": [1, [torch.arange(3)], {"deep": torch.ones(2, dtype=torch.bfloat16)}],
    "random": torch.get_rng_state(),
    "empty": [],
}


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def test_round_trip(tmp_path):
    path = save_checkpoint(tmp_path, 3, STATE)
    assert same(load_checkpoint(path), STATE)


def test_views_of_one_tensor_are_saved_apart(tmp_path):
    whole = torch.randn(4, 4)
    state = load_checkpoint(save_checkpoint(tmp_path, 1, {"a": whole[:2], "b": whole, "c": whole.t()}))
    assert torch.equal(state["a"], whole[:2])
    assert torch.equal(state["c"], whole.t())


def test_only_the_newest_are_kept(tmp_path):
    for step in (1, 2, 30, 40):
        save_checkpoint(tmp_path, step, {"step": step})
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"step-{n:08d}.{kind}" for n in (30, 40) for kind in ("json", "safetensors")]
    # Going back to an earlier step, what is written is kept.
    assert save_checkpoint(tmp_path, 35, {"step": 35}).exists()
    assert save_checkpoint(tmp_path, 36, {"step": 36}).exists()


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "header"])
def test_a_broken_one_is_named_and_passed_over(tmp_path, damage):
    save_checkpoint(tmp_path, 1, {"t": torch.arange(100)})
    path = save_checkpoint(tmp_path, 2, {"t": torch.arange(100) + 1})
    tensors = path.with_suffix(".safetensors")
    content = bytearray(tensors.read_bytes())
    if damage == "truncate":
        tensors.write_bytes(content[:-1])
    elif damage == "flip":
        content[-5] ^= 1
        tensors.write_bytes(content)
    elif damage == "remove":
        tensors.unlink()
    else:
        path.write_text(path.read_text()[:-10])
    with pytest.raises(G2Error, match="step-00000002"):
        load_checkpoint(path)
    state, problems = latest_checkpoint(tmp_path)
    assert torch.equal(state["t"], torch.arange(100))
    assert len(problems) == 1
    assert "step-00000002" in problems[0]


def test_none_whole_is_an_error_and_touches_nothing(tmp_path):
    path = save_checkpoint(tmp_path, 1, {"t": torch.arange(100)})
    path.with_suffix(".safetensors").write_bytes(b"")
    with pytest.raises(G2Error, match=r"step-00000001.*no earlier checkpoint is intact"):
        latest_checkpoint(tmp_path)
    assert path.exists()


def test_another_version_is_an_error_not_a_broken_one(tmp_path):
    save_checkpoint(tmp_path, 1, {"t": torch.arange(100)})
    path = save_checkpoint(tmp_path, 2, {"t": torch.arange(100)})
    header = json.loads(path.read_text())
    del header["header_sha256"]
    header["version"] = 99
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**header, "header_sha256": digest}))
    with pytest.raises(G2Error, match="has version 99, but this g2lstm reads version 2"):
        latest_checkpoint(tmp_path)


def test_no_byte_of_a_checkpoint_can_change_unnoticed(tmp_path):
    state = {"step": 12, "rate": 0.25, "t": torch.arange(3)}
    path = save_checkpoint(tmp_path, 1, state)
    for file in (path, path.with_suffix(".safetensors")):
        content = file.read_bytes()
        for index in range(len(content)):
            damaged = bytearray(content)
            damaged[index] ^= 1 << index % 8
            file.write_bytes(damaged)
            with pytest.raises(G2Error, match="step-00000001"):
                load_checkpoint(path)
        file.write_bytes(content)
    assert same(load_checkpoint(path), state)


def test_what_a_killed_process_left_is_cleared_away(tmp_path):
    (tmp_path / ".step-00000001.json.abc.tmp").write_bytes(b"half")
    (tmp_path / "step-00000001.safetensors").write_bytes(b"no JSON")
    save_checkpoint(tmp_path, 9, {"step": 9}).write_text("broken")
    save_checkpoint(tmp_path, 3, {"step": 3})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003.json", "step-00000003.safetensors"]


@pytest.mark.parametrize("write", [1, 2], ids=["tensors", "json"])
def test_a_full_disk_keeps_the_last_whole_one(tmp_path, monkeypatch, write):
    save_checkpoint(tmp_path, 1, {"t": torch.arange(100)})
    calls = []

    def full(handle):
        calls.append(handle)
        if len(calls) == write:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None if Path(f"/proc/self/fd/{handle}").is_dir() else full(handle))
        with pytest.raises(G2Error, match="step-00000002.* could not be written, the disk is full: No space left"):
            save_checkpoint(tmp_path, 2, {"t": torch.arange(100) + 1})
    state, problems = latest_checkpoint(tmp_path)
    assert torch.equal(state["t"], torch.arange(100))
    assert problems == []
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("write", [1, 2], ids=["tensors", "json"])
def test_a_step_that_is_saved_again_is_never_half_of_each(tmp_path, monkeypatch, write):
    for step in (1, 2):
        save_checkpoint(tmp_path, step, {"t": torch.arange(step)})
    replace, calls = os.replace, []

    def killed(old, new):
        replace(old, new)
        calls.append(new)
        if len(calls) == write:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, 2, {"t": torch.arange(3)})
    state, problems = latest_checkpoint(tmp_path)
    assert (len(state["t"]), problems) == (1 if write == 1 else 3, [])


def test_a_number_that_json_lacks_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Out of range float"):
        save_checkpoint(tmp_path, 1, {"loss": float("nan")})
    assert not list(tmp_path.iterdir())


def test_states_go_through_bytes():
    assert same(unpack(pack(STATE)), STATE)


def test_no_checkpoint_is_none(tmp_path):
    assert latest_checkpoint(tmp_path) == (None, [])


def test_what_cannot_be_held_is_refused(tmp_path):
    with pytest.raises(TypeError):
        save_checkpoint(tmp_path, 1, {"x": object()})
    assert not list(tmp_path.iterdir())
