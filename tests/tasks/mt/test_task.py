"""Translation in the training loop: resumed is uninterrupted, processes share batches, the loss is what it says."""

import os
import signal

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch.nn import functional as F

from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.mt import task as mt
from g2lstm.tasks.mt.task import TranslationLearner, TranslationLoss
from g2lstm.tasks.mt.trained import score
from g2lstm.tasks.recipes import MT, parse_recipe
from g2lstm.tasks.task import TrainingData, Validation
from g2lstm.text.corpus import PairFiles, prepare_pairs, prepare_tokenizers
from g2lstm.training.environment import Interrupted
from g2lstm.training.loop import Trainer
from g2lstm.training.progress import TrainingProgress
from tests.training.toys import Recorder

ADAMW = {"name": "adamw", "lr": 0.01}
ADADELTA = {"name": "adadelta"}


@pytest.fixture
def data(tmp_path):
    generator = torch.Generator().manual_seed(0)
    folder = tmp_path / "data"
    folder.mkdir()
    for split, lines in (("train", 60), ("valid", 8), ("test", 8)):
        lengths = torch.randint(2, 7, (lines,), generator=generator).tolist()
        words = [torch.randint(9, (length,), generator=generator).tolist() for length in lengths]
        for side, mark in (("de", "w"), ("en", "v")):
            text = "\n".join(" ".join(f"{mark}{w}" for w in line) for line in words)
            (folder / f"{split}.{side}").write_text(text + "\n")
    return folder


def make_task(data, optimizer=ADAMW, world=(0, 1), max_length=64, evaluate=None, **train):
    train = {"epochs": 3, "batch_size": 8, "optimizer": optimizer, **train}
    recipe = parse_recipe({
        "task": "mt", "train": train, "evaluate": evaluate or {},
        "data": {"path": str(data), "source": "de", "target": "en", "tokenizer": "word", "max_length": max_length},
        "model": {"embedding": 8, "hidden": 12},
    })  # fmt: skip
    files = {split: PairFiles(data / f"{split}.de", data / f"{split}.en") for split in ("train", "valid")}
    tokenizers = prepare_tokenizers(files["train"], "word", cache=data)
    corpora = [prepare_pairs(files[split], *tokenizers, cache=data) for split in ("train", "valid")]
    torch.manual_seed(recipe.train.seed)
    model = MT.build(recipe, *map(len, tokenizers))
    return recipe, TranslationLearner(
        recipe, model, TrainingData(tokenizers, *corpora), rank=world[0], world_size=world[1]
    )


def make_trainer(data, out, observer, optimizer=ADAMW, **train):
    recipe, task = make_task(data, optimizer, **train)
    run = RunDirectory(out)
    if not run.recipe_file.exists():
        run = RunDirectory.create(out, recipe, {})
    return Trainer(task, recipe.train, run, Accelerator(cpu=True), observer)


@pytest.mark.parametrize(
    ("cut", "optimizer"),
    [
        pytest.param(1, ADAMW, id="1-adamw"),
        pytest.param(8, ADADELTA, id="8-adadelta"),
        pytest.param(13, ADAMW, id="13-adamw"),
        pytest.param(1, ADADELTA, id="1-adadelta", marks=pytest.mark.slow),
        pytest.param(8, ADAMW, id="8-adamw", marks=pytest.mark.slow),
        pytest.param(13, ADADELTA, id="13-adadelta", marks=pytest.mark.slow),
    ],
)
def test_resumed_training_is_uninterrupted_training(data, tmp_path, optimizer, cut):
    whole = make_trainer(data, tmp_path / "whole", Recorder(), optimizer)
    whole.train()

    def stop(progress):
        if progress.step == cut:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        make_trainer(data, tmp_path / "cut", Recorder(stop), optimizer).train()
    torch.manual_seed(999)  # what a new process would have
    second = make_trainer(data, tmp_path / "cut", Recorder(), optimizer)
    assert second.train(resume=True).step == whole.progress.step
    for name, value in whole.learner.model.state_dict().items():
        assert torch.equal(second.learner.model.state_dict()[name], value), name
    best, expected = load_file(second.run.model_file), load_file(whole.run.model_file)
    assert all(torch.equal(best[name], value) for name, value in expected.items())


def test_processes_together_have_the_gradient_of_one(data):
    """Each reads its part of a batch; the mean of their gradients is that of the whole batch."""
    gradients = []
    for world in ([(0, 1)], [(0, 3), (1, 3), (2, 3)]):
        each = []
        for place in world:
            _, task = make_task(data, world=place)
            task.model.eval()  # no noise, no dropout
            batch = task.next_batch()
            loss = task.loss(task.module, batch)
            loss.total.backward()
            assert loss.tokens == batch.target_tokens
            each.append(torch.cat([p.grad.flatten() for p in task.model.parameters()]))
        gradients.append(torch.stack(each).mean(0))
    assert torch.allclose(*gradients, atol=1e-7)


