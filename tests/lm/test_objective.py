import pytest
import torch
from torch.nn import functional as F

from g2lstm.errors import G2Error
from g2lstm.lm import objective
from g2lstm.lm.objective import activation_regulariser, cross_entropy, temporal_regulariser, training_loss


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
    monkeypatch.setattr(objective, "_CHUNK_ROWS", request.param)
    monkeypatch.setattr(objective, "_CHUNK_LOGITS", 1)


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
    assert len(features) > max(objective._CHUNK_ROWS, objective._CHUNK_LOGITS // 9000)
    got = cross_entropy(features, weight, bias, targets, reduction="none")
    assert torch.allclose(got, F.cross_entropy(F.linear(features, weight, bias), targets, reduction="none"), atol=1e-5)


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


def test_regularisers_by_hand():
    output = torch.tensor([[[1.0, 2.0]], [[3.0, 2.0]], [[3.0, -1.0]]])  # (3, 1, 2)
    assert activation_regulariser(output).item() == pytest.approx((1 + 4 + 9 + 4 + 9 + 1) / 6)
    assert temporal_regulariser(output).item() == pytest.approx((4 + 0 + 0 + 9) / 4)
    assert temporal_regulariser(output[:1]).item() == 0.0


def test_training_loss_by_hand():
    raw = torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([0.0, 2.0, 2.0], dtype=torch.float64)
    features = raw * mask
    _, weight, bias, _ = inputs(1, 3, 7)
    targets = torch.randint(7, (4, 2))
    loss = training_loss(features, raw, targets, weight, bias, alpha=2.0, beta=1.5)
    plain, squares, changes = 0.0, 0.0, 0.0
    for t in range(4):
        for b in range(2):
            logits = weight @ features[t, b] + bias
            plain = plain - torch.log(logits.exp()[targets[t, b]] / logits.exp().sum()) / 8
            squares = squares + (features[t, b] ** 2).sum() / 24
            if t:
                changes = changes + ((raw[t, b] - raw[t - 1, b]) ** 2).sum() / 18
    expected = plain + 2.0 * squares + 1.5 * changes
    assert torch.allclose(loss.total, expected, atol=1e-12)
    assert torch.allclose(loss.cross_entropy, plain.detach(), atol=1e-12)
    assert not loss.cross_entropy.requires_grad
    ours, theirs = (torch.autograd.grad(x, [raw, weight, bias], retain_graph=True) for x in (loss.total, expected))
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(ours, theirs, strict=True))


def test_regularisers_can_be_off_and_one_step_has_no_change():
    raw, (_, weight, bias, _) = torch.randn(1, 2, 3, dtype=torch.float64), inputs(1, 3, 7)
    targets = torch.randint(7, (1, 2))
    loss = training_loss(raw, raw, targets, weight, bias, alpha=0, beta=0)
    assert torch.equal(loss.total, loss.cross_entropy)
    assert training_loss(raw, raw, targets, weight, bias, alpha=0, beta=1).total == loss.total


def test_bad_arguments():
    features, weight, bias, targets = inputs(6, 3, 11)
    with pytest.raises(G2Error, match=r"features must be \(N, E\) and targets \(N,\), got \(2, 3, 3\) and \(6,\)"):
        cross_entropy(features.view(2, 3, 3), weight, bias, targets)
    with pytest.raises(G2Error, match="reduction must be 'mean', 'sum' or 'none', got 'max'"):
        cross_entropy(features, weight, bias, targets, reduction="max")
