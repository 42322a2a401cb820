"""`save` and `load_into`: a compressed model in one safetensors file, and back in a model of the same architecture."""

import json
from pathlib import Path
from typing import Any

import safetensors
from torch import Tensor, nn

from g2lstm.compression import storage
from g2lstm.compression.encodings.base import brief
from g2lstm.compression.model import copied, encoded_matrices, install_, refuse_scripted
from g2lstm.compression.modules import EncodedMatrix
from g2lstm.compression.spec import Spec
from g2lstm.compression.structure import structure_of
from g2lstm.errors import G2Error
from g2lstm.files import write_atomically
from g2lstm.nn.checks import check_module
from g2lstm.nn.convert import Model


def save(model: nn.Module, path: str | Path) -> None:
    """Writes a compressed model to a safetensors file, packed: the file is as small as the encodings are.

    `load_into` puts it into a model again. If the model is a plain chain of layers, the file also says how they follow
    each other, so that `g2lstm.runtime.load` can step it without torch.

    Args:
        model: from `compress`.
        path: the file; one that exists is replaced only when the new one is complete.
    """
    content = content_of(model)
    with write_atomically(Path(path)) as file:
        file.write(content)


def content_of(model: nn.Module) -> bytes:
    """What `save` writes."""
    check_module(model, "save")
    if not (matrices := encoded_matrices(model)):
        raise G2Error(
            f"{type(model).__name__} is not compressed; pass the result of g2lstm.compress, or save a plain model with "
            "safetensors.torch.save_model"
        )
    others = _plain_tensors(model)
    if broken := [name for name, tensor in others.items() if not tensor.isfinite().all()]:
        raise G2Error(f"{broken[0]} holds NaN or infinity, so the model can't be saved; replace those values first")
    return storage.save(matrices, others, Spec(), {storage.STRUCTURE: json.dumps(structure_of(model))})


def load_into(model: Model, path: str | Path) -> Model:
    """Gives a model the compressed weights of a file, in place; a file that does not fit changes nothing.

    Args:
        model: a model of the same architecture, as it was before `compress`; its weights are replaced.
        path: a file from `save`.

    Returns:
        The model in evaluation mode; if it is a recurrent layer itself, the new one.

    Examples:
        >>> g2lstm.save(small, "small.safetensors")
        >>> restored = g2lstm.load_into(MyModel(), "small.safetensors")
    """
    check_module(model, "load_into")
    refuse_scripted(model)
    if any(one.is_meta for one in (*model.parameters(), *model.buffers())):
        raise G2Error(
            f"{type(model).__name__} is on the meta device, where weights have no values; build it on the CPU"
        )
    stored = storage.load(Path(path))
    skeleton = install_(_without_weights(model), stored.matrices)  # the model itself must not be half replaced
    expected = {name: tuple(tensor.shape) for name, tensor in _plain_tensors(skeleton).items()}
    found = {name: tuple(tensor.shape) for name, tensor in stored.others.items()}
    if wrong := sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)):
        got, wanted = (shapes.get(wrong[0], "nothing") for shapes in (found, expected))
        raise G2Error(f"{path} does not fit {type(model).__name__}: {brief(wrong[0])} is {got}, expected {wanted}")
    made = install_(model, stored.matrices)
    made.load_state_dict(made.state_dict() | stored.others)
    return made.eval()


class HubMixin:
    """Lets `save_pretrained`, `push_to_hub` and `from_pretrained` of huggingface_hub take compressed models too.

    Put it before huggingface_hub's mixin, which does the rest. A folder then holds model.safetensors as `save` writes
    it, and `from_pretrained` returns the compressed model. Other models are saved and loaded as usual. A
    `PreTrainedModel` of transformers reads its files in another way: use `save` and `load_into` with it.

    Examples:
        >>> class Tagger(nn.Module, g2lstm.HubMixin, huggingface_hub.PyTorchModelHubMixin): ...
        >>> g2lstm.compress(Tagger(hidden=64), "small").save_pretrained("tagger")
        >>> small = Tagger.from_pretrained("tagger")
    """

    def _save_pretrained(self, save_directory: Path) -> None:
        assert isinstance(self, nn.Module)
        if encoded_matrices(self):
            save(self, save_directory / "model.safetensors")
        else:
            super()._save_pretrained(save_directory)  # type: ignore[misc]

    @classmethod
    def _load_as_safetensor(cls, model: Any, model_file: str, map_location: str, strict: bool) -> Any:
        with safetensors.safe_open(model_file, framework="pt") as file:
            is_packed = storage.HEADER in (file.metadata() or {})
        if is_packed:
            return load_into(model, model_file).to(map_location)
        loaded = super()._load_as_safetensor(model, model_file, map_location, strict)  # type: ignore[misc]
        return loaded.eval()  # before version 1, huggingface_hub forgets to

    def generate_model_card(self, *args: Any, **options: Any) -> Any:
        """The card of huggingface_hub, which also says how small the weights are."""
        assert isinstance(self, nn.Module)
        card = super().generate_model_card(*args, **options)  # type: ignore[misc]
        if matrices := encoded_matrices(self):
            weights = sum(one.shape[0] * one.shape[1] for one in matrices.values())
            bits = 8 * sum(one.stored_bytes for one in matrices.values()) / weights
            card.data.tags = sorted({*(card.data.tags or []), "g2lstm", "compressed"})
            card.text += (
                f"\ng2lstm packed its {weights:,} matrix weights into {bits:.2f} bits per weight. To load them, its "
                "class needs `g2lstm.HubMixin` before `PyTorchModelHubMixin`.\n"
            )
        return card


def _plain_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and persistent buffers that are not encoded; tied ones once."""
    kept = model.state_dict().keys()
    encoded = {
        id(tensor) for module in model.modules() if isinstance(module, EncodedMatrix) for tensor in module.buffers()
    }
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor for name, tensor in named if name in kept and id(tensor) not in encoded}


def _without_weights(model: Model) -> Model:
    """A copy on the meta device, which takes no memory."""
    memo: dict[int, object] = {
        id(p): nn.Parameter(p.detach().to("meta"), requires_grad=p.requires_grad) for p in model.parameters()
    }
    memo |= {id(buffer): buffer.detach().to("meta") for buffer in model.buffers()}
    return copied(model, memo)
