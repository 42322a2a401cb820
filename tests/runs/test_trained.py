"""Loading a run: each file is opened once, and runs that earlier versions wrote still load and score the same."""

import io
import json
import math
import os
import re
import struct
from collections import Counter

import pytest
import safetensors

from g2lstm import G2Error, compress, load
from g2lstm.compression.spec import Spec
from g2lstm.runs.compressed import write_run
from g2lstm.runs.directory import RunDirectory
from g2lstm.runs.trained import score
from g2lstm.tasks.trained import Scoring
from tests.runs.toys import language_run, translation_run

RECIPE = """\
# g2lstm run, version 1
task = "lm"

[data]
path = "{path}"
tokenizer = "word"
min_frequency = 1
lowercase = false

[model]
method = "gumbel"
tau = 0.9
noise_rate = 0.2
gates = "if"
eval_gate = "soft"
weight_dropout = 0.5
embedding = 1
hidden = 1
layers = 1
tied = true
residual = false

[model.dropout]
words = 0.1
input = 0.4
between = 0.25
output = 0.4

[train]
epochs = 1
seed = 1
clip = 0.25
checkpoint_minutes = 10.0
precision = "fp32"
batch_size = 4
bptt = 70
bptt_deviation = 5.0
bptt_half_probability = 0.05
bptt_minimum = 5
activation_regularisation = 2.0
temporal_regularisation = 1.0
frequency_bias = false

[train.optimizer]
name = "adamw"
lr = 0.003
weight_decay = 0.01
beta1 = 0.9
beta2 = 0.99
epsilon = 1e-08
warmup = 0.1
final_lr = 0.0

[evaluate]
batch_size = 10
bptt = 70

[evaluate.cache]
window = 3785
theta = 0.6626
lambda = 0.1279
# end
"""
TOKENIZER = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"<unk>": 0, "<eos>": 1, "a": 2, "b": 3}, "unk_token": "<unk>"},
}  # fmt: skip
SCORE = {"perplexity": 4.0, "split": "test", "tokens": 2, "eval_gate": "soft", "signature": "recipe:0|data:own/0"}


def safetensors_bytes(tensors, metadata):
    """The format by hand: the length of the header, the header, and float32 numbers."""
    header, content = {"__metadata__": metadata}, b""
    for name, (shape, values) in tensors.items():
        encoded = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(content), len(content) + len(encoded)]}
        content += encoded
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content


@pytest.fixture
def old_run(tmp_path):
    """A run directory as version 0.1 wrote it: one unit that never opens, so that only the softmax's bias speaks."""
    texts, run = tmp_path / "texts", tmp_path / "run"
    texts.mkdir()
    run.mkdir()
    for split in ("train", "valid", "test"):
        (texts / f"{split}.txt").write_text("a b\nb a\n")
    (run / "recipe.toml").write_text(RECIPE.format(path=texts))
    (run / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    zeros = {"weight_ih_l0": [4, 1], "weight_hh_l0": [4, 1], "bias_ih_l0": [4], "bias_hh_l0": [4]}
    tensors = {f"layers.0.{name}": (shape, [0.0] * 4) for name, shape in zeros.items()}
    tensors |= {"embedding.weight": ([4, 1], [0.0] * 4)}
    tensors |= {"softmax_bias": ([4], [math.log(0.1), math.log(0.5), math.log(0.2), math.log(0.2)])}
    facts = {"format": "g2lstm", "version": "1", "task": "lm", "train_sha256": "0" * 64, "steps": "7"}
    (run / "model.safetensors").write_bytes(safetensors_bytes(tensors, facts))
    (run / "result.json").write_text(json.dumps({"scores": [SCORE]}))
    line = {"kind": "valid", "step": 7, "tokens": 12, "seconds": 0.5, "epoch": 1, "loss": 1.0}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    return run


def test_a_run_of_an_earlier_version_loads_and_scores(old_run):
    trained = load(old_run)
    assert trained.run.metrics()[0]["loss"] == 1.0
    assert [each.perplexity for each in trained.run.results()] == [4.0]
    found = score(trained, Scoring("test"))
    nats = -(3 * math.log(0.2) + 2 * math.log(0.5))  # of "b <eos> b a <eos>", which follow the first "a"
    assert found["perplexity"] == pytest.approx(math.exp(nats / 5), rel=1e-6)
    trained.run.add_result(found)
    kept, added = json.loads((old_run / "result.json").read_text())["scores"]
    assert kept == SCORE
    assert added == found


@pytest.mark.parametrize("made", [language_run, translation_run], ids=["lm", "mt"])
@pytest.mark.parametrize("is_compressed", [False, True], ids=["plain", "compressed"])
def test_each_file_is_opened_once(made, is_compressed, tmp_path, monkeypatch):
    run, opened, spec = made(tmp_path), Counter(), Spec.parse("gates=int8")
    if is_compressed:
        small = tmp_path / "small"
        small.mkdir()
        write_run(small, RunDirectory(run), compress(load(run).model, spec), spec)
        run = small

    def noted(real):
        def opening(path, *arguments, **options):
            opened[os.path.basename(path)] += 1
            return real(path, *arguments, **options)

        return opening

    monkeypatch.setattr(io, "open", noted(io.open))
    monkeypatch.setattr(safetensors, "safe_open", noted(safetensors.safe_open))
    trained = load(run)
    assert opened == dict.fromkeys(["recipe.toml", "model.safetensors", *trained.tokenizers], 1)


def test_a_file_is_not_a_run_directory(tmp_path):
    run = language_run(tmp_path)
    file = tmp_path / "small.safetensors"
    file.touch()
    with pytest.raises(G2Error, match=r"it is a file; `g2lstm\.load_into\(model, path\)` opens what `g2lstm\.save`"):
        load(file)
    with pytest.raises(G2Error, match=f"it is a file; give its folder, {re.escape(str(run))}$"):
        load(run / "model.safetensors")
