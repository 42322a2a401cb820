"""The area under the curve, counted by force; and clause boundaries that a made-up forget gate marks."""

import numpy as np
import pytest
import torch

import g2lstm
from g2lstm.look.boundaries import area_under_curve, boundary_auc
from g2lstm.text.grammar import grammar_pairs
from tests.look.toys import grammar_run


def test_area_is_the_share_of_pairs_in_order():
    random = np.random.default_rng(0)
    lower, higher = random.integers(0, 9, 30) / 9, random.integers(2, 12, 50) / 9
    by_force = [1.0 if a < b else 0.5 if a == b else 0.0 for a in lower for b in higher]
    assert area_under_curve(lower, higher) == pytest.approx(np.mean(by_force))
    assert area_under_curve(np.zeros(3), np.ones(4)) == 1
    assert area_under_curve(np.ones(3), np.zeros(4)) == 0
    assert area_under_curve(np.ones(3), np.ones(4)) == 0.5


@pytest.fixture(params=["word", "bpe"])
def trained(tmp_path, request):
    return g2lstm.load(grammar_run(tmp_path, kind=request.param))


def test_a_gate_that_closes_at_commas_finds_them(trained):
    """The first layer's forget gates are made to see nothing but whether the token is a comma."""
    assert trained.clauses("valid")
    first = trained.model.encoder[0]
    comma = trained.source.encode("ein , zwei")[
        trained.source.encode("ein , zwei").index(trained.source.encode(",")[0])
    ]
    with torch.no_grad():
        trained.model.source_embedding.weight[:, 0] = 0
        trained.model.source_embedding.weight[comma, 0] = 1
        first.weight_ih_l0[5:10] = 0
        first.weight_ih_l0[5:10, 0] = -3
        first.weight_hh_l0[5:10] = 0
    found = boundary_auc(trained, "valid")
    assert [(each["name"], each["direction"]) for each in found] == [
        ("encoder.0", "forward"),
        ("encoder.0", "backward"),
        ("encoder.1", "forward"),
    ]
    # Nearly every comma stands before a boundary; the others, before a clause that goes on, are taken for ones.
    assert 0.9 < found[0]["auc"]["comma"] < 1
    assert found[0]["auc"]["first_word"] < 0.5


def test_the_area_is_that_of_the_gates_of_each_sentence(trained):
    found = boundary_auc(trained, "valid", samples=40, eval_gate="hard")
    gates = {"first_word": ([], []), "comma": ([], [])}
    model = trained.model.eval()
    model.encoder[0].eval_gate = "hard"
    for pair in grammar_pairs("valid")[:40]:
        place = 0
        ids = [*trained.source.encode(pair.source), trained.source.eos_id]
        with torch.no_grad():
            x = model.source_embedding(torch.tensor(ids))
            forget = model.encoder[0](x, return_gates=True)[2].forget[1].mean(-1)
        for index, word in enumerate(pair.source.split()):
            gates["first_word"][index not in pair.boundaries].append(forget[place].item())
            gates["comma"][index + 1 not in pair.boundaries].append(forget[place].item())
            place += len(trained.source.encode(word))
    for kind, (lower, higher) in gates.items():
        expected = np.mean([1.0 if a < b else 0.5 if a == b else 0.0 for a in lower for b in higher])
        assert found[1]["auc"][kind] == pytest.approx(expected, abs=1e-3)


def test_where_no_clause_begins_there_is_nothing_to_tell(trained):
    without = next(n for n, pair in enumerate(grammar_pairs("valid")) if pair.boundaries)
    assert boundary_auc(trained, "valid", samples=without) == [] or without == 0


def test_other_data_has_no_known_boundaries(language, translation):
    assert not language.clauses("valid")
    assert not translation.clauses("valid")
