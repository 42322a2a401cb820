"""Texts that no test changes, and training runs to copy from."""

import shutil
from types import SimpleNamespace

import pytest

from tests.training.toys import ADAMW, ASGD, NTASGD, interrupted, lm_recipe, make_trainer, write_text


@pytest.fixture(scope="session")
def data(folder):
    """A folder of tiny texts for both tasks; the cache of prepared texts is beside it."""
    return write_text(folder / "data")


@pytest.fixture(scope="session")
def whole(data, tmp_path_factory):
    """Uninterrupted training runs of a language model by the optimiser's name, finished."""
    made = {}
    courses = {"adamw": {"start": 0.4, "noise_rate": 0.5}}  # its gates begin in the second of three epochs
    for name, optimizer, epochs in (("adamw", ADAMW, 3), ("ntasgd", NTASGD, 6), ("asgd", ASGD, 2)):
        recipe, seen = lm_recipe(data, optimizer=optimizer, epochs=epochs, gates=courses.get(name)), []
        out = tmp_path_factory.mktemp("whole") / name
        trainer = make_trainer(recipe, out, lambda _, out=out, seen=seen: seen.append(checkpoints(out)))
        trainer.train()
        made[name] = SimpleNamespace(recipe=recipe, trainer=trainer, path=out, checkpoints_seen=seen)
    return made


@pytest.fixture(scope="session")
def cut(data, tmp_path_factory):
    """A training run that was interrupted after its fifth step."""
    recipe, out = lm_recipe(data), tmp_path_factory.mktemp("cut") / "run"
    interrupted(recipe, out, 5)
    return SimpleNamespace(recipe=recipe, path=out)


def checkpoints(run):
    return sorted(path.name for path in (run / "checkpoints").glob("*.json"))


@pytest.fixture
def copy(tmp_path):
    """Copies a run directory into this test's own folder."""
    return lambda run: shutil.copytree(run, tmp_path / "copy")
