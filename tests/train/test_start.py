"""Training from Python: the caller's settings are as before at the end."""

import threading

import torch

from g2lstm.config import parse_recipe
from g2lstm.train.start import Silent, train


def test_training_leaves_the_callers_settings_alone_and_runs_in_a_thread(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text("a b c d e f g\n" * 20)
    tables = {
        "task": "lm",
        "data": {"path": str(folder)},
        "model": {"embedding": 4, "hidden": 4, "layers": 1},
        "train": {"epochs": 1, "batch_size": 2, "bptt": 5},
    }
    out = tmp_path / "run"
    worker = threading.Thread(target=train, args=(parse_recipe(tables), out, Silent()))
    worker.start()
    worker.join()
    assert (out / "model.safetensors").is_file()
    train(parse_recipe(tables), tmp_path / "again", Silent())
    assert (torch.tensor([1e-310], dtype=torch.float64) * 1.0).item() != 0.0
