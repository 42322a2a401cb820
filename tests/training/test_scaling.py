"""The page on many devices: torchrun knows its options, and its estimate is what the script makes of the recipe."""

import importlib.util
import shlex
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from g2lstm.tasks.recipes import MT, load_recipe

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/scaling.md").read_text()


@pytest.fixture
def scaling():
    spec = importlib.util.spec_from_file_location("scaling", ROOT / "benchmarks/scaling.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_torchrun_knows_the_options():
    commands = [line for line in PAGE.replace("\\\n", " ").splitlines() if line.startswith("torchrun ")]
    found = [get_args_parser().parse_args(shlex.split(command)[1:]) for command in commands]
    assert [(one.nnodes, one.nproc_per_node, one.max_restarts) for one in found] == [("1:1", "8", 3), ("2", "8", 3)]
    for one in found:
        assert (one.module, one.training_script, one.training_script_args[:2]) == (True, "g2lstm", ["train", "wmt14"])


def test_the_page_holds_what_the_script_prints(scaling, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["scaling.py"])
    scaling.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9
    assert [line for line in lines if line not in PAGE.splitlines()] == []


def test_products_are_those_of_the_fused_layers(scaling):
    """Written out: 4H rows, columns for the input and for the noise of i and f, in both directions in the first."""
    recipe = load_recipe("wmt14", ["model.hidden=8", "model.embedding=6"])
    model = MT.build(recipe, 40, 50)
    count = scaling.counts(model)
    assert count.weights == sum(parameter.numel() for parameter in model.parameters())
    assert (count.layers, count.recurrent) == (7, 256)
    source, target = 2 * 32 * (6 + 32) + 32 * (16 + 16) + 32 * (8 + 16) + 64, 32 * (6 + 16) + 2 * 32 * (16 + 16)
    assert (count.source, count.target) == (source, target + 6 * 16 + 50 * 6)


def test_more_pairs_keep_more(scaling):
    model = MT.build(load_recipe("wmt14", ["model.hidden=8", "model.embedding=6"]), 40, 50)
    few, more, most = (scaling.kept_bytes(model, pairs) for pairs in (4, 8, 12))
    assert 0 < few < more
    assert most - more == pytest.approx(more - few, rel=0.05)
