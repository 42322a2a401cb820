"""The gate's mathematics: the noise's distribution, the Proposition, evaluation modes, exactness at the edges."""

import math

import pytest
import torch

from g2lstm import G2LSTM
from g2lstm.nn import gate, kernel
from g2lstm.nn.random import (
    draw_drop,
    draw_noise,
    draw_stream,
    drop,
    logistic_from_words,
    logistic_noise,
    seed_and_increment,
    words_of,
)

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
WORDS = [0, 1, 2, 2**31 - 1, -(2**31), -3, -2, -1]  # both ends and the middle of an unsigned 32-bit word


def draw_many(count, **options):
    return draw_noise((count,), generator=torch.Generator().manual_seed(0), **options)


def splitmix64(seed, increment, count):
    """The published algorithm, in Python's own integers."""
    words, state = [], seed % 2**64
    for _ in range(count):
        state = (state + increment) % 2**64
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        words.append(z ^ (z >> 31))
    return words


def test_words_are_splitmix64():
    # The first outputs of the reference implementation for seed 1234567 and the golden increment.
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert splitmix64(1234567, 0x9E3779B97F4A7C15, 5) == known
    stream = draw_stream(torch.Generator().manual_seed(3))
    expected = splitmix64(*seed_and_increment(stream), 100)
    assert [word % 2**64 for word in words_of(stream, 100).tolist()] == expected


