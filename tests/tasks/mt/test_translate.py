import numpy as np
import pytest
import torch

from g2lstm.errors import G2Error
from g2lstm.nn.record import lstms
from g2lstm.runtime.translation import replace_unknown
from g2lstm.tasks.mt.beam import translate
from g2lstm.tasks.mt.model import TranslationModel

SOURCE_EOS, TARGET_EOS = 2, 1
SOURCES = [[3, 4, 5], [], [6], [7, 8, 9, 10, 11, 12, 3], [4], [], [5, 5, 5, 5, 5]]


@pytest.fixture
def model():
    model = TranslationModel(14, 11, 6, 8).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # so that words differ in probability
    return model


def run(model, sources=SOURCES, **options):
    return translate(model, sources, source_eos=SOURCE_EOS, target_eos=TARGET_EOS, **options)


def taught_log_probability(model, source, tokens):
    """Of a translation, when the model reads all of it at once."""
    model.eval()
    column = torch.tensor([*source, SOURCE_EOS]).unsqueeze(1)
    inputs, targets = torch.tensor([TARGET_EOS, *tokens]), torch.tensor([*tokens, TARGET_EOS])
    with torch.no_grad():
        features = model(column, torch.tensor([len(column)]), inputs.unsqueeze(1))
        return -model.token_losses(features[:, 0], targets).sum().item()


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_order_and_padding_change_nothing(model, batch_size):
    got = run(model, n_best=3, batch_size=batch_size, keep_attention=True)
    for source, best in zip(SOURCES, got, strict=True):
        [alone] = run(model, [source], n_best=3, keep_attention=True)
        assert [one.tokens for one in best] == [one.tokens for one in alone]
        for one, other in zip(best, alone, strict=True):
            assert one.score == pytest.approx(other.score)
            assert (one.attention is None) == (not source)
            if source:
                assert one.attention.shape == (len(one.tokens) + 1, len(source) + 1)
                np.testing.assert_allclose(one.attention, other.attention, rtol=1e-5, atol=1e-8)
                np.testing.assert_allclose(one.attention.sum(1), 1)


def test_log_probabilities_are_those_of_the_taught_model(model):
    got = run(model, n_best=4)
    assert len({len(one.tokens) for best in got for one in best}) > 2
    for source, best in zip(SOURCES, got, strict=True):
        for one in best if source else []:
            assert one.log_probability == pytest.approx(taught_log_probability(model, source, one.tokens))
            assert one.score == pytest.approx(one.log_probability / (len(one.tokens) + 1))


def test_a_beam_of_one_is_greedy(model):
    model.eval()
    for source, [got] in zip(SOURCES, run(model, beam=1), strict=True):
        tokens, limit = [], 2 * len(source) + 10 if source else 0
        while len(tokens) < limit:
            column, inputs = torch.tensor([*source, SOURCE_EOS]), torch.tensor([TARGET_EOS, *tokens])
            with torch.no_grad():
                features = model(column.unsqueeze(1), torch.tensor([len(column)]), inputs.unsqueeze(1))
                word = (features[-1, 0] @ model.output_weight.t() + model.softmax_bias).argmax().item()
            if word == TARGET_EOS:
                break
            tokens.append(word)
        assert got.tokens == tokens


def test_an_empty_source_is_not_shown_to_the_model(model, monkeypatch):
    monkeypatch.setattr(model, "encode", None)
    seen = []
    assert [[one.tokens for one in best] for best in run(model, [[], []], n_best=2)] == [[[]], [[]]]
    assert run(model, [], progress=lambda *now: seen.append(now)) == []
    assert seen == []


def never_ends(model):
    with torch.no_grad():
        model.softmax_bias[TARGET_EOS] = -100.0
    return model


def test_lengths_are_limited(model):
    never_ends(model)
    assert [len(best[0].tokens) for best in run(model)] == [2 * len(s) + 10 if s else 0 for s in SOURCES]
    assert [len(best[0].tokens) for best in run(model, max_length=4)] == [4 if s else 0 for s in SOURCES]


def test_long_sources_come_in_small_batches(model, monkeypatch):
    shapes, encode = [], model.encode
    monkeypatch.setattr(model, "encode", lambda *inputs: shapes.append(tuple(inputs[0].shape)) or encode(*inputs))
    seen = []
    sources = [[3] * 2, [3] * 500, [], *[[4] * 100] * 6, *[[5] * 50] * 9]
    run(model, sources, batch_size=8, max_length=1, progress=lambda *now: seen.append(now))
    assert shapes == [(501, 1), (101, 4), (101, 4), (51, 8)]
    assert seen == [(2, 18), (6, 18), (10, 18), (18, 18)]
    shapes.clear()
    run(model, sources, batch_size=1, max_length=1)
    assert len(shapes) == 17


def test_forbidden_words_never_come(model):
    said = {token for best in run(model, n_best=5) for one in best for token in one.tokens}
    forbidden = sorted(said)[:3]
    got = run(model, n_best=5, forbidden=forbidden)
    assert not {token for best in got for one in best for token in one.tokens} & set(forbidden)


def test_mode_and_gates_are_put_back(model):
    model.train()
    soft, hard = run(model), run(model, eval_gate="hard")
    assert soft != hard
    assert soft == run(model)  # no dropout, no noise
    with pytest.raises(G2Error, match="n_best"):
        run(model, n_best=9, eval_gate="hard")
    assert model.training
    assert {layer.eval_gate for layer in lstms(model)} == {"soft"}
    assert all(module.training for module in model.modules())


def test_the_model_can_be_trained_afterwards(model):
    run(model)
    features = model(torch.tensor([[3], [SOURCE_EOS]]), torch.tensor([2]), torch.tensor([[TARGET_EOS]]))
    features.sum().backward()
    assert model.source_embedding.weight.grad is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_source": 6}, "line 4 has 7 tokens, more than max_source, which is 6; split it into sentences"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"max_length": 0}, "max_length must be a whole number from 1 to 2147483647, got 0"),
        ({"beam": 0}, "beam must be a whole number from 1 to 1000, got 0"),
    ],
)
def test_bad_arguments(model, options, message):
    with pytest.raises(G2Error, match=message):
        run(model, **options)


def test_the_longest_source_allowed_is_a_thousand_tokens(model):
    run(model, [[3] * 1000], max_length=1)
    with pytest.raises(G2Error, match="line 2 has 1001 tokens"):
        run(model, [[3], [3] * 1001], max_length=1)


def test_unknown_words_are_copied_from_where_the_model_looked():
    attention = np.array([[0.1, 0.7, 0.2], [0.8, 0.1, 0.1], [0.3, 0.1, 0.6], [0.0, 0.0, 1.0]])
    words = ["<unk>", "says", "<unk>"]
    got = replace_unknown(words, ["sagt", "Anna"], attention, unknown="<unk>")
    assert got == ["Anna", "says", "sagt"]  # the last column is <eos>
    assert words == ["<unk>", "says", "<unk>"]
    assert replace_unknown([], ["ja"], torch.ones(1, 2), unknown="<unk>") == []
    assert replace_unknown(["<unk>"], [], torch.ones(2, 1), unknown="<unk>") == ["<unk>"]
