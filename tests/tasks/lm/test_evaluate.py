import functools
import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from g2lstm.errors import G2Error
from g2lstm.nn.record import set_eval_gate
from g2lstm.tasks.lm import evaluate
from g2lstm.tasks.lm.evaluate import perplexity, read
from g2lstm.tasks.lm.model import LanguageModel

VOCABULARY = 31


def small_model():
    return LanguageModel(VOCABULARY, 8, 12, 2).double()


@pytest.fixture
def model():
    return small_model()


def slow_to_forget(model):
    """Forget gates near 1 and narrow input gates: guessed states stay wrong for thousands of steps."""
    with torch.no_grad():
        for layer in model.lstms:
            layer.bias_ih_l0.view(4, -1)[1] = 9.0
            layer.bias_ih_l0.view(4, -1)[0] = -4.0
    return model


def one_by_one(model, tokens):
    """-log p of each token, one step at a time from the full logits: the definition."""
    model.eval()
    state, losses = model.initial_state(1), []
    with torch.no_grad():
        for now, following in pairwise(tokens):
            features, _, state = model(now.view(1, 1), state)
            losses.append(-model.logits(features[0, 0]).log_softmax(0)[following])
    return torch.stack(losses)


@functools.cache
def long_text(forgets):
    """A model, tokens, and what it says of them one by one."""
    torch.manual_seed(0)
    model = small_model() if forgets else slow_to_forget(small_model())
    tokens = torch.randint(VOCABULARY, (1211,))
    return model, tokens, one_by_one(model, tokens)


@pytest.mark.parametrize("forgets", [True, False])
@pytest.mark.parametrize(("columns", "steps"), [(1, 1), (1, 37), (1, 4096), (2, 64), (5, 50), (7, 170), (16, 2048)])
def test_is_that_of_reading_in_order_whatever_the_settings(forgets, columns, steps):
    model, tokens, expected = long_text(forgets)
    got = perplexity(model, tokens, columns=columns, steps=steps)
    assert got.tokens == 1210
    assert torch.allclose(got.log_probabilities, -expected.float(), atol=1e-6)
    assert got.nats == pytest.approx(expected.sum().item(), rel=1e-9)
    assert got.perplexity == pytest.approx(math.exp(expected.mean().item()), rel=1e-9)


def widths_of_calls(model, tokens, monkeypatch):
    calls, forward = [], model.forward
    monkeypatch.setattr(model, "forward", lambda x, state: calls.append(x.shape[1]) or forward(x, state))
    perplexity(model, tokens, columns=4, steps=512)
    return calls


def test_second_reading_stops_where_it_agrees(model, monkeypatch):
    calls = widths_of_calls(model, torch.randint(VOCABULARY, (4 * 512 + 1,)), monkeypatch)
    assert calls[:9] == [4] * 8 + [3]
    assert len(calls) <= 8 + 3


def test_second_reading_goes_on_where_states_are_kept(model, monkeypatch):
    calls = widths_of_calls(slow_to_forget(model), torch.randint(VOCABULARY, (4 * 512 + 1,)), monkeypatch)
    assert calls == [4] * 8 + [3] * 8 + [2] * 8 + [1] * 8


@pytest.mark.parametrize("length", [2, 3, 17, 64, 65, 129])
def test_short_streams(model, length):
    tokens = torch.randint(VOCABULARY, (length,))
    got = perplexity(model, tokens, columns=4, steps=8)
    assert got.tokens == length - 1
    assert got.nats == pytest.approx(one_by_one(model, tokens).sum().item(), rel=1e-9)


def test_single_precision_agrees_too():
    model = LanguageModel(VOCABULARY, 8, 12, 2)
    tokens = torch.randint(VOCABULARY, (1500,))
    one, many = perplexity(model, tokens, columns=1), perplexity(model, tokens, columns=16)
    assert many.perplexity == pytest.approx(one.perplexity, rel=1e-6)


def test_reads_memory_mapped_tokens(model, tmp_path):
    tokens = torch.randint(VOCABULARY, (500,))
    tokens.numpy().astype(np.uint16).tofile(tmp_path / "tokens.bin")
    mapped = np.memmap(tmp_path / "tokens.bin", dtype=np.uint16, mode="r")
    assert perplexity(model, mapped, columns=4, steps=64).nats == perplexity(model, tokens, columns=4, steps=64).nats
    assert perplexity(model, mapped[100:300]).tokens == 199


def test_blocks_follow_the_stream(model):
    tokens = torch.randint(VOCABULARY, (1000,))
    seen = []
    blocks = list(read(model, tokens, columns=3, steps=70, progress=lambda done, total: seen.append((done, total))))
    assert torch.equal(torch.cat([block.targets for block in blocks]), tokens[1:])
    assert all(block.features.shape == (len(block.targets), 8) for block in blocks)
    assert seen[-1] == (999, 999)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


@pytest.mark.parametrize("gate", ["soft", "tempered", "hard"])
def test_eval_gate_is_used_and_put_back(model, gate):
    tokens = torch.randint(VOCABULARY, (200,))
    model.train()
    got = perplexity(model, tokens, eval_gate=gate)
    assert model.training
    assert {layer.eval_gate for layer in model.lstms} == {"soft"}
    set_eval_gate(model, gate)
    assert got.nats == pytest.approx(one_by_one(model, tokens).sum().item(), rel=1e-9)


def test_mode_is_put_back_after_an_error(model):
    model.train()
    with pytest.raises(G2Error, match="token id 31 is outside the model's vocabulary of 31"):
        perplexity(model, torch.tensor([1, 2, 31]))
    with pytest.raises(G2Error, match="eval_gate"):
        perplexity(model, torch.tensor([1, 2, 3]), eval_gate="none")
    assert model.training
    assert {layer.eval_gate for layer in model.lstms} == {"soft"}


def test_infinite_perplexity_is_no_crash():
    assert evaluate.Score(1e6, 1, torch.zeros(1)).perplexity == math.inf


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.zeros(1, dtype=torch.int64), "at least 2 tokens, one to read and one to predict, got 1"),
        (torch.tensor([0, -1]), "token id -1 is outside"),
    ],
)
def test_bad_tokens(model, tokens, message):
    with pytest.raises(G2Error, match=message):
        perplexity(model, tokens)
