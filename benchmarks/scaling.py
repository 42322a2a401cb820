"""Estimates what training `wmt14` takes on GPUs: `python benchmarks/scaling.py` makes the tables of docs/scaling.md.

Counted from the model itself: weights, operations, sequential steps, and what one batch keeps for the backward pass.
Assumed: how fast a GPU and its links are, and that sentences are as long as in a sample.
"""

import argparse
from typing import Any, NamedTuple

import torch

from g2lstm.nn.lstm import G2LSTM
from g2lstm.tasks.mt.model import TranslationModel
from g2lstm.tasks.mt.recipe import MtRecipe
from g2lstm.tasks.recipes import MT, load_recipe

PAIRS = 4_500_000 * 158_876 // 160_000  # short enough: the share of 160,000 of them
SOURCE, TARGET = 25.1, 26.7  # tokens of a sentence with <eos>, in the same sample with its own 30,000 sub-words a side
PADDED = 28  # tokens of the longest of a batch, on either side
NUMBER = 4  # bytes: all is float32
OPERATIONS = 5e12  # a second, that a GPU sustains in products
MEMORY = 900e9  # bytes a second from a GPU's memory
NVLINK, NETWORK = 100e9, 12.5e9  # bytes a second between GPUs of a node, and between nodes (100 Gbit/s)


class Counts(NamedTuple):
    """Of a model."""

    weights: int
    source: int  # weights that each source token is multiplied with, but for the recurrent ones
    target: int
    layers: int  # that a batch passes one after the other; a direction counts as a layer
    recurrent: int  # weights that each step of a layer reads


def counts(model: TranslationModel) -> Counts:
    """Counts a model's weights, and the noise's input columns, which torch's fused LSTM multiplies like weights."""
    hidden = model.attention.key.out_features

    def inputs(layer: Any) -> int:
        assert isinstance(layer, G2LSTM)
        directions = 2 if layer.bidirectional else 1
        return directions * 4 * hidden * (layer.input_size + directions * 2 * hidden)

    return Counts(
        weights=sum(parameter.numel() for parameter in model.parameters()),
        source=sum(map(inputs, model.encoder)) + model.attention.key.weight.numel(),
        target=sum(map(inputs, model.decoder)) + model.output.weight.numel() + model.output_weight.numel(),
        layers=len(model.encoder) + 1 + len(model.decoder),
        recurrent=4 * hidden * hidden,
    )


def state_bytes(count: Counts) -> float:
    """Weights, gradients, AdaDelta's two averages, and the gradients once more in the buffers that exchange them."""
    return 5 * NUMBER * count.weights


def update_seconds(count: Counts, pairs: int, gpus: int, link: float) -> tuple[float, float, float]:
    """Of one update: products, recurrence, exchange of gradients; none hidden behind another.

    A product costs two operations a weight forward and four backward. A step of the recurrence waits until the weights
    have come from memory, forward once and backward once. In a ring, each GPU sends all gradients about twice.
    """
    products = 6 * pairs / gpus * (SOURCE * count.source + TARGET * count.target) / OPERATIONS
    recurrence = 2 * count.layers * PADDED * NUMBER * count.recurrent / MEMORY
    return products, recurrence, 2 * (gpus - 1) / gpus * NUMBER * count.weights / link


def kept_bytes(model: TranslationModel, pairs: int) -> int:
    """What a forward pass through torch's fused LSTM keeps for the backward pass, besides the parameters."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    for layer in (*model.encoder, *model.decoder):
        layer.backend = "stock"  # as on a GPU
    tokens = torch.zeros(PADDED, pairs, dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = model.train()(tokens, torch.full((pairs,), PADDED), tokens)  # keeps all of it alive until it is counted
    assert out.requires_grad
    return sum(kept.values())


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="also what a batch keeps; needs some gigabytes")
    recipe = load_recipe("wmt14")
    assert isinstance(recipe, MtRecipe)
    assert recipe.data.vocabulary is not None
    assert recipe.train.epochs is not None
    sizes = (recipe.data.vocabulary, recipe.data.vocabulary)
    if parser.parse_args().measure:
        model = MT.build(recipe, *sizes)
        print("| pairs per GPU | kept for the backward pass, GB |\n|---|---|")
        for pairs in (4, 8, 32):
            print(f"| {pairs} | {kept_bytes(model, pairs) / 1e9:.2f} |")
    with torch.device("meta"):
        count = counts(MT.build(recipe, *sizes))
    print(f"{count.weights / 1e6:.1f}M weights, {state_bytes(count) / 1e9:.1f} GB with gradients and averages")
    print(f"a source token: {count.source / 1e6:.1f}M products, a target token: {count.target / 1e6:.1f}M")
    names = ("GPUs", "link, GB/s", "pairs per batch", "products", "recurrence", "exchange", "ms per update")
    print(f"| {' | '.join((*names, 'hours per epoch', f'hours for {recipe.train.epochs} epochs'))} |\n|{'---|' * 9}")
    for gpus, link, pairs in (
        (1, NVLINK, 64),
        (8, NVLINK, 64),
        (8, NVLINK, 256),
        (16, NETWORK, 64),
        (16, NETWORK, 512),
    ):
        parts = update_seconds(count, pairs, gpus, link)
        epoch = sum(parts) * PAIRS / pairs / 3600
        shown = [*(f"{1e3 * part:.0f}" for part in parts), f"{1e3 * sum(parts):.0f}"]
        speed = "-" if gpus == 1 else f"{link / 1e9:g}"
        print(f"| {gpus} | {speed} | {pairs} | {' | '.join(shown)} | {epoch:.1f} | {epoch * recipe.train.epochs:.0f} |")


if __name__ == "__main__":
    main()
