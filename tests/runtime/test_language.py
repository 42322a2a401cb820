"""A language model without torch: the same numbers and the same text as with it."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import g2lstm
from g2lstm import G2Error
from g2lstm.compression import kernel
from g2lstm.nn.kernel import Found
from g2lstm.recipes.sections import GateSection
from g2lstm.runtime import load
from g2lstm.runtime.weights import RunRecipe, check_is_run
from g2lstm.tasks.lm.recipe import LmModel
from tests.runs.test_compressed import compressed_run
from tests.runs.toys import grow_, language_run, replace_weight_

BPE = ("data.tokenizer=bpe", "data.vocabulary=280")
KINDS = [
    ((), None),
    ((), "small"),
    (("model.tied=false", "model.residual=true", "model.layers=3", "model.embedding=12"), "small"),
    (("model.method=sharpened",), "gates=round:0.2,clip:0.4; cell=int8; embedding=svd:4,int8"),
    (("model.method=binary", "model.gates=ifo"), "cell=int8; embedding=int4"),
    ((*BPE, "model.eval_gate=tempered"), "small"),
]


@pytest.fixture(params=KINDS, ids=lambda one: f"{' '.join(one[0])} {one[1]}")
def run(request, tmp_path):
    """Runs of all kinds."""
    overrides, spec = request.param
    made = grow_(language_run(tmp_path, *overrides), 4, 0, 50.0)  # `<unk>` is said wherever it may be
    return made if spec is None else compressed_run(made, spec)[0]


@pytest.fixture
def plain(tmp_path):
    return language_run(tmp_path)


def test_numbers_and_text_are_those_of_torch(run):
    model, trained = load(run), g2lstm.load(run)
    session, tokens = trained.stream(), [1, 5, 3, 0, 7, 7, 2]
    assert np.array_equal(model.sequence(tokens), session.sequence(tokens))
    assert np.array_equal(model.step(4), session.step(4))
    state = model.get_state()
    texts = set()
    for options in ({"temperature": 0}, {"seed": 1}, {"seed": 2, "temperature": 1.7, "top_k": 9, "top_p": 0.9}):
        for prompt in ("", "w3 w1", "w4\nw5"):
            text = model.generate(prompt, tokens=25, **options)
            assert text == trained.generate(prompt, tokens=25, **options)
            texts.add(text)
    assert len(texts) == 9
    assert not any("<unk>" in text for text in texts)
    assert "<unk>" in model.generate(tokens=9, seed=1, allow_unknown=True)
    pairs = zip(sum(state, ()), sum(model.get_state(), ()), strict=True)
    assert all(np.array_equal(one, other) for one, other in pairs)


def test_without_the_kernel_numbers_are_those_of_the_forward_pass(run, monkeypatch):
    monkeypatch.setattr(kernel, "find", lambda: Found(None, "not compiled"))
    model, tokens = load(run), [1, 5, 3, 0, 7, 7, 2]
    trained = g2lstm.load(run)
    with torch.no_grad():
        features = trained.model(torch.tensor(tokens).unsqueeze(1)).features[:, 0]
        expected = trained.model.logits(features).log_softmax(-1).numpy()
    assert np.abs(model.sequence(tokens) - expected).max() < 1e-5


def test_the_state_can_be_kept(plain):
    model = load(plain, threads=1)
    model.step(3)
    state, expected = model.get_state(), model.step(4)
    model.reset()
    assert not np.array_equal(model.step(4), expected)
    model.set_state(state)
    assert np.array_equal(model.step(4), expected)
    with pytest.raises(G2Error, match="token ids go from 0 to 31, got 32"):
        model.step(32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": -1}, "tokens must be a whole number of at least 0, got -1"),
        ({"tokens": "3"}, "tokens must be a whole number of at least 0, got '3'"),
        ({"tokens": 1.5}, "tokens must be a whole number of at least 0, got 1.5"),
        ({"temperature": "x"}, "temperature must be a finite number of at least 0, got 'x'"),
        ({"seed": "y"}, "seed must be a whole number of at least 0, got 'y'"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"top_k": "5"}, "top_k must be a whole number of at least 1, got '5'"),
        ({"top_p": None}, r"top_p is a probability and must lie in \(0, 1\], got None"),
    ],
)
def test_arguments_of_the_wrong_kind(plain, options, message):
    for model in (load(plain), g2lstm.load(plain)):
        with pytest.raises(G2Error, match=message):
            model.generate(**options)
        model.generate(tokens=np.int64(1), temperature=np.float32(0.5), seed=np.int64(2), top_k=np.int64(3))


def test_other_gates_can_be_chosen(plain):
    grow_(plain, 4, 0, 50.0)
    by_gate = [load(plain, eval_gate=gate).sequence([1, 2, 3]) for gate in (None, "soft", "tempered", "hard")]
    assert np.array_equal(by_gate[0], by_gate[1])
    for gate, found in zip(("tempered", "hard"), by_gate[2:], strict=True):
        trained = g2lstm.load(plain)
        for layer in trained.model.layers:
            layer.eval_gate = gate
        assert np.array_equal(found, trained.stream().sequence([1, 2, 3]))
        assert not np.array_equal(found, by_gate[0])
    with pytest.raises(G2Error, match="eval_gate must be one of 'soft', 'tempered', 'hard', got 'open'"):
        load(plain, eval_gate="open")


def changed(run, before, after):
    path = run / "recipe.toml"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))


def test_an_old_recipe_has_todays_defaults(plain):
    """The runtime has no pydantic, so the defaults of the keys that it asks for are here twice."""
    for key in ("method", "gates", "tau", "eval_gate", "noise_rate"):
        path = plain / "recipe.toml"
        kept = [line for line in path.read_text().splitlines() if not line.startswith(f"{key} = ")]
        path.write_text("\n".join(kept))
    gates = RunRecipe(plain / "recipe.toml").gates()
    usual = GateSection()
    assert (usual.method, usual.gates, usual.eval_gate, gates.hard) == ("gumbel", "if", "soft", "")
    assert gates.factors == [1, 1, 1, 1]
    assert RunRecipe(plain / "recipe.toml").gates("tempered").factors == [1 / usual.tau, 1 / usual.tau, 1, 1]
    assert not LmModel().residual


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('task = "lm"', 'task = "speech"', "is a run of task 'speech', and the runtime knows lm, mt; install"),
        ('task = "lm"', "task = 3", "task must be of type str, got 3"),
        ('method = "gumbel"', 'method = "magic"', "model.method must be one of gumbel, .*, got 'magic'"),
        ("tau = 0.9", "tau = -1.0", "model.tau must be above 0, got -1.0"),
        ("tau = 0.9", "tau = true", "model.tau must be of type float, got True"),
        ("residual = false", "residual = 0", "model.residual must be of type bool, got 0"),
        ("# end", "", "truncated"),
        ("# g2lstm run, version 1", "# g2lstm run, version 9", "has version 9"),
    ],
)
def test_recipes_that_are_wrong(plain, before, after, message):
    changed(plain, before, after)
    with pytest.raises(G2Error, match=message):
        load(plain)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("layers.1.weight_hh_l0", None, "layers.1.weight_hh_l0.i must be float32 with 2 dimensions, got nothing"),
        ("layers.1.bias_hh_l0", torch.zeros(3), "layers.1.bias_hh_l0 has 3 numbers, expected 40"),
        ("layers.1.weight_hh_l0", torch.zeros(42, 10), "has 42 rows, which are not 4 gates"),
        ("layers.1.weight_hh_l0", torch.zeros(44, 10), "the matrices of layers.1.weight_ih_l0 have"),
        ("layers.1.weight_ih_l0", torch.zeros(40, 11), "a layer of 11 inputs can't read a layer of 12 units"),
        ("embedding.weight", torch.zeros(31, 10), "the size of the embedding is 31, expected 32"),
        ("embedding.weight", torch.zeros(32, 10).half(), "must be float32 with 2 dimensions, got float16"),
        ("softmax_bias", torch.full((32,), torch.nan), "softmax_bias is not finite; train the model again"),
        ("more", torch.zeros(2), "it holds 'more', which this model has no place for"),
    ],
)
def test_weights_that_do_not_fit(plain, name, change, message):
    replace_weight_(plain, name, change)
    with pytest.raises(G2Error, match=message):
        load(plain)


def test_files_that_are_missing_or_broken(plain, tmp_path):
    with pytest.raises(G2Error, match="is not a run directory: it does not exist; make one with"):
        load(tmp_path / "nothing")
    with pytest.raises(G2Error, match=r"it does not exist; make one with `g2lstm train .*my\.txt`"):
        check_is_run(tmp_path / "my.txt")
    (tmp_path / "quijote").mkdir()
    (tmp_path / "quijote" / "recipe.toml").touch()
    with pytest.raises(G2Error, match="it does not exist; did you mean .*/quijote?"):
        check_is_run(tmp_path / "quijot")
    with pytest.raises(G2Error, match=r"is not a run directory: it has no recipe\.toml"):
        load(tmp_path)
    path = plain / "model.safetensors"
    save_file(load_file(path), path, {})
    with pytest.raises(G2Error, match="was not written by g2lstm"):
        load(plain)
    save_file(load_file(path), path, {"format": "g2lstm", "version": "9"})
    with pytest.raises(G2Error, match="has version 9, but this g2lstm reads up to 2; install a newer one"):
        load(plain)
    path.write_bytes(b"nonsense")
    with pytest.raises(G2Error, match="can't be read: .* it is broken"):
        load(plain)
    path.unlink()
    with pytest.raises(G2Error, match="has no trained model yet"):
        load(plain)
    (plain / "tokenizer.json").unlink()
    with pytest.raises(G2Error, match="cannot read the tokenizer"):
        load(plain)
