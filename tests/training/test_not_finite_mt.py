"""Translation and numbers that are not finite: left out and counted, the batch kept, never saved."""

import pytest
import torch

from g2lstm import G2Error
from g2lstm.training.checkpoint import load_checkpoint
from g2lstm.training.loop import MAX_SKIPPED
from tests.tasks.mt import test_training as test_mt
from tests.training.observers import Silent
from tests.training.test_loop import spoil, weights

data = test_mt.data


@pytest.mark.parametrize("where", ["gradient", "loss"])
def test_an_update_that_is_not_finite_is_left_out_and_its_batch_kept(data, tmp_path, where):
    trainer = test_mt.make_trainer(data, tmp_path / "run", Silent(), epochs=1)
    batches = spoil(trainer, lambda step: step in (1, 2), where=where)
    progress = trainer.train()
    assert (progress.skipped, progress.skipped_in_a_row, progress.finished) == (2, 0, True)
    assert all(value.isfinite().all() for value in weights(trainer).values())
    kept = load_checkpoint(tmp_path / "run/skipped-batch.json")["batch"]
    for name, value in batches[0]._asdict().items():
        assert torch.equal(kept[name], value) if isinstance(value, torch.Tensor) else kept[name] == value


def test_too_many_in_a_row_end_training(data, tmp_path):
    trainer = test_mt.make_trainer(data, tmp_path / "run", Silent())
    before = weights(trainer)
    spoil(trainer, lambda step: True)
    with pytest.raises(G2Error, match=f"{MAX_SKIPPED} updates in a row were skipped .*skipped-batch.json"):
        trainer.train()
    assert all(torch.equal(value, before[name]) for name, value in weights(trainer).items())


def test_weights_that_are_not_finite_are_never_saved(data, tmp_path):
    """Here they show in the validation, whose message names the last good state."""

    def poison(progress):
        if trainer.task.epoch_progress >= 1 and progress.epoch == 1:
            with torch.no_grad():
                trainer.task.model.softmax_bias.fill_(torch.nan)

    trainer = test_mt.make_trainer(data, tmp_path / "run", Silent(poison))
    with pytest.raises(G2Error, match="validation loss became nan after step .*; the last good state is .*step-0"):
        trainer.train()
    for path in (tmp_path / "run/checkpoints").glob("*.json"):
        assert all(value.isfinite().all() for value in load_checkpoint(path)["model"].values())
    assert all(value.isfinite().all() for value in trainer.run.load_weights().values())
