"""Products of bfloat16: exactly what they claim, close to the reference, the same for any number of threads."""

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from g2lstm import G2GRU, G2LSTM
from g2lstm.nn import kernel, recurrence
from g2lstm.nn.gate import GateRule
from g2lstm.nn.random import draw_stream, logistic_noise
from tests.nn.builds import only

HALF, TAU = torch.bfloat16, 0.7
HAS_IT = pytest.mark.skipif(not kernel.find().has_bfloat16, reason="this processor has no instructions for bfloat16")
SIZES = [(37, 5), (300, 20)]  # units and sequences: threads divide the sequences, or the units
# Of what a product multiplies, of its result, and of what the layer returns, each is rounded to 8 bits: four times half
# a unit in the last place, and twice that for the steps that carry it on.
CLOSE = 8 * 2.0**-9


def rounded(tensor):
    return tensor.to(HALF).float()


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def close(ours, theirs, bound):
    assert (ours.double() - theirs.double()).abs().max() <= bound * theirs.abs().max()


@HAS_IT
@pytest.mark.parametrize(("H", "B"), SIZES)
def test_an_lstm_rounds_what_it_multiplies_and_nothing_else(H, B):
    T, rule = 4, GateRule(TAU)
    rows, offset = torch.full((T,), B), torch.arange(T) * B
    given, noise, h0, c0 = draw(T * B, 4 * H), draw(T * B, 2 * H), draw(B, H), draw(B, H)
    w_h = (draw(4 * H, H) / H**0.5).to(HALF)
    gates = given.clone()
    out, cells = recurrence.lstm_forward(gates, noise, w_h, None, h0, c0, rows, offset, rule)
    h_before, c_before = torch.cat([h0, out[:-B]]), torch.cat([c0, cells[:-B]])
    sums = given + rounded(h_before) @ w_h.float().t()
    i, f = ((sums[:, : 2 * H] + noise) / TAU).sigmoid().chunk(2, 1)
    g, o = sums[:, 2 * H : 3 * H].tanh(), sums[:, 3 * H :].sigmoid()
    close(gates, torch.cat([i, f, g, o], 1), 1e-5)
    close(cells, f * c_before + i * g, 1e-5)
    close(out, o * cells.tanh(), 1e-5)

    d_out, d_h, d_c = draw(T * B, H), draw(B, H) / 2, draw(B, H) / 3
    d_h_now, d_c_now = d_h.clone(), d_c.clone()
    d_gates = recurrence.lstm_backward(d_out, d_h, d_c, gates, cells, c0, w_h, None, rows, offset, rule)
    for s in reversed(range(T)):
        here = slice(s * B, s * B + B)
        i, f, g, o = gates[here].chunk(4, 1)
        tanh_c = cells[here].tanh()
        d_h_now = d_h_now + d_out[here]
        d_c_now = d_c_now + d_h_now * o * (1 - tanh_c**2)
        d_i, d_f = d_c_now * g * i * (1 - i) / TAU, d_c_now * c_before[here] * f * (1 - f) / TAU
        d_g, d_o = d_c_now * i * (1 - g**2), d_h_now * tanh_c * o * (1 - o)
        close(d_gates[here], torch.cat([d_i, d_f, d_g, d_o], 1), 1e-5)
        d_h_now, d_c_now = rounded(d_gates[here]) @ w_h.float(), d_c_now * f
    close(d_h, d_h_now, 1e-5)
    close(d_c, d_c_now, 1e-5)


@HAS_IT
@pytest.mark.parametrize(("H", "B"), SIZES)
def test_a_gru_rounds_what_it_multiplies_and_nothing_else(H, B):
    T, rule = 4, GateRule(TAU, gates="rz")
    rows, offset = torch.full((T,), B), torch.arange(T) * B
    given, noise, h0, b_n = draw(T * B, 3 * H), draw(T * B, 2 * H), draw(B, H), draw(H)
    w_h = (draw(3 * H, H) / H**0.5).to(HALF)
    gates = given.clone()
    out, inner = recurrence.gru_forward(gates, noise, w_h, b_n, h0, rows, offset, rule)
    h_before = torch.cat([h0, out[:-B]])
    products = rounded(h_before) @ w_h.float().t()
    r, z = ((given + products)[:, : 2 * H] + noise).div(TAU).sigmoid().chunk(2, 1)
    close(inner, products[:, 2 * H :] + b_n, 1e-5)
    n = (given[:, 2 * H :] + r * inner).tanh()
    close(gates, torch.cat([r, z, n], 1), 1e-5)
    close(out, n + z * (h_before - n), 1e-5)

    d_out, d_h = draw(T * B, H), draw(B, H) / 2
    now = d_h.clone()
    d_gates = recurrence.gru_backward(d_out, d_h, gates, inner, out, h0, w_h, rows, offset, rule)
    for s in reversed(range(T)):
        here = slice(s * B, s * B + B)
        r, z, n = gates[here].chunk(3, 1)
        now = now + d_out[here]
        d_n = now * (1 - z) * (1 - n**2)
        d_r, d_z = d_n * inner[here] * r * (1 - r) / TAU, now * (h_before[here] - n) * z * (1 - z) / TAU
        close(d_gates[here], torch.cat([d_r, d_z, d_n * r, d_n], 1), 1e-5)
        now = now * z + rounded(d_gates[here, : 3 * H]) @ w_h.float()
    close(d_h, now, 1e-5)


