"""The units that switch with something: found on half of the columns, measured on the others, with examples."""

import numpy as np
import pytest
import torch

from g2lstm.look import record_split
from g2lstm.look.switches import Examples, Features, Switches, Timelines
from g2lstm.runs.records import Example
from g2lstm.tasks.reading import Place

PLACE = Place("layers.0", "forward", "layer 1")
UNITS = 6


@pytest.fixture
def text(language):
    """Random tokens (T, B) of the toy's vocabulary, and what is a comma."""
    tokens = torch.randint(len(language.tokenizer), (200, 6), generator=torch.Generator().manual_seed(0))
    return tokens, tokens == language.tokenizer.id_of(",")


def gates(comma):
    """Unit 0 is open at commas but for one in ten tokens, unit 1 is closed there; the rest are random or constant."""
    generator = torch.Generator().manual_seed(1)
    values = torch.rand(*comma.shape, UNITS, generator=generator)
    wrong = torch.rand(comma.shape, generator=generator) < 0.1
    values[..., 0] = (comma ^ wrong).float()
    values[..., 1] = 0.9 - 0.6 * comma.float()
    values[..., 2], values[..., 3] = 0.0, 1.0
    return values


def test_units_are_explained_and_measured_on_the_other_half(language, text):
    tokens, comma = text
    values = gates(comma)
    switches = Switches(language, is_continued=True)
    for part in (slice(0, 90), slice(90, 200)):
        switches.read({"text": tokens[part]})
        switches.add(PLACE, "forget", values[part], None)
    first, second, *others = switches.best()
    assert (first.unit, first.feature, first.gate, first.title) == (1, "a comma", "forget", "layer 1")
    assert (first.phi, first.open_with, first.open_without) == pytest.approx((-1, 0, 1))
    assert (second.unit, second.feature) == (0, "a comma")
    held_out, true = values[:, 1::2, 0].flatten().numpy(), comma[:, 1::2].flatten().numpy()
    assert second.phi == pytest.approx(np.corrcoef(held_out, true)[0, 1])
    assert second.open_with == pytest.approx(held_out[true].mean())
    assert second.open_without == pytest.approx(held_out[~true].mean())
    chosen = np.corrcoef(values[:, ::2, 0].flatten(), comma[:, ::2].flatten())[0, 1]
    assert second.phi_chosen == pytest.approx(chosen)
    assert {one.unit for one in others} == {4, 5}  # those that never switch are left out
    for one in others:  # the best of many features looks better than it is
        assert abs(one.phi) < 0.15
        assert abs(one.phi) < abs(one.phi_chosen)


def test_padding_is_not_counted(language, text):
    tokens, comma = text
    values, is_token = gates(comma), torch.ones_like(comma)
    is_token[150:, 3:] = False
    values[150:, 3:] = torch.nan
    once, padded = Switches(language, is_continued=False), Switches(language, is_continued=False)
    for switches, part in ((once, slice(0, 150)), (padded, slice(0, 200))):
        switches.read({"text": tokens[part]})
    once.add(PLACE, "input", values[:150], None)
    padded.add(PLACE, "input", values, is_token)
    rest = Switches(language, is_continued=True)
    rest.read({"text": tokens[:150]})
    rest.read({"text": tokens[150:, :3]})
    rest.add(PLACE, "input", values[150:, :3], None)
    np.testing.assert_array_equal(
        padded._counts[PLACE, "input"], once._counts[PLACE, "input"] + rest._counts[PLACE, "input"]
    )


def test_no_feature_fills_the_list(language, text):
    tokens, comma = text
    switches = Switches(language, is_continued=True)
    switches.read({"text": tokens})
    switches.add(PLACE, "input", comma.float().unsqueeze(-1).expand(-1, -1, 50), None)
    assert [one.feature for one in switches.best()] == ["a comma"] * 2


def test_examples_show_both_sides_of_a_switch(language, text):
    tokens, comma = text
    switches = Switches(language, is_continued=True)
    switches.read({"text": tokens})
    switches.add(PLACE, "forget", gates(comma), None)
    units = switches.best()
    examples = Examples(language, units)
    examples.read({"text": tokens})
    examples.add(PLACE, "forget", gates(comma), None)
    examples.add(PLACE, "input", 1 - gates(comma), None)
    for one in examples.explained():
        assert len(one.examples) == 2
        for example in one.examples:
            assert {True, False} == set(example.open)
            assert len(example.tokens) == len(example.open) <= 12
    closed_at_commas = examples.explained()[0].examples[0]
    assert [token == "," for token in closed_at_commas.tokens] == [not is_open for is_open in closed_at_commas.open]
    assert not examples.is_enough
    examples.read({"text": tokens.repeat(4, 1)})
    assert examples.is_enough


def test_marks():
    example = Example(tokens=["a", "b", "c", "d"], open=[False, True, True, False])
    assert example.marked("«", "»") == "a «b c» d"
    assert example.marked("<b>", "</b>", str.upper) == "A <b>B C</b> D"


def test_timelines_of_a_binary_gate():
    values = np.zeros((10, 6), np.float32)
    values[::2, [0, 4]] = 1  # alike, and the opposite of the next two
    values[1::2, [2, 5]] = 1
    values[:, 3] = 1
    found = Timelines.of(values)
    assert {frozenset(found.units[:2]), frozenset(found.units[2:])} == {frozenset({0, 4}), frozenset({2, 5})}
    np.testing.assert_array_equal(found.is_open, values[:, found.units].T == 1)
    assert (found.closed, found.open) == (1, 1)
    assert len(Timelines.of(values, most=2).units) == 2
    assert Timelines.of(np.zeros((1, 3), np.float32)).units == []
    assert Timelines.of(values + 0.1) is None


@pytest.mark.parametrize("name", ["language", "translation"])
def test_models_of_both_tasks(request, name):
    trained = request.getfixturevalue(name)
    recording = record_split(trained, "train", explain=True)
    each = zip(trained.sides, trained.tokenizers.values(), strict=True)
    names = {side: Features(tokenizer).names for side, tokenizer in each}
    places = {(place.name, place.direction): place for place in recording.statistics}
    assert 1 <= len(recording.explained) <= 12
    assert any(one.examples for one in recording.explained)
    for one in recording.explained:
        assert one.gate in ("input", "forget")
        assert one.feature in names[places[one.name, one.direction].side]
    assert record_split(trained, "train").explained == []
