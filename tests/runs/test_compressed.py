"""Compressed run directories: like any other to use, never to train, and never half there."""

import json

import pytest
import torch
from accelerate import Accelerator
from safetensors import safe_open
from safetensors.torch import load_file

import g2lstm
from g2lstm import G2Error
from g2lstm.compression.model import compress, encoded_matrices, group_sizes
from g2lstm.compression.spec import Spec
from g2lstm.look.examine import score_by_gate
from g2lstm.runs.compressed import check_compressible, default_folder, new_folder, write_run
from g2lstm.runs.directory import RunDirectory
from g2lstm.runs.trained import load, score
from g2lstm.runtime import weights
from g2lstm.tasks.recipes import load_recipe, parse_recipe
from g2lstm.tasks.trained import Scoring
from g2lstm.training.start import prepare, train_recipe
from tests.runs.toys import language_run, translation_run

MIXED = "gates=round:0.2,clip:0.4; cell=int8; embedding=int4; softmax=svd:3,int8"


def compressed_run(run, spec=MIXED, name="small"):
    """The run compressed beside itself, and the compressed model from memory."""
    trained, out = load(run), run.with_name(name)
    model = compress(trained.model, spec)
    with new_folder(out) as folder:
        write_run(folder, trained.run, model, Spec.parse(spec))
    return out, model


@pytest.fixture
def run(tmp_path):
    return language_run(tmp_path)


@pytest.fixture
def small(run):
    return compressed_run(run)[0]


@pytest.mark.parametrize("spec", [MIXED, "gates=svd:4", "embedding=int8", "gates=svd:4,int4; cell=round:0.1"])
@pytest.mark.parametrize("tied", ["true", "false"])
def test_a_language_model_read_back_is_the_one_in_memory(tmp_path, spec, tied):
    run = language_run(tmp_path, f"model.tied={tied}")
    out, model = compressed_run(run, spec)
    trained = g2lstm.load(out)
    tokens = torch.randint(30, (7, 2))
    with torch.no_grad():
        ours, theirs = trained.model(tokens), model(tokens)
        assert torch.equal(ours.features, theirs.features)
        assert torch.equal(trained.model.logits(ours.features), model.logits(theirs.features))
    assert not trained.model.training
    assert not any(tensor.is_meta for tensor in trained.model.parameters())
    result = score(trained, Scoring("test"))
    assert f"|compressed:{Spec.parse(spec)}|" in result["signature"]
    assert "|steps:7|" in result["signature"]
    trained.model = model
    assert score(trained, Scoring("test")) == result
    assert trained.generate("w1", tokens=4, seed=1).startswith("w1 ")


@pytest.mark.parametrize("tied", ["none", "output"])
def test_a_translation_model_read_back_is_the_one_in_memory(tmp_path, tied):
    run = translation_run(tmp_path, f"model.tied={tied}")
    out, model = compressed_run(run)
    trained = g2lstm.load(out)
    result = score(trained, Scoring("test"))
    assert f"|compressed:{Spec.parse(MIXED)}|" in result["signature"]
    assert trained.translate("ein haus").strip() == trained.translate("ein haus")
    source, inputs, lengths = torch.randint(5, (4, 3)), torch.randint(5, (2, 3)), torch.tensor([4, 2, 1])
    with torch.no_grad():
        assert torch.equal(trained.model(source, lengths, inputs), model(source, lengths, inputs))
    trained.model = model
    assert score(trained, Scoring("test")) == result


def test_scores_one_sentence_at_a_time(tmp_path):
    out, _ = compressed_run(translation_run(tmp_path, "evaluate.batch_size=1"))
    trained = load(out)
    assert score(trained, Scoring("test"))["bleu"] >= 0
    assert score_by_gate(trained, "test")["hard"] >= 0


def test_sharpened_and_hard_gates_are_kept(tmp_path):
    run = language_run(tmp_path, 'model.method="sharpened"', 'model.eval_gate="hard"')
    out, model = compressed_run(run, "gates=round:0.2,clip:0.4")
    trained = load(out)
    assert {layer.eval_gate for layer in trained.model.lstms} == {"hard"}
    tokens = torch.randint(30, (7, 2))
    with torch.no_grad():
        assert torch.equal(trained.model(tokens).features, model(tokens).features)


