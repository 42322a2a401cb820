"""A trained language model: generating through a session gives the text that the model itself gives."""

from itertools import cycle, islice

import pytest
import torch

from g2lstm import G2Error, load, record_gates
from g2lstm.compression import kernel
from g2lstm.compression.model import compress
from g2lstm.compression.stream import TokenSession, can_replace
from g2lstm.lab.bench.measure import peak_memory
from g2lstm.nn.kernel import Found
from g2lstm.tasks.lm import trained as language
from g2lstm.tasks.trained import Scoring
from tests.runs.toys import language_run

LONG, SHORT = 60, 20  # tokens


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Trained on one sentence over and over, so that it says something."""
    trained = load(language_run(tmp_path_factory.mktemp("toy")))
    sentence = "w3 w1 w4 w5 w9 w2 w6"
    ids = [*trained.tokenizer.encode(sentence), trained.tokenizer.eos_id]
    tokens = torch.tensor(list(islice(cycle(ids), 61))).unsqueeze(1)
    torch.manual_seed(0)
    torch.nn.init.normal_(trained.model.embedding.weight)  # learns sooner than from small numbers
    optimizer = torch.optim.Adam(trained.model.parameters(), lr=0.03)
    for _ in range(80):
        loss = trained.model.token_losses(trained.model(tokens[:-1]).features, tokens[1:]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        trained.model.softmax_bias[trained.tokenizer.unk_id] = 20  # which would always be said, if it might
    return trained


@pytest.fixture
def sessions(monkeypatch):
    """The sessions that are made."""
    made = []
    real = TokenSession.__init__
    monkeypatch.setattr(TokenSession, "__init__", lambda self, *args: (made.append(self), real(self, *args))[1])
    return made


def without_a_session(trained, monkeypatch, *arguments, **options):
    with monkeypatch.context() as patch:
        patch.setattr(language, "can_replace", lambda model: False)
        return trained.generate(*arguments, **options)


@pytest.mark.parametrize("options", [{"temperature": 0}, {"seed": 1}, {"seed": 2, "temperature": 0.7, "top_k": 9}])
@pytest.mark.parametrize("prompt", ["", "w3 w1"])
def test_a_session_says_what_the_model_says(trained, sessions, monkeypatch, prompt, options):
    text = trained.generate(prompt, tokens=LONG, **options)
    assert len(sessions) == 1
    assert text == without_a_session(trained, monkeypatch, prompt, tokens=LONG, **options)
    assert len(set(text.split())) > 3
    assert "<unk>" not in text
    assert "<unk>" in trained.generate(prompt, tokens=LONG, allow_unknown=True, **options)


def test_stream_gives_log_probabilities(trained):
    session = trained.stream(threads=1)
    out = session.step(trained.tokenizer.eos_id)
    assert out.shape == (trained.model.vocabulary_size,)
    assert float(torch.from_numpy(out).exp().sum()) == pytest.approx(1)


def test_a_compressed_model_always_streams(trained, sessions, monkeypatch):
    monkeypatch.setattr(trained, "model", compress(trained.model, "gates=int8; cell=int8; embedding=int8"))
    short = trained.generate(tokens=SHORT, seed=3)
    assert trained.generate(tokens=LONG, seed=3).startswith(short)
    assert len(sessions) == 2


def test_what_a_session_would_not_do_is_left_to_the_model(trained, sessions, monkeypatch):
    assert can_replace(trained.model)
    with record_gates(trained.model) as record:
        assert not can_replace(trained.model)
        trained.generate(tokens=LONG)
    assert record
    handle = trained.model.layers[0].register_forward_hook(lambda *_: None)
    assert not can_replace(trained.model)
    handle.remove()
    monkeypatch.setattr(trained.model.layers[0], "eval_gate", "hard")
    assert not can_replace(trained.model)
    monkeypatch.undo()
    assert can_replace(trained.model)
    monkeypatch.setattr(kernel, "find", lambda: Found(None, "not compiled: for this test"))
    assert not can_replace(trained.model)
    assert not sessions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache_window": 0}, "window = 0: must be greater than or equal to 1"),
        ({"cache_theta": 0.0}, "theta = 0.0: must be greater than 0"),
        ({"cache_theta": float("nan")}, "theta = NaN: must be a finite number"),
        ({"cache_lambda": 1.0}, "lambda = 1.0: must be less than 1"),
    ],
)
def test_wrong_settings_of_the_cache(trained, options, message):
    with pytest.raises(G2Error, match=f"wrong cache settings: {message}"):
        trained.cache_settings(Scoring("test", **options))


def test_what_is_not_said_of_the_cache_is_as_in_the_recipe(trained):
    own = trained.recipe.evaluate.cache
    assert trained.cache_settings(Scoring("test", cache=True)) == own
    found = trained.cache_settings(Scoring("test", cache_theta=2.0))
    assert (found.window, found.theta, found.lambda_) == (own.window, 2.0, own.lambda_)
    text = "w3 w1\nw4 w3 w1"
    assert trained.perplexity(text, cache=found) != trained.perplexity(text)


def continue_words(run, count):
    load(run).generate(" ".join(f"w{k % 3000}" for k in range(count)), tokens=1, seed=1)


@pytest.mark.slow
def test_a_prompt_of_260_kilobytes_takes_little_memory(tmp_path):
    """The log-probabilities of all its tokens would take 550 MB."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for split in ("train", "valid", "test"):
        (texts / f"{split}.txt").write_text(" ".join(f"w{k}" for k in range(3000)) + "\n")
    run = language_run(tmp_path / "toy", f"data.path={texts}")
    assert peak_memory(continue_words, (run, 600), (run, 46_000)) < 100
