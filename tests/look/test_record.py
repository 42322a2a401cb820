"""Gates over a split: those of the same batches, counted directly; padding left out; the mode said."""

import pytest
import torch

from g2lstm import G2Error, record_gates
from g2lstm.look import GateHistogram, record_split
from g2lstm.look.examine import examine, score_by_gate
from g2lstm.tasks.lm.evaluate import perplexity


def direct(tensors):
    histogram = GateHistogram(tensors[0].size(-1))
    for tensor in tensors:
        histogram.add(tensor)
    return histogram.counts.tolist()


def all_counts(recording, gate):
    return sum(histograms[gate].counts for histograms in recording.statistics.values())


def test_a_language_model_reads_the_whole_text(language):
    recording = record_split(language, "valid")
    model, stream = language.model, language.split("valid")
    rows = (len(stream) - 1) // 3
    tokens = torch.from_numpy(stream.read(0, 3 * rows)).view(3, rows).t()
    with record_gates(model) as record, torch.no_grad():
        model(tokens)
    assert recording.mode == "evaluation, soft gates"
    assert recording.data["tokens"] == {"text": 3 * rows}
    assert recording.data["windows"] == 3 * -(-rows // 5)
    for place, histograms in recording.statistics.items():
        for gate, histogram in histograms.items():
            assert histogram.counts.tolist() == direct(getattr(record[place.name][0], gate))


def test_some_windows_are_the_first_of_each_column(language):
    recording = record_split(language, "valid", samples=7)
    model, stream = language.model, language.split("valid")
    rows = (len(stream) - 1) // 3
    tokens = torch.from_numpy(stream.read(0, 3 * rows)).view(3, rows).t()
    with record_gates(model) as record, torch.no_grad():
        model(tokens[:15])
    assert recording.data["windows"] == 7
    assert recording.data["tokens"] == {"text": 35}
    for place, histograms in recording.statistics.items():
        forget = record[place.name][0].forget[0]
        assert histograms["forget"].counts.tolist() == direct([forget[:10], forget[10:, 0]])


def test_pairs_are_read_without_their_padding(translation):
    recording = record_split(translation, "train")
    sources, targets = translation.split("train")
    encode = [translation.source.encode_lines(sources), translation.target.encode_lines(targets)]
    lengths = [sum(len(ids) + 1 for ids in side) for side in encode]
    assert recording.data["pairs"] == len(sources)
    assert recording.data["tokens"] == {"source": lengths[0], "target": lengths[1]}
    calls = {name: [] for name in ("encoder.0", "encoder.1", "decoder.0", "decoder.1")}
    for source, target in zip(*encode, strict=True):  # one by one there is no padding
        ids = torch.tensor([*source, translation.source.eos_id]).unsqueeze(1)
        inputs = torch.tensor([translation.target.eos_id, *target]).unsqueeze(1)
        with record_gates(translation.model) as record, torch.no_grad():
            translation.model(ids, torch.tensor([len(ids)]), inputs)
        for name, each in record.items():
            calls[name] += each
    for place, histograms in recording.statistics.items():
        index = 1 if place.direction == "backward" else 0
        for gate, histogram in histograms.items():
            expected = torch.tensor(direct([getattr(call, gate)[index] for call in calls[place.name]]))
            moved = (histogram.counts - expected).abs().sum().item()  # by rounding, over the edge of a bin
            assert moved <= 1e-3 * histogram.values
            assert histogram.values == expected.sum().item()


@pytest.mark.parametrize("samples", [1, 7])
def test_some_pairs(translation, samples):
    recording = record_split(translation, "train", samples=samples)
    again, other = (record_split(translation, "train", samples=samples, seed=seed) for seed in (0, 3))
    assert recording.data["pairs"] == samples
    assert recording.data == again.data
    assert all_counts(recording, "input").tolist() == all_counts(again, "input").tolist()
    assert all_counts(recording, "input").tolist() != all_counts(other, "input").tolist()


def test_training_mode_is_said_and_seeded(language, translation):
    for trained in (language, translation):
        plain, noisy, again = (record_split(trained, "valid", training=training) for training in (False, True, True))
        assert noisy.mode.startswith("training, noise in the gates")
        assert all_counts(noisy, "forget").tolist() == all_counts(again, "forget").tolist()
        assert all_counts(noisy, "forget").tolist() != all_counts(plain, "forget").tolist()
        assert not trained.model.training


def test_hard_gates_are_binary(language):
    recording = record_split(language, "valid", eval_gate="hard")
    counts = all_counts(recording, "forget")
    assert counts[1:-1].sum() == 0
    assert recording.mode == "evaluation, hard gates"
    assert all_counts(recording, "output")[1:-1].sum() > 0


def test_progress_and_mistakes(language, translation):
    for trained, total in ((language, 7), (translation, 7)):
        seen = []
        record_split(trained, "train", samples=7, progress=lambda *done, seen=seen: seen.append(done))
        assert seen[-1] == (total, total)
        with pytest.raises(G2Error, match="there is no split 'nothing'"):
            record_split(trained, "nothing")
        with pytest.raises(G2Error, match="samples must be at least 1, got 0"):
            record_split(trained, samples=0)


def test_without_a_split_there_is_only_a_text(language):
    for options in ({}, {"text": "the cat", "hard_score": True}):
        with pytest.raises(G2Error, match="without a split there is nothing to score"):
            examine(language, "run", split=None, **options)


def test_scores_of_hard_and_soft_gates(language, translation, monkeypatch):
    scores = score_by_gate(language, "valid")
    assert scores["metric"] == "perplexity"
    for gate in ("soft", "hard"):
        stream = language.split("valid")
        tokens = torch.from_numpy(stream.read(0, len(stream)))
        assert scores[gate] == perplexity(language.model, tokens, eval_gate=gate).perplexity
    assert scores["soft"] != scores["hard"]
    assert score_by_gate(language, "valid", samples=2)["tokens"] == 10
    search, asked = translation.search, []
    monkeypatch.setattr(
        translation, "search", lambda lines, **how: asked.append(how["eval_gate"]) or search(lines, **how)
    )
    bleu = score_by_gate(translation, "valid", samples=3)
    assert asked == ["soft", "hard"]
    assert bleu["metric"] == "bleu"
    assert bleu["sentences"] == 3
    assert 0 <= bleu["hard"] <= 100
