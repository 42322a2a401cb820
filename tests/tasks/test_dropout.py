import torch

from g2lstm.tasks.model import locked_dropout, word_dropout


def test_locked_mask_is_one_for_all_steps():
    x = torch.randn(11, 5, 300, dtype=torch.float64)
    out = locked_dropout(x, 0.4)
    mask = out / x
    assert torch.allclose(mask, mask[:1].expand_as(mask))
    kept = mask[0] > 0.5
    assert torch.allclose(mask[0][kept], torch.tensor(1 / 0.6, dtype=torch.float64))
    assert not torch.equal(kept[0], kept[1])
    assert abs((~kept).float().mean().item() - 0.4) < 5 * (0.4 * 0.6 / kept.numel()) ** 0.5


def test_words_are_dropped_wherever_they_occur():
    vocabulary = 3000
    weight = torch.randn(vocabulary, 4, dtype=torch.float64, requires_grad=True)
    tokens = torch.arange(vocabulary).repeat(2, 1).t()  # every word twice
    out = word_dropout(weight[tokens], tokens, vocabulary, 0.1)
    assert torch.equal(out[:, 0], out[:, 1])
    scale = (out / weight[tokens]).detach()
    assert torch.allclose(scale, scale[..., :1].expand_as(scale))
    word_scale = scale[:, 0, 0]
    assert torch.allclose(word_scale[word_scale > 0], torch.tensor(1 / 0.9, dtype=torch.float64))
    assert abs((word_scale == 0).float().mean().item() - 0.1) < 5 * (0.1 * 0.9 / vocabulary) ** 0.5
    out.sum().backward()
    assert torch.allclose(weight.grad, 2 * word_scale.unsqueeze(1).expand_as(weight))


def test_zero_probability_is_the_identity():
    x = torch.randn(3, 2, 4)
    assert locked_dropout(x, 0.0) is x
    assert word_dropout(x, torch.zeros(3, 2, dtype=torch.int64), 5, 0.0) is x