def test_the_files_of_a_compressed_run(run, small):
    assert {path.name for path in small.iterdir()} == {
        "recipe.toml", "tokenizer.json", "model.safetensors", "result.json",
    }  # fmt: skip
    for name in ("recipe.toml", "tokenizer.json"):
        assert (small / name).read_bytes() == (run / name).read_bytes()
    assert RunDirectory(small).results() == []
    with safe_open(small / "model.safetensors", framework="pt") as file:
        metadata = file.metadata()
    original = RunDirectory(run).training_facts()
    assert {key: metadata[key] for key in original} == original | {"version": "2"}
    assert json.loads(metadata["compression"])["spec"] == str(Spec.parse(MIXED))
    assert RunDirectory(small).compression == str(Spec.parse(MIXED))
    assert RunDirectory(run).compression is None
    assert RunDirectory(run).training_facts()["version"] == "1"


def test_an_older_reader_refuses_the_file_by_its_version(small, monkeypatch):
    monkeypatch.setattr(weights, "COMPRESSED", 1)
    with pytest.raises(G2Error, match="has version 2, but this g2lstm reads up to 1; install a newer one"):
        load(small)


def test_sizes_are_those_of_the_tensors_on_disk(run):
    model = load(run).model
    out, compressed = compressed_run(run)
    sizes = group_sizes(model, compressed)
    assert list(sizes) == ["gates", "cell", "embedding"]
    before, after = load_file(run / "model.safetensors"), load_file(out / "model.safetensors")
    matrices = [name for name in before if "weight" in name]
    assert sum(size.before for size in sizes.values()) == sum(before[name].nbytes for name in matrices)
    stored = {"gates": (".i.", ".f."), "cell": (".g.", ".o."), "embedding": ("embedding.",)}
    for group, size in sizes.items():
        own = [tensor.nbytes for name, tensor in after.items() if any(part in name for part in stored[group])]
        assert size.after == sum(own)
    assert sizes["gates"].weights == 2 * (12 * 10 + 12 * 12 + 10 * 12 + 10 * 10)
    assert sizes["cell"].bits_per_weight == pytest.approx(8 + 32 * 8 * 11 / 968, rel=0.2)
    untouched = group_sizes(model, compress(model, "embedding=int8"))
    assert untouched["gates"].after == untouched["gates"].before


def test_it_cannot_be_trained_on(run, small):
    before = {path.name: path.read_bytes() for path in small.iterdir()}
    with pytest.raises(G2Error, match="is a compressed run, and compressed weights can.t be trained; resume the run"):
        train_recipe(load_recipe(small / "recipe.toml"), small, resume=True)
    with pytest.raises(G2Error, match="already holds a run"):
        train_recipe(load_recipe(small / "recipe.toml"), small)
    assert {path.name: path.read_bytes() for path in small.iterdir()} == before
    tables = load_recipe(run / "recipe.toml").model_dump(by_alias=True, exclude_none=True)
    with pytest.raises(G2Error, match="are compressed .* and can.t be trained; use the run they were made"):
        prepare(parse_recipe(tables, [f"train.finetune_from={small}"]), Accelerator(cpu=True))