def test_increments_are_odd_and_their_bits_change_often_enough():
    """The rule of SplittableRandom, which one increment in fifty would break: at least 24 changes."""
    for number in (2**63 - 1, -(2**63), *range(-1000, 1000)):
        seed, increment = seed_and_increment(torch.tensor([5, number]))
        bits = f"{increment % 2**64:064b}"
        assert seed == 5
        assert bits[-1] == "1"
        assert sum(a != b for a, b in zip("0" + bits, bits, strict=False)) >= 24


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rate", [1.0, 0.2, 1e-9])
def test_every_word_gives_finite_noise(dtype, rate):
    if dtype == torch.float64:
        words = torch.tensor(
            [0, 1, 2**61 - 1, 2**61, 2**62 - 1, 2**62, 2**62 + 1, 2**63 - 1, -(2**63), -1, -2, 2**62 - 2]
        )
    else:
        words = torch.tensor(WORDS, dtype=torch.int32)
    noise = logistic_from_words(words, rate, dtype)
    assert noise.dtype == dtype
    assert noise.isfinite().all()
    if rate == 1.0:
        assert noise.min() < -20
        assert noise.max() > 20
        torch.testing.assert_close(noise.sort().values, -noise.sort(descending=True).values, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rate", [0.0, 1e-7, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("count", [1, 7, 16, 100_001])
def test_kernel_and_torch_make_the_same_noise(dtype, rate, count, monkeypatch):
    stream = draw_stream(torch.Generator().manual_seed(0))
    ours = logistic_noise(stream, count, rate, dtype)
    monkeypatch.setattr(kernel, "find", lambda: kernel.Found(None, "not here"))
    expected = logistic_noise(stream, count, rate, dtype)
    torch.testing.assert_close(ours, expected, rtol=3e-7 if dtype == torch.float32 else 1e-15, atol=2e-7)
    assert torch.equal(ours == 0, expected == 0)
    assert ours.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rate", "soft_rate"), [(0.0, 0.3), (0.2, 0.3), (0.2, 0.9), (0.5, 1.0), (1.0, 1e-9)])
def test_infinite_noise_has_its_share_in_kernel_and_torch(dtype, rate, soft_rate, monkeypatch):
    stream, n = draw_stream(torch.Generator().manual_seed(0)), 100_001
    ours = logistic_noise(stream, n, rate, dtype, soft_rate)
    monkeypatch.setattr(kernel, "find", lambda: kernel.Found(None, "not here"))
    assert torch.equal(logistic_noise(stream, n, rate, dtype, soft_rate) == torch.inf, ours == torch.inf)
    for elements, share in ((ours == torch.inf, soft_rate), (ours.isfinite() & (ours != 0), min(rate, 1 - soft_rate))):
        assert abs(elements.double().mean().item() - share) <= 5 * math.sqrt(share * (1 - share) / n)
    monkeypatch.undo()
    assert torch.equal(ours[ours.isfinite()], logistic_noise(stream, n, rate, dtype)[ours.isfinite()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("count", [1, 7, 16, 100_001])
def test_kernel_and_torch_drop_the_same_weights(dtype, count, monkeypatch):
    choice, weight = draw_drop(0.3), torch.randn(count, dtype=dtype)
    ours = drop(weight, choice)
    monkeypatch.setattr(kernel, "find", lambda: kernel.Found(None, "not here"))
    assert torch.equal(drop(weight, choice), ours)


def test_dropconnect_drops_the_share_and_keeps_the_mean():
    weight = torch.ones(1000, 1000, dtype=torch.float64, requires_grad=True)
    dropped = drop(weight, draw_drop(0.3))
    share = (dropped == 0).double().mean().item()
    assert abs(share - 0.3) < 5 * math.sqrt(0.3 * 0.7 / 1e6)
    torch.testing.assert_close(
        dropped[dropped != 0],
        torch.full((1,), 1 / 0.7, dtype=torch.float64).expand_as(dropped[dropped != 0]),
        rtol=1e-8,
        atol=0,
    )
    dropped.backward(weight.detach())
    assert torch.equal(weight.grad, dropped)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_noise_is_logistic(dtype):
    """Kolmogorov-Smirnov distance of n draws; 1.95 / sqrt(n) is exceeded once in a thousand seeds."""
    n = 200_000
    noise = draw_many(n, dtype=dtype).double()
    expected = torch.sigmoid(noise.sort().values)
    distance = (expected - torch.arange(1, n + 1) / n).abs().max()
    rounding = 2**-9 if dtype == torch.bfloat16 else 2**-12 if dtype == torch.float16 else 0
    assert distance < 1.95 / math.sqrt(n) + rounding


def test_tails_are_not_cut():
    """An epsilon of 1e-3 inside the logarithms, as in the authors' code, would allow nothing beyond 6.9."""
    n = 4_000_000
    noise = draw_many(n)
    for bound in (7.0, 9.0, 11.0):
        expected = 2 * n / (1 + math.exp(bound))
        assert abs((noise.abs() > bound).sum().item() - expected) < 5 * math.sqrt(expected)


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.7, 1.0])
def test_rate_is_the_share_of_noisy_elements_and_leaves_their_distribution(rate):
    n = 300_000
    noise = draw_many(n, rate=rate)
    noisy = noise[noise != 0].double()
    assert abs(len(noisy) / n - rate) <= 5 * math.sqrt(rate * (1 - rate) / n)
    if rate:
        distance = (torch.sigmoid(noisy.sort().values) - torch.arange(1, len(noisy) + 1) / len(noisy)).abs().max()
        assert distance < 1.95 / math.sqrt(len(noisy))


@pytest.mark.parametrize("alpha", [-3.0, -0.5, 0.0, 1.0, 4.0])
@pytest.mark.parametrize("tau", [0.1, 0.9, 2.0])
@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.4])
def test_proposition(alpha, tau, epsilon):
    """Sampled frequency against the closed form (5 standard deviations), and the closed form against both bounds."""
    n = 400_000
    noise = draw_many(n, dtype=torch.float64)
    a = torch.tensor(alpha, dtype=torch.float64)
    sample = gate.sampled_gate(a, tau, noise)
    for observed, at in (((sample >= 1 - epsilon), alpha), ((sample <= epsilon), -alpha)):
        expected = 1 / (1 + math.exp(-(at - tau * math.log(1 / epsilon - 1))))  # of P(G >= 1 - epsilon)
        assert abs(observed.double().mean().item() - expected) <= 5 * math.sqrt(expected * (1 - expected) / n) + 1e-9
        above = 1 / (1 + math.exp(-at))  # P(D = 1)
        assert above - tau / 4 * math.log(1 / epsilon) <= expected <= above


