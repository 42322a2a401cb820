"""`compress`: a copy of any model that holds LSTMs, with encoded weights."""

import copy
import re
import warnings
from collections.abc import Mapping
from typing import NamedTuple

from torch import nn

from g2lstm.compression.encodings import Encoding
from g2lstm.compression.modules import CompressedEmbedding, CompressedLinear, CompressedLSTM, EncodedMatrix
from g2lstm.compression.spec import GROUPS, Spec, encode
from g2lstm.compression.targets import Targets, find_targets
from g2lstm.errors import G2Error
from g2lstm.nn.convert import Model, replace_all
from g2lstm.nn.lstm import GatedLSTM


def compress(model: Model, spec: str | Spec) -> Model:
    """Returns a copy of a model with compressed weights, in evaluation mode; the model itself stays as it is.

    Every `G2LSTM` and `torch.nn.LSTM` becomes a `CompressedLSTM`, with W_x and W_h of each gate compressed separately.
    Embeddings, and a softmax with weights of its own, are compressed if the spec names them; tied weights stay tied.
    `compression.targets.find_targets` says which linear layers count as a softmax. Everything else is kept. So are
    layers that may compute something else, with a warning: subclasses, layers under a parametrisation or a hook, and
    those whose weights other modules use too.

    Args:
        model: any module that holds an LSTM, on any device.
        spec: such as "gates=round:0.2,clip:0.4; cell=int8", or the name of a preset. Groups that the model does not
            have are ignored.

    Examples:
        >>> small = g2lstm.compress(model, "gates=round:0.2,clip:0.4; cell=int8; embedding=int8")
    """
    if not isinstance(model, nn.Module):
        raise G2Error(f"compress takes a torch.nn.Module, got {type(model).__name__}; for a run, pass load(run).model")
    wanted = spec if isinstance(spec, Spec) else Spec.parse(spec)
    _refuse_compressed(model)
    if not any(isinstance(module, nn.LSTM | GatedLSTM) for module in model.modules()):
        raise G2Error(
            f"found no G2LSTM or torch.nn.LSTM inside {type(model).__name__}, so there is nothing to compress by gates"
        )
    found, groups = find_targets(model), {group for group in GROUPS if getattr(wanted, group)}
    for skipped in found.skipped:
        if groups & set(skipped.groups):
            name = skipped.name or "the model itself"
            warnings.warn(f"compress leaves {name} alone: {skipped.reason}", stacklevel=2)
    encodings = _encode(found, wanted)
    if not encodings:
        present = sorted({target.group for target in found.matrices.values()}, key=GROUPS.index)
        raise G2Error(
            f"{str(wanted)!r} would compress nothing of {type(model).__name__}; "
            f"the groups that it has: {', '.join(present) or 'none'}"
        )
    # The copy shares these parameters with the model until `install_` replaces them, so that none is copied in vain.
    replaced = {id(p): p for p in (found.matrices[name].parameter for name in encodings)}
    return install_(copy.deepcopy(model, replaced), encodings).eval()


def install_(model: Model, encodings: Mapping[str, Encoding]) -> Model:
    """Puts encoded matrices in the place of parameters, in place.

    Args:
        model: its parameters may be on the meta device; those that stay must then be loaded afterwards.
        encodings: named as by `encoded_matrices`. An LSTM needs all of its own, or none.

    Returns:
        The model; if it is an LSTM itself, the new layer.
    """
    _refuse_compressed(model)
    found = find_targets(model)
    matrices: dict[str, EncodedMatrix] = {}
    for name, encoding in encodings.items():
        if name not in found.matrices:
            raise G2Error(f"{type(model).__name__} has no matrix {name!r} to compress; it belongs to another model")
        target = found.matrices[name]
        expected = tuple(target.values.shape)
        if encoding.shape != expected:
            raise G2Error(f"the matrix {name!r} must have the shape {expected}, got {encoding.shape}")
        matrices[name] = EncodedMatrix(encoding, target.parameter)
    made: dict[nn.Module, nn.Module] = {}
    for layer, names in found.lstms.items():
        missing = [name for name in names.values() if name not in matrices]
        if len(missing) < len(names):
            if missing:
                raise G2Error(f"the matrix {missing[0]!r} is missing; an LSTM needs all of its matrices, or none")
            made[layer] = CompressedLSTM(layer, {key: matrices[name] for key, name in names.items()})
    softmaxes = []
    for name in matrices:
        for use in found.matrices[name].uses:
            if isinstance(use.module, nn.Embedding):
                made[use.module] = CompressedEmbedding(use.module, matrices[name])
            elif isinstance(use.module, nn.Linear):
                made[use.module] = CompressedLinear(use.module, matrices[name])
            else:
                softmaxes.append((use, matrices[name]))
    for use, softmax in softmaxes:
        delattr(use.module, use.attribute)  # a module can't take the name of a parameter
        setattr(use.module, use.attribute, softmax.train(use.module.training))
    return replace_all(model, made)


def encoded_matrices(model: nn.Module) -> dict[str, Encoding]:
    """Every compressed matrix of a model, by the name of its parameter and its gate: "layers.0.weight_ih_l0.i".

    A matrix that several modules share appears once.
    """
    found = {name: module for name, module in model.named_modules() if isinstance(module, EncodedMatrix)}
    return {re.sub(r"\bencoded$", "weight", name): module.encoding for name, module in found.items()}


class GroupSize(NamedTuple):
    """The size of all matrices of one group."""

    weights: int
    before: int  # bytes
    after: int

    @property
    def bits_per_weight(self) -> float:
        """After compression."""
        return 8 * self.after / self.weights


def group_sizes(model: nn.Module, compressed: nn.Module) -> dict[str, GroupSize]:
    """The sizes of each group that a model has, in the order of `GROUPS`.

    Args:
        model: before compression.
        compressed: what `compress` made of it.
    """
    targets, encodings = find_targets(model).matrices, encoded_matrices(compressed)
    sizes = {}
    for group in GROUPS:
        own = {name: target.values for name, target in targets.items() if target.group == group}
        if own:
            sizes[group] = GroupSize(
                sum(values.numel() for values in own.values()),
                sum(values.nbytes for values in own.values()),
                sum(encodings[n].stored_bytes if n in encodings else values.nbytes for n, values in own.items()),
            )
    return sizes


def _encode(found: Targets, spec: Spec) -> dict[str, Encoding]:
    """The matrices of the groups that the spec names, and all others of LSTMs that have one of them."""
    wanted = {name for name, target in found.matrices.items() if getattr(spec, target.group)}
    for names in found.lstms.values():
        if wanted & set(names.values()):
            wanted |= set(names.values())
    encodings = {}
    for name, target in found.matrices.items():
        if name in wanted:
            try:
                encodings[name] = encode(target.values, getattr(spec, target.group))
            except G2Error as error:
                raise G2Error(f"can't compress {name}: {error}") from None
    return encodings


def _refuse_compressed(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, CompressedLSTM | CompressedEmbedding | CompressedLinear | EncodedMatrix):
            raise G2Error(
                f"{name or 'the model itself'} is compressed already; compress the model that it was made from"
            )