def test_broken_weights_do_not_make_it_trainable(small):
    (small / "compression.json").write_text("{}")
    (small / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(G2Error, match="is a compressed run"):
        train_recipe(load_recipe(small / "recipe.toml"), small, resume=True)
    with pytest.raises(G2Error, match="it is broken. Compress the original again"):
        load(small)


def test_it_is_not_compressed_twice(small):
    with pytest.raises(G2Error, match="is already compressed .*; compress the run it was made from"):
        check_compressible(RunDirectory(small))


@pytest.mark.parametrize("damage", ["flipped", "cut", "no header", "other recipe", "other tokenizer", "surplus"])
def test_broken_runs_are_refused(tmp_path, run, small, damage):
    model = small / "model.safetensors"
    content = bytearray(model.read_bytes())
    if damage == "flipped":
        content[-5] ^= 1
    elif damage == "cut":
        del content[-9:]
    elif damage == "no header":
        content = content.replace(b'"compression"', b'"compressiox"')
    elif damage == "other recipe":
        recipe = (small / "recipe.toml").read_text().replace("hidden = 12", "hidden = 13")
        (small / "recipe.toml").write_text("".join(line for line in recipe.splitlines(True) if "#" not in line))
    elif damage == "other tokenizer":
        other = language_run(tmp_path / "other", "data.min_frequency=18")
        (small / "tokenizer.json").write_bytes((other / "tokenizer.json").read_bytes())
    else:
        trained = load(run)
        model.unlink()
        trained.model.extra = torch.nn.Parameter(torch.zeros(2))
        write_run(small, trained.run, compress(trained.model, MIXED), Spec.parse(MIXED))
        content = model.read_bytes()
    model.write_bytes(content)
    expected = {
        "flipped": "checksum",
        "cut": "can.t be read",
        "surplus": "extra.* has shape .2,. torch.float32, expected none",
    }
    with pytest.raises(G2Error, match=expected.get(damage, "does not fit the recipe")):
        load(small)


def test_a_header_that_is_no_header(run, small):
    content = (small / "model.safetensors").read_bytes()
    (small / "model.safetensors").write_bytes(content.replace(b'\\"version\\": 1', b'\\"version\\": 0', 1))
    with pytest.raises(G2Error, match=r"model.safetensors can.t be read: its header has no version; compress"):
        load(small)


def test_nothing_half_written_is_left(tmp_path):
    def interrupted(error):
        with new_folder(tmp_path / "new") as folder:
            (folder / "file").write_text("half")
            raise error

    for error in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(error):
            interrupted(error)
        assert list(tmp_path.iterdir()) == []
    with new_folder(tmp_path / "deep" / "new") as folder:
        (folder / "file").write_text("whole")
        assert not (tmp_path / "deep" / "new").exists()
    assert (tmp_path / "deep" / "new" / "file").read_text() == "whole"
    assert len(list((tmp_path / "deep").iterdir())) == 1


def test_a_folder_that_is_there_is_refused(tmp_path):
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name in ("dangling", "file", "empty"):
        with pytest.raises(G2Error, match=f"{name} already exists"), new_folder(tmp_path / name):
            pytest.fail("the work began")
    with pytest.raises(G2Error, match="can.t be made: File exists"), new_folder(tmp_path / "file" / "new"):
        pytest.fail("the work began")
    with pytest.raises(G2Error, match="can.t be made: Directory not empty"), new_folder(tmp_path / "late"):
        (tmp_path / "late" / "theirs").mkdir(parents=True)
    assert {path.name for path in tmp_path.iterdir()} == {"dangling", "file", "empty", "late"}


@pytest.mark.parametrize(
    ("run", "spec", "expected"),
    [
        ("runs/ptb-small", "small", "runs/ptb-small+small"),
        ("runs/ptb-small/", " paper-lm-clip ", "runs/ptb-small+paper-lm-clip"),
        ("a", "cell=int8; gates=clip:0.4,round:0.2", "a+gates-round0.2-clip0.4_cell-int8"),
        ("a.b", "embedding=svd:64,int8", "a.b+embedding-svd64-int8"),
        ("a", "int8; layers.0: keep; *.weight_hh*: gates=int4", "a+int8_layers.0-keep_-.weight_hh-gates-int4"),
    ],
)
def test_default_names(tmp_path, run, spec, expected):
    assert default_folder(tmp_path / run, spec) == tmp_path / expected


def test_default_name_of_the_working_folder(tmp_path, monkeypatch):
    from pathlib import Path

    monkeypatch.chdir(tmp_path)
    assert default_folder(Path(), "small") == tmp_path.with_name(f"{tmp_path.name}+small")


def test_every_matrix_is_in_the_file(run):
    out, model = compressed_run(run)
    header = json.loads(RunDirectory(out).training_facts()["compression"])
    assert header["matrices"].keys() == encoded_matrices(model).keys()
    assert len(header["matrices"]) == 2 * 2 * 4 + 1