def test_noise_is_fresh_for_every_element_step_layer_direction_and_call(monkeypatch):
    """Correlations between the noises that a layer used; of n pairs their standard deviation is 1 / sqrt(n)."""
    drawn = []

    def spy(*args, **options):
        drawn.append(draw_noise(*args, **options))
        return drawn[-1]

    monkeypatch.setattr("g2lstm.nn.gated.draw_noise", spy)
    layer = G2LSTM(3, 32, num_layers=2, bidirectional=True, noise_rate=1.0)
    x = torch.randn(40, 50, 3)
    layer(x)
    layer(x)
    assert len(drawn) == 8  # 2 calls x 2 layers x 2 directions
    noises = [noise.double().view(40, 50, 64) for noise in drawn]

    def correlation(a, b):
        return torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1].abs().item()

    bound = 5 / math.sqrt(39 * 50 * 63)
    for i, a in enumerate(noises):
        assert all(correlation(a, b) < bound for b in noises[:i])  # layers, directions, calls
        assert correlation(a[1:, :, 1:], a[:-1, :, 1:]) < bound  # steps
        assert correlation(a[1:, :, 1:], a[1:, :, :-1]) < bound  # units
        assert correlation(a[:, 1:], a[:, :-1]) < bound  # batch rows
        assert correlation(a[..., :32], a[..., 32:]) < bound * math.sqrt(2)  # input and forget gate


def test_sampling_and_evaluation_by_hand():
    alpha = torch.tensor([-2.0, 0.0, 3.0])
    noise = torch.tensor([1.0, -1.0, 0.5])
    torch.testing.assert_close(gate.sampled_gate(alpha, 0.5, noise), torch.sigmoid((alpha + noise) / 0.5))
    torch.testing.assert_close(gate.sampled_gate(alpha, 1.0), torch.sigmoid(alpha))
    assert gate.hard_gate(alpha).tolist() == [0.0, 1.0, 1.0]


def test_gates_by_hand():
    alpha = torch.arange(8.0) - 4
    i, f, g, o = gate.GateRule(tau=0.5).lstm(alpha, torch.tensor([0.1, 0.2, 0.3, 0.4]))
    torch.testing.assert_close(i, torch.sigmoid((alpha[0:2] + torch.tensor([0.1, 0.2])) / 0.5))
    torch.testing.assert_close(f, torch.sigmoid((alpha[2:4] + torch.tensor([0.3, 0.4])) / 0.5))
    torch.testing.assert_close(g, torch.tanh(alpha[4:6]))
    torch.testing.assert_close(o, torch.sigmoid(alpha[6:8]))
    i, f, g, o = gate.GateRule(hard=True, gates="ifo").lstm(alpha)
    assert [v.tolist() for v in (i, f, o)] == [[0, 0], [0, 0], [1, 1]]
    torch.testing.assert_close(g, torch.tanh(alpha[4:6]))


@pytest.mark.parametrize(
    ("method", "training", "eval_gate", "tau", "hard"),
    [
        ("gumbel", True, "soft", 0.9, False),
        ("gumbel", True, "hard", 0.9, False),
        ("gumbel", False, "soft", 1.0, False),
        ("gumbel", False, "tempered", 0.9, False),
        ("gumbel", False, "hard", 1.0, True),
        ("binary", True, None, 0.5, False),
        ("binary", False, None, 1.0, True),
        ("binary", False, "soft", 1.0, False),
        ("sharpened", True, "soft", 0.2, False),
        ("sharpened", False, "soft", 0.2, False),
        ("sigmoid", True, "soft", 1.0, False),
        ("sigmoid", False, "tempered", 1.0, False),
    ],
)
def test_which_temperature_when(method, training, eval_gate, tau, hard):
    rule = G2LSTM(2, 3, method=method, eval_gate=eval_gate).train(training).gate_rule()
    assert (rule.tau, rule.hard, rule.binary) == (tau, hard, method == "binary" and training)