def test_loss_is_that_of_torch(data):
    _, task = make_task(data, label_smoothing=0.2)
    task.model.eval()
    batch = task.next_batch()
    features = task.model(batch.source, batch.source_lengths, batch.inputs)
    logits = F.linear(features, task.model.output_weight, task.model.softmax_bias).flatten(0, 1)
    found = task.loss(task.module, batch)
    assert isinstance(task.module, TranslationLoss)
    expected = F.cross_entropy(logits, batch.targets.flatten(), label_smoothing=0.2)
    assert found.total.item() == pytest.approx(expected.item(), rel=1e-5)
    assert found.nats == pytest.approx(F.cross_entropy(logits, batch.targets.flatten()).item(), rel=1e-5)


def test_validation(data):
    _, task = make_task(data, best_by="loss")
    task.model.train()
    found = task.validate()
    assert task.model.training
    assert found.criterion == found.loss
    assert 0 <= found.scores["bleu"] <= 100
    for side, layers in (("encoder", 2), ("decoder", 2)):
        for layer in range(layers):
            assert 0 <= found.scores[f"saturation/{side}.{layer}/forget"] <= 1
    _, task = make_task(data)
    found = task.validate()
    assert found.criterion == -found.scores["bleu"]


def test_random_weights_do_not_translate(data, monkeypatch):
    asked = []
    monkeypatch.setattr(
        mt.TranslationLearner, "_validation_scores", lambda task, _: asked.append(task.index) or {"bleu": 50.0}
    )
    _, task = make_task(data)
    assert task.validate().scores["bleu"] == 0.0
    task.next_batch()
    assert task.validate().scores["bleu"] == 50.0
    _, finetuned = make_task(data, finetune_from="a run")
    assert finetuned.validate().scores["bleu"] == 50.0
    assert asked == [1, 0]


