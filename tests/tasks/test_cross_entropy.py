import pytest
import torch
from torch.nn import functional as F

from g2lstm.tasks import cross_entropy as loss_module
from g2lstm.tasks.cross_entropy import Guide, cross_entropy, guided_cross_entropy, smoothing_penalty


def inputs(rows, width, vocabulary):
    make = {"dtype": torch.float64, "requires_grad": True}
    features, weight, bias = (
        torch.randn(rows, width, **make),
        torch.randn(vocabulary, width, **make),
        torch.randn(vocabulary, **make),
    )
    return features, weight, bias, torch.randint(vocabulary, (rows,))


@pytest.fixture(params=[1, 5, 1000], ids=lambda rows: f"chunks of {rows}")
def _chunks(request, monkeypatch):
    monkeypatch.setattr(loss_module, "_CHUNK_ROWS", request.param)
    monkeypatch.setattr(loss_module, "_CHUNK_LOGITS", 1)


@pytest.fixture(params=["torch's chunks", "our chunks"], autouse=True)
def _torch(request, monkeypatch):
    """With torch's own chunked loss, and as with a torch that does not have it."""
    if request.param == "our chunks":
        monkeypatch.setattr(loss_module, "_Options", None)
    elif loss_module._Options is None:
        pytest.skip("this torch has no chunked loss")


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("has_bias", [True, False])
def test_equals_full_logits_with_all_gradients(reduction, has_bias):
    features, weight, bias, targets = inputs(17, 4, 29)
    leaves = [features, weight, bias] if has_bias else [features, weight]
    bias = bias if has_bias else None
    upstream = torch.randn(17, dtype=torch.float64) if reduction == "none" else torch.tensor(0.7, dtype=torch.float64)
    got = cross_entropy(features, weight, bias, targets, reduction=reduction)
    expected = F.cross_entropy(F.linear(features, weight, bias), targets, reduction=reduction)
    assert got.shape == expected.shape
    assert torch.allclose(got, expected, atol=1e-12)
    for ours, theirs in zip(
        torch.autograd.grad(got, leaves, upstream), torch.autograd.grad(expected, leaves, upstream), strict=True
    ):
        assert torch.allclose(ours, theirs, atol=1e-12)


def test_large_problem_takes_the_chunked_path_in_single_precision():
    features, weight, bias, targets = (t.detach().float() if t.is_floating_point() else t for t in inputs(400, 8, 9000))
    assert len(features) > max(loss_module._CHUNK_ROWS, loss_module._CHUNK_LOGITS // 9000)
    got = cross_entropy(features, weight, bias, targets, reduction="none")
    assert torch.allclose(got, F.cross_entropy(F.linear(features, weight, bias), targets, reduction="none"), atol=1e-5)


def test_our_chunks_keep_no_logits(monkeypatch):
    """What autograd keeps for the backward pass is inputs and losses, but nothing of (rows, V)."""
    monkeypatch.setattr(loss_module, "_Options", None)
    monkeypatch.setattr(loss_module, "_CHUNK_LOGITS", 1)
    features, weight, bias, targets = inputs(400, 8, 900)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        loss = cross_entropy(features, weight, bias, targets)
    assert max(kept, default=0) <= weight.numel()
    loss.backward()


@pytest.mark.usefixtures("_chunks")
def test_extreme_logits_stay_finite():
    features, weight, bias, targets = inputs(6, 3, 11)
    loss = cross_entropy(features * 1e4, weight, bias, targets)
    assert torch.allclose(loss, F.cross_entropy(F.linear(features * 1e4, weight, bias), targets))
    assert loss.isfinite()


def test_low_precision_features_are_scored_in_the_weights_precision():
    features, weight, bias, targets = inputs(6, 3, 11)
    low = features.detach().bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        loss = cross_entropy(low, weight.float(), bias.float(), targets)
    assert loss.dtype == torch.float32
    assert torch.allclose(loss, F.cross_entropy(F.linear(low.float(), weight.float(), bias.float()), targets))


@pytest.mark.parametrize("has_bias", [True, False])
def test_smoothing_is_that_of_torch_with_all_gradients(has_bias):
    features, weight, bias, targets = inputs(17, 4, 29)
    leaves = [features, weight, bias] if has_bias else [features, weight]
    bias = bias if has_bias else None
    plain = cross_entropy(features, weight, bias, targets, reduction="none")
    got = plain + 0.1 * smoothing_penalty(features, weight, bias, targets)
    logits = F.linear(features, weight, bias)
    expected = F.cross_entropy(logits, targets, reduction="none", label_smoothing=0.1)
    assert torch.allclose(got, expected, atol=1e-12)
    ours, theirs = (torch.autograd.grad(loss.square().sum(), leaves, retain_graph=True) for loss in (got, expected))
    assert all(torch.allclose(a, b, atol=1e-11) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_a_teacher_has_its_share_of_the_target(share):
    features, weight, bias, targets = inputs(17, 4, 29)
    theirs = [one.detach() for one in inputs(17, 3, 29)[:3]]
    loss = guided_cross_entropy(features, weight, bias, targets, Guide(*theirs, share))
    logits = F.linear(features, weight, bias)
    mixed = share * F.linear(*theirs).softmax(-1) + (1 - share) * F.one_hot(targets, 29)
    expected = F.cross_entropy(logits, mixed, reduction="sum")
    assert torch.allclose(loss.total, expected, atol=1e-12)
    assert torch.allclose(loss.nats, F.cross_entropy(logits, targets, reduction="sum"), atol=1e-12)
    assert not loss.nats.requires_grad
    leaves = [features, weight, bias]
    found, right = (torch.autograd.grad(0.7 * one, leaves) for one in (loss.total, expected))
    assert all(torch.allclose(ours, other, atol=1e-12) for ours, other in zip(found, right, strict=True))
