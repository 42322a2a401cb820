"""The models that the repository ships: small, described, without a path of the machine they came from, and at work."""

import json
import re
from pathlib import Path

import pytest

from g2lstm.runtime import load

ROOT = Path(__file__).parent.parent / "models"
NAMES = ("de-en", "wikitext-2")


def test_together_they_take_at_most_six_megabytes():
    assert {path.name for path in ROOT.iterdir()} == {*NAMES, "README.md"}
    made = {"export", "gates"}  # by a user's commands
    shipped = [path for path in ROOT.rglob("*") if path.is_file() and not made & {*path.parts}]
    assert sum(path.stat().st_size for path in shipped) <= 6e6


@pytest.mark.parametrize("name", NAMES)
def test_the_card_says_what_was_measured(name):
    card = (ROOT / "README.md").read_text().partition(f"## {name}\n")[2].partition("\n## ")[0]
    (score,) = (
        one for one in json.loads((ROOT / name / "result.json").read_text())["scores"] if one["split"] == "test"
    )
    assert f"`{score['signature']}`" in card.replace("\\|", "|")  # as a table writes it
    assert re.search(r"^\| licence \| CC BY.*; name ", card, re.MULTILINE)
    value = f"{score['bleu']:.2f} BLEU" if "bleu" in score else f"perplexity {score['perplexity']:.2f}"
    assert value in card
    file = json.loads((ROOT / name / "compression.json").read_text())["file"]
    assert f"{file['after']:,} bytes" in card
    assert f"1/{file['before'] / file['after']:.1f}" in card
    assert (ROOT / name / "model.safetensors").stat().st_size == file["after"]


@pytest.mark.parametrize("name", NAMES)
def test_recipes_name_no_folder_of_a_machine(name):
    assert not re.search(r'= "/', (ROOT / name / "recipe.toml").read_text())


def test_they_answer():
    translator = load(ROOT / NAMES[0])
    assert translator.translate("Warum bist du so müde?") == "Why are you so tired?"
    text = load(ROOT / NAMES[1]).generate("The city", tokens=20, seed=1)
    assert text.startswith("The city")
    assert len(text) > 30
