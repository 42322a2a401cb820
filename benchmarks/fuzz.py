"""Coverage-guided fuzzing of everything that reads what a stranger may have written, with atheris.

Not part of the package or its tests: `pip install atheris`, then for example

    python benchmarks/fuzz.py recipe -max_total_time=600

What to fuzz: recipe, override, spec, tokenizer, weights or checkpoint; what follows goes to libFuzzer. Anything but
the one clear error ends it, with the input that did it in a file.
"""

import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["g2lstm", "tomllib"]):
    import torch

    from g2lstm import G2Error
    from g2lstm.compression import storage
    from g2lstm.compression.spec import Spec, encode
    from g2lstm.tasks.recipes import load_recipe, parse_recipe
    from g2lstm.text.tokenize import Tokenizer, train_bpe_tokenizer, train_word_tokenizer
    from g2lstm.training.checkpoint import load_checkpoint, write_state

FOLDER = Path(tempfile.mkdtemp())
RECIPE = {"task": "lm", "data": {"name": "embedded"}, "train": {"epochs": 1}}


def recipe(content: bytes) -> None:
    """A recipe's file."""
    load_recipe(_file("my.toml", content))


def override(content: bytes) -> None:
    """The KEY=VALUE of --set."""
    parse_recipe(RECIPE, [content.decode(errors="surrogateescape")])


def spec(content: bytes) -> None:
    """A compression spec."""
    assert Spec.parse(str(Spec.parse(content.decode(errors="surrogateescape"))))


def tokenizer(content: bytes) -> None:
    """A tokenizer's file, and a line through it."""
    loaded = Tokenizer.load(_file("tokenizer.json", content))
    loaded.decode(loaded.encode("the cat <unk> \N{GRINNING FACE}"))


def weights(content: bytes) -> None:
    """A file of compressed weights; its checksum is taken for right, or nothing but that would be tried."""
    for matrix in storage.load(_file("model.safetensors", content)).matrices.values():
        matrix.decode()


def checkpoint(content: bytes) -> None:
    """The JSON of a checkpoint."""
    load_checkpoint(_file("step-00000001.json", content))


TARGETS: dict[str, Callable[[bytes], None]] = {
    one.__name__: one for one in (recipe, override, spec, tokenizer, weights, checkpoint)
}


def seeds(name: str) -> list[bytes]:
    """Good inputs, to begin with."""
    if name == "recipe":
        return [file.read_bytes() for file in (files("g2lstm") / "recipes").iterdir()]
    if name == "tokenizer":
        lines = ["the cat sat on the mat", "a dog"]
        made = [train_word_tokenizer(lines), train_bpe_tokenizer(lines, vocabulary=266, prefix_space=True)]
        return [one.to_json().encode() for one in made]
    if name == "weights":
        parts = {steps: Spec.parse(f"gates={steps}").gates for steps in ("round:0.2", "int8", "int6", "svd:1,int4")}
        matrices = {steps: encode(torch.randn(3, 5), part) for steps, part in parts.items()}
        return [storage.save(matrices, {"bias": torch.zeros(2)}, Spec.parse("gates=int8"), {"task": "lm"})]
    if name == "checkpoint":
        write_state(FOLDER / "step-00000001.json", {"step": 1, "model": {"weight": torch.zeros(2)}})
        return [(FOLDER / "step-00000001.json").read_bytes()]
    return {"override": [b"model.hidden=3", b'data.path="x"'], "spec": [b"gates=round:0.2,clip:0.4; cell=int8"]}[name]


def main() -> None:
    """Fuzzes what the first argument names."""
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: python benchmarks/fuzz.py {'|'.join(TARGETS)} [options of libFuzzer]")
    name = sys.argv.pop(1)
    corpus = FOLDER / "corpus"
    corpus.mkdir()
    for number, content in enumerate(seeds(name)):
        (corpus / str(number)).write_bytes(content)
    storage._checksum = lambda tensors, header, metadata: header.get("sha256", "")

    def once(content: bytes) -> None:
        with suppress(G2Error):
            TARGETS[name](content)

    atheris.Setup([*sys.argv, str(corpus)], once)
    atheris.Fuzz()


def _file(name: str, content: bytes) -> Path:
    path = FOLDER / name
    path.write_bytes(content)
    return path


if __name__ == "__main__":
    main()