LAYERS = {
    "LSTM": (G2LSTM, {}),
    "LSTM both ways, projected": (G2LSTM, {"bidirectional": True, "proj_size": 9}),
    "LSTM with DropConnect": (G2LSTM, {"weight_dropout": 0.5}),
    "GRU both ways": (G2GRU, {"bidirectional": True}),
}


def results(layer, x, noise, is_half):
    """Output, and gradients of input and parameters; the same masks each time."""
    x = x.clone().requires_grad_()
    layer.zero_grad()
    with torch.autocast("cpu", HALF, enabled=is_half):
        sequences = pack_sequence([x[: len(x) - k % 3, k] for k in range(x.size(1))], enforce_sorted=False)
        out = layer(sequences, noise=noise, generator=torch.Generator().manual_seed(5))[0].data
    assert out.dtype == (HALF if is_half else x.dtype)
    (out.to(x.dtype) * torch.linspace(-1, 1, out.size(1), dtype=x.dtype)).sum().backward()
    return [out.detach(), x.grad, *(p.grad.clone() for p in layer.parameters())]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("build", [next(iter(kernel.BUILDS)), "AVX2", None], ids=["fastest", "AVX2", "none"])
def test_autocast_is_close_to_float64(name, build, use):
    """With bfloat16 instructions, with a kernel without them, and without a kernel."""
    kind, options = LAYERS[name]
    torch.manual_seed(1)
    layer = kind(21, 37, **options, backend="native")
    exact = kind(21, 37, **options, backend="native").double()
    exact.load_state_dict(layer.state_dict())
    x, noise = draw(6, 5, 21), [draw(6 * 5 - 4, 74) / 4 for _ in range(layer.directions)]
    theirs = results(exact, x.double(), [n.double() for n in noise], False)
    if build is None:
        use("fallback")
        ours = results(layer, x, noise, True)
    else:
        with only(build):
            ours = results(layer, x, noise, True)
    for mine, other in zip(ours, theirs, strict=True):
        close(mine, other, CLOSE)


@HAS_IT
def test_threads_do_not_change_a_bit():
    T, B, H = 5, 20, 300
    rows, offset = torch.full((T,), B), torch.arange(T) * B
    w_h, found, before = draw(4 * H, H).to(HALF), [], torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            gates = draw(T * B, 4 * H)
            states = recurrence.lstm_forward(gates, None, w_h, None, draw(B, H), draw(B, H), rows, offset, GateRule())
            found.append([gates, *states])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for each in found[1:] for one, other in zip(each, found[0], strict=True))


def test_noise_is_that_of_float32_rounded():
    stream = draw_stream()
    assert torch.equal(logistic_noise(stream, 999, 0.5, HALF), logistic_noise(stream, 999, 0.5, torch.float32).to(HALF))


def test_a_kernel_without_the_instructions_refuses_bfloat16():
    fits = [torch.zeros(4, 12), None, torch.zeros(12, 3).to(HALF), None, torch.zeros(2, 3), torch.zeros(2, 3)]
    with only("AVX2"), pytest.raises(ValueError, match=r"the kernel needs a contiguous torch.float32 tensor"):
        recurrence.lstm_forward(*fits, torch.tensor([2, 2]), torch.tensor([0, 2]), GateRule())
    if kernel.find().has_bfloat16:
        with pytest.raises(ValueError, match=r"the kernel needs a contiguous torch.float32 tensor"):
            recurrence.lstm_forward(
                *(None if t is None else t.double() if t.dtype != HALF else t for t in fits),
                torch.tensor([2, 2]), torch.tensor([0, 2]), GateRule(),
            )  # fmt: skip