@pytest.mark.parametrize("batch_size", [2, 4])
def test_the_gates_of_a_validation_are_those_of_sentences_of_middle_length(data, batch_size):
    _, task = make_task(data, evaluate={"batch_size": batch_size})
    lengths = [length + 1 for length in sorted(task.valid.target.lengths.tolist())]  # as long in both languages
    batches = [lengths[at : at + batch_size] for at in range(0, 8, batch_size)]
    middle = batches[4 // batch_size]
    assert [sum(batch) for batch in batches].count(sum(middle)) == 1  # else the test says nothing
    assert batch_size == 2 or len(set(middle)) > 1  # some of it is padding
    found = task.validate()
    gates = 12 * sum(middle) * 5  # two layers on each side, and the first of the encoder reads in both directions
    assert [sum(found.gates[gate]) for gate in ("input", "forget")] == [gates, gates]


def test_patience_ends_training(data, tmp_path):
    for patience, several in ((1, "1 validation"), (2, "2 validations")):
        observer = Recorder()
        still = {"optimizer": {"name": "adamw", "lr": 1e-30}, "epochs": 50, "patience": patience, "best_by": "loss"}
        progress = make_trainer(data, tmp_path / f"run{patience}", observer, **still).train()
        assert progress.epoch == patience
        assert progress.finished
        assert f"{several} without improvement: training ends" in observer.messages


def test_of_equal_criteria_the_lower_loss_is_better(data, tmp_path):
    trainer = make_trainer(data, tmp_path / "run", Recorder())
    found = [(0.0, 3.0), (0.0, 2.0), (0.0, 2.5), (-1.0, 9.0), (0.0, 1.0), (-1.0, 8.0)]
    results = iter([Validation(loss, {"bleu": -criterion}, criterion) for criterion, loss in found])
    trainer.learner.validate = lambda: next(results)
    kept = [trainer._evaluate()[1] for _ in found]
    assert kept == [True, True, False, True, False, True]
    assert (trainer.progress.best, trainer.progress.best_loss) == (-1.0, 8.0)
    assert trainer.progress.stale == 0


def test_a_score_near_zero_is_left_to_the_loss(data, tmp_path, monkeypatch):
    learner = make_trainer(data, tmp_path / "run", Recorder()).learner
    learner.index = 1  # training has begun
    for bleu, criterion in ((0.99, 0.0), (0.02, 0.0), (1.01, -1.01)):
        monkeypatch.setattr(learner, "_validation_scores", lambda wanted, bleu=bleu: {"bleu": bleu})
        scores, found = learner._judge(2.0)
        assert (scores["bleu"], found) == (bleu, criterion)


@pytest.mark.parametrize(("best_by", "criterion"), [("bleu", -3.0), ("chrf", -40.0), ("loss", 2.0)])
def test_what_the_recipe_says_chooses_the_best_weights(data, tmp_path, monkeypatch, best_by, criterion):
    learner = make_trainer(data, tmp_path / "run", Recorder(), best_by=best_by).learner
    learner.index = 1
    monkeypatch.setattr(learner, "_validation_scores", lambda wanted: {"bleu": 3.0, "chrf": 40.0})
    assert learner._judge(2.0)[1] == criterion


def test_checkpoints_of_earlier_versions_know_no_best_loss():
    saved = TrainingProgress(best=-12.5).model_dump(exclude={"best_loss"})
    assert TrainingProgress.model_validate(saved) == TrainingProgress(best=-12.5)


def test_where_no_reference_has_four_words_the_loss_decides(data, tmp_path):
    for split in ("train", "valid"):
        (data / f"{split}.de").write_text("ein haus\n" * 30)
        (data / f"{split}.en").write_text("a house\n" * 30)
    observer = Recorder()
    trainer = make_trainer(data, tmp_path / "run", observer, ADADELTA, epochs=3, patience=1)
    trainer.train()
    losses = [validation.loss for validation in observer.validations]
    assert losses == sorted(losses, reverse=True)  # else the test says nothing
    assert trainer.progress.epoch == 3
    assert trainer.run.training_facts()["steps"] == str(trainer.progress.step)
    assert (trainer.progress.best, trainer.progress.best_loss) == (0.0, losses[-1])


def test_pairs_left_out_are_told(data, tmp_path):
    lines = ["w1 w2", "", "w1 w2 w3 w4 w5 w6 w7", "w1"] * 5
    for side in ("de", "en"):
        (data / f"train.{side}").write_text("\n".join(lines) + "\n")
    observer = Recorder()
    trainer = make_trainer(data, tmp_path / "run", observer, epochs=1, max_length=6)
    trainer.train()
    assert trainer.run.training_facts()["train_pairs_kept"] == "10"
    assert (
        "10 of 20 pairs are left out: 5 have more than 6 tokens on a side (data.max_length), 5 an empty side"
        in observer.messages
    )


def test_how_bleu_reads_a_language_without_spaces_is_told(data, tmp_path):
    observer = Recorder()
    evaluate = {"bleu": {"tokenize": "char"}}
    trainer = make_trainer(data, tmp_path / "run", observer, epochs=1, evaluate=evaluate, best_by="chrf")
    progress = trainer.train()
    said = "BLEU counts what sacreBLEU's tokenizer 'char' makes of the text (evaluate.bleu.tokenize)"
    assert f"{said}; chrF chooses the best weights (train.best_by)" in observer.messages
    assert progress.best == -max(validation.scores["chrf"] for validation in observer.validations)
    sources, references = trainer.learner._valid_texts
    texts = [best[0].text for best in trainer.learner.translator.search(sources, beam=1)]
    expected = score(texts, references, trainer.learner.recipe.evaluate.bleu)["chrf"]
    assert observer.validations[-1].scores["chrf"] == expected


def test_what_the_pairs_look_like_is_told(data, tmp_path):
    observer = Recorder()
    trainer = make_trainer(data, tmp_path / "run", observer, epochs=1)
    trainer.train()
    assert observer.messages[0].startswith("de to en: 60 pairs to train on, plain text, ")
    assert ("read as" in observer.messages[0]) == trainer.learner.recipe.data.is_tokenized
    said = "7,659 parameters, 2 + 2 layers of 12 units, 11 and 11 words, 0.0% of the validation text unknown; 1 epoch"
    assert said in observer.messages


def test_weights_say_what_they_were_trained_on(data, tmp_path):
    trainer = make_trainer(data, tmp_path / "run", Recorder(), epochs=1)
    trainer.train()
    facts = trainer.run.training_facts()
    assert facts["train_pairs"] == "60"
    assert facts["train_pairs_kept"] == "60"
    assert len(facts["train_sha256"].split("+")) == 2


@pytest.mark.parametrize("index", [-1, 10**9])
def test_a_batch_that_is_not_there_is_refused(data, index):
    _, task = make_task(data)
    state = task.state_dict()
    with pytest.raises(ValueError, match=f"batch {index} is not one of"):
        task.load_state_dict([{**state, "index": index}])
    task.load_state_dict([state])
