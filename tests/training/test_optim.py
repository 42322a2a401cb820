"""The optimisers: NT-ASGD's trigger and average, AdamW's schedule and decay, states that resume to the bit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from g2lstm.recipes.sections import AdaDelta, AdamW, NtAsgd, TrainSection
from g2lstm.training.optim import (
    LastAveraging,
    NonMonotoneAveraging,
    build_optimizer,
    load_optimizer_state,
    optimizer_state,
)
from g2lstm.training.progress import learning_rate


def fired(losses, window):
    averaging = NonMonotoneAveraging([], window)
    return [averaging.check(loss) for loss in losses]


def test_trigger_by_hand():
    losses = [9, 8, 7, 6, 5, 5.5, 5.4, 5.3, 5.2, 5.1, 5.05, 4.9]
    # With window 5, check number 11 (5.05) is the first with 5 among "all but the last 5": 9, 8, 7, 6, 5.
    assert fired(losses, 5) == [False] * 10 + [True, False]
    assert fired([1, 2, 3, 4], 0) == [False, True, True, True]
    assert fired([3, 3, 3, 3], 1) == [False] * 4
    assert fired([1, 2, 3, 4], None) == [False] * 4


@given(st.lists(st.floats(0, 100), max_size=30), st.integers(0, 7))
def test_trigger_is_its_definition(losses, window):
    assert fired(losses, window) == [
        t > window and losses[t] > min(losses[: t - window]) if t > window else False for t in range(len(losses))
    ]


def parameters():
    generator = torch.Generator().manual_seed(3)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in ((4, 3), (5,))]


def give_gradients(weights, step):
    generator = torch.Generator().manual_seed(step)
    for p in weights:
        p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype) + p.detach()


def test_average_is_the_mean_of_all_weights_since_it_began():
    weights = parameters()
    optimizer, averaging = build_optimizer(NtAsgd(lr=0.1, weight_decay=0.01, window=1), weights)
    history = []
    for step in range(12):
        give_gradients(weights, step)
        optimizer.step()
        averaging.after_update()
        history.append([p.detach().clone() for p in weights])
        if step in (1, 2, 3):
            assert averaging.check(float(step)) == (step == 3)
    assert averaging.is_averaging
    since = history[4:]  # updates after the check that fired
    for k, mean in enumerate(averaging.means):
        assert torch.allclose(mean, torch.stack([values[k] for values in since]).mean(0), atol=1e-14)


def test_iterates_are_those_of_torch_asgd_and_its_mean_but_for_the_first():
    ours, theirs = parameters(), parameters()
    optimizer, averaging = build_optimizer(NtAsgd(lr=0.1, weight_decay=0.01, start="asgd"), ours)
    reference = torch.optim.ASGD(theirs, lr=0.1, t0=0, lambd=0.0, weight_decay=0.01)
    for step in range(10):
        for weights in (ours, theirs):
            give_gradients(weights, step)
        optimizer.step()
        averaging.after_update()
        reference.step()
        if step == 0:
            first = [p.detach().clone() for p in ours]
    for p, q, mean, p_first in zip(ours, theirs, averaging.means, first, strict=True):
        assert torch.allclose(p, q, atol=1e-12)
        assert torch.allclose((10 * mean - p_first) / 9, reference.state[q]["ax"], atol=1e-12)


def test_swapping_is_exact_and_undone_by_an_exception():
    weights = parameters()
    averaging = NonMonotoneAveraging(weights, is_averaging=True)
    with averaging.evaluation_weights():  # nothing averaged yet
        assert torch.equal(weights[0], parameters()[0])
    averaging.after_update()
    with torch.no_grad():
        weights[0].add_(2.0)
    averaging.after_update()
    own, mean = weights[0].detach().clone(), averaging.means[0].clone()
    with averaging.evaluation_weights():
        assert torch.equal(weights[0], mean)
    assert torch.equal(weights[0], own)
    with pytest.raises(RuntimeError, match="stop"), averaging.evaluation_weights():
        raise RuntimeError("stop")
    assert torch.equal(weights[0], own)
    assert torch.equal(averaging.means[0], mean)


def is_plain(value):
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(entry) for key, entry in value.items())
    if isinstance(value, list):
        return all(is_plain(entry) for entry in value)
    return type(value) in (int, float, str, torch.Tensor)


def copied(value):
    if isinstance(value, dict):
        return {key: copied(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [copied(entry) for entry in value]
    return value.clone() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("settings", [NtAsgd(lr=0.1, window=2), AdamW(), AdaDelta()], ids=lambda one: one.name)
@pytest.mark.parametrize("stop", [1, 4, 7])
def test_resumed_training_is_the_same_to_the_bit(settings, stop):
    def train(weights, optimizer, averaging, steps):
        for step in steps:
            give_gradients(weights, step)
            optimizer.param_groups[0]["lr"] = learning_rate(TrainSection(optimizer=settings, epochs=1), step / 10)
            optimizer.step()
            averaging.after_update()
            averaging.check([3.0, 2.0, 2.5, 2.4, 2.3, 2.6, 2.2, 2.1, 2.0, 1.9][step])

    def start():
        weights = parameters()
        return weights, *build_optimizer(settings, weights, average=5)

    whole = start()
    train(*whole, range(10))
    first, second = start(), start()
    train(*first, range(stop))
    state = copied({"optimizer": optimizer_state(first[1]), "averaging": first[2].state_dict()})
    assert is_plain(state)
    with torch.no_grad():
        for p, q in zip(second[0], first[0], strict=True):
            p.copy_(q)
    load_optimizer_state(second[1], state["optimizer"])
    second[2].load_state_dict(state["averaging"])
    train(*second, range(stop, 10))
    assert all(torch.equal(p, q) for p, q in zip(whole[0], second[0], strict=True))
    assert whole[2].is_averaging == (settings.name == "ntasgd")
    assert whole[2].updates == second[2].updates
    assert all(torch.equal(p, q) for p, q in zip(whole[2].means, second[2].means, strict=True))
    assert whole[2].losses == second[2].losses
    assert whole[2].finish() == second[2].finish() == (0 if settings.name == "ntasgd" else 5)
    assert all(torch.equal(p, q) for p, q in zip(whole[2].means, second[2].means, strict=True))


def test_the_mean_of_the_last_weights():
    weights = parameters()
    averaging = LastAveraging(weights, 3)
    history = []
    for number in range(5):
        with torch.no_grad():
            for p in weights:
                p.add_(number)
        averaging.check(0.0)
        history.append([p.detach().clone() for p in weights])
    assert not averaging.means
    assert averaging.finish() == 3
    with averaging.evaluation_weights():
        for k, p in enumerate(weights):
            assert torch.allclose(p, torch.stack([values[k] for values in history[-3:]]).mean(0), atol=1e-14)
    assert all(map(torch.equal, weights, history[-1]))
    averaging.check(0.0)
    assert averaging.finish() == 0  # once is enough
    assert LastAveraging(weights, 3).finish() == 0


def test_a_checkpoint_of_an_earlier_version_has_kept_no_weights():
    averaging = LastAveraging(parameters(), 3)
    averaging.load_state_dict(NonMonotoneAveraging(parameters(), None).state_dict())
    assert averaging.kept == []


def test_state_of_another_model_is_refused():
    other = [nn.Parameter(torch.zeros(2))]
    averaging = NonMonotoneAveraging(parameters(), is_averaging=True)
    averaging.after_update()
    with pytest.raises(RuntimeError, match="shape"):
        NonMonotoneAveraging(other).load_state_dict(averaging.state_dict())
    with pytest.raises(ValueError, match="longer"):
        load_optimizer_state(
            build_optimizer(AdamW(), other)[0], optimizer_state(build_optimizer(AdamW(), parameters())[0])
        )


def test_adamw_leaves_biases_undecayed():
    optimizer, _ = build_optimizer(AdamW(weight_decay=0.3), parameters())
    assert [(len(group["params"]), group["weight_decay"]) for group in optimizer.param_groups] == [(1, 0.3), (1, 0.0)]


def test_fused_sgd_is_the_formula():
    weights = parameters()
    before = [p.detach().clone() for p in weights]
    give_gradients(weights, 0)
    build_optimizer(NtAsgd(lr=30.0, weight_decay=0.1), weights)[0].step()
    for p, old in zip(weights, before, strict=True):
        assert torch.allclose(p, old - 30.0 * (p.grad + 0.1 * old), atol=1e-12)


def rate(share, **settings):
    return learning_rate(TrainSection(optimizer=AdamW(lr=2.0, **settings), epochs=1), share) / 2.0


def test_one_cycle_by_hand():
    assert rate(0.0) == pytest.approx(0.04)
    assert rate(0.05) == pytest.approx(0.52)
    assert rate(0.1) == pytest.approx(1.0)
    assert rate(0.55) == pytest.approx(0.5)
    assert rate(1.0) == pytest.approx(0.0, abs=1e-12)
    assert rate(1.0, final_lr=0.1) == pytest.approx(0.1)
    assert rate(0.0, warmup=0.0) == 1.0
    assert learning_rate(TrainSection(optimizer=NtAsgd(lr=7.0), epochs=1), 0.3) == 7.0


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.9))
def test_one_cycle_rises_then_falls(a, b, warm_up):
    low, high = sorted((a, b))
    assert 0 <= rate(low, warmup=warm_up) <= 1
    if high < warm_up:
        assert rate(low, warmup=warm_up) <= rate(high, warmup=warm_up)
    elif low >= warm_up:
        assert rate(low, warmup=warm_up) >= rate(high, warmup=warm_up)
