import pytest
import torch

from g2lstm.tasks.lm.task import activation_regulariser, temporal_regulariser, training_loss

LEAF = {"dtype": torch.float64, "requires_grad": True}


def test_regularisers_by_hand():
    output = torch.tensor([[[1.0, 2.0]], [[3.0, 2.0]], [[3.0, -1.0]]])  # (3, 1, 2)
    assert activation_regulariser(output).item() == pytest.approx((1 + 4 + 9 + 4 + 9 + 1) / 6)
    assert temporal_regulariser(output).item() == pytest.approx((4 + 0 + 0 + 9) / 4)
    assert temporal_regulariser(output[:1]).item() == 0.0


def test_training_loss_by_hand():
    raw = torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([0.0, 2.0, 2.0], dtype=torch.float64)
    features = raw * mask
    weight, bias = torch.randn(7, 3, **LEAF), torch.randn(7, **LEAF)
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
    raw, weight, bias = torch.randn(1, 2, 3, **LEAF), torch.randn(7, 3, **LEAF), torch.randn(7, **LEAF)
    targets = torch.randint(7, (1, 2))
    loss = training_loss(raw, raw, targets, weight, bias, alpha=0, beta=0)
    assert torch.equal(loss.total, loss.cross_entropy)
    assert training_loss(raw, raw, targets, weight, bias, alpha=0, beta=1).total == loss.total
