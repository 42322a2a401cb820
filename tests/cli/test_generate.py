"""`g2lstm generate` in process: what it says of words that the model does not know."""

import pytest

import g2lstm
from g2lstm.cli.generate import generate


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text("a b c d <unk> f g\n" * 20)
    model, train = {"embedding": 4, "hidden": 4, "layers": 1}, {"epochs": 1, "batch_size": 2, "bptt": 5}
    out = folder / "run"
    g2lstm.train({"task": "lm", "data": {"path": str(folder)}, "model": model, "train": train}, out)
    return out


@pytest.mark.parametrize(
    ("prompt", "warning"),
    [
        ("a zebra b [bold]yak zebra", "g2lstm: not in the vocabulary, so read as <unk>: zebra, [bold]yak\n"),
        ("a b <unk>", ""),
        ("", ""),
    ],
)
def test_unknown_words_of_the_prompt_are_named(run, capsys, prompt, warning):
    generate(run, prompt=prompt, tokens=3, seed=1)
    printed = capsys.readouterr()
    assert printed.err == warning
    assert printed.out.strip()
