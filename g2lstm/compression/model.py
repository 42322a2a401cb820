"""`compress`: a copy of any model that holds recurrent layers, with encoded weights."""

import copy
import re
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from g2lstm.compression.encodings import Dense, Encoding
from g2lstm.compression.modules import (
    Compressed,
    CompressedAttention,
    CompressedConvolution,
    CompressedEmbedding,
    CompressedLinear,
    EncodedMatrix,
)
from g2lstm.compression.recurrent import CompressedRecurrent, compressed
from g2lstm.compression.spec import GROUPS, Given, Operations, Spec, encode
from g2lstm.compression.straight_through import Master, Part, Preparation, preparations, unprepare_
from g2lstm.compression.targets import CONVOLUTIONS, Targets, choose, find_targets, is_dense
from g2lstm.errors import G2Error
from g2lstm.nn.checks import check_module
from g2lstm.nn.convert import Model, replace_all
from g2lstm.nn.survey import called

_ERRORS = {True: 0.2, False: 0.5}  # beyond which `compress` warns, in recurrent layers of torch's own and elsewhere


def compress(
    model: Model,
    spec: "Given | None" = None,
    *,
    data: Any = None,
    metric: Callable[[nn.Module, Any], Any] | None = None,
    max_loss: float | None = None,
    budget: int | None = None,
) -> Model:
    """Returns a copy of a model with compressed weights, in evaluation mode; the model itself stays as it is.

    Every LSTM, GRU and cell, torch's or ours, gets encoded weights, with W_x and W_h of each gate compressed
    separately; embeddings, linear layers, attention, projections and convolutions too if the spec names them. Tied
    weights stay tied.
    `compression.targets.find_targets` says which linear layers count as a softmax. Everything else is kept. So are
    layers that may compute something else, with a warning: subclasses, layers under a parametrisation or a hook, and
    those whose weights other modules use too. Another warning names the matrices that lose much: those whose error
    |W - W'|, the root of the sum of squares, is more than half of |W|; or a fifth in recurrent layers of torch's own,
    whose gates have not learnt to tolerate it.

    Args:
        model: any module that holds a recurrent layer, on any device.
        spec: such as "gates=round:0.2,clip:0.4; cell=int8", "int8" for all weights, or the name of a preset; or a spec
            for each pattern of names of modules or parameters. `compression.spec` describes both. Groups that the model
            does not have are ignored. A model from `prepare_` is compressed as it was prepared, so it needs no spec.
        data: batches on which to search for a spec, instead of giving one; `search` explains this and what follows.
        metric: a function of a model and a batch; lower is better.
        max_loss: how much the metric may rise, as a share; without a metric, how far the outputs may deviate.
        budget: the most bytes that a file of `save` may have.

    Examples:
        >>> small = g2lstm.compress(model, "gates=round:0.2,clip:0.4; cell=int8; embedding=int8")
        >>> small = g2lstm.compress(model, {"lstm": "small", "head": "int8", "lstm.weight_ih_l0": "keep"})
        >>> small = g2lstm.compress(model, data=batches, metric=loss_of_batch, max_loss=0.005)
    """
    check_module(model, "compress")
    if any(one is not None for one in (data, metric, max_loss, budget)):
        if spec is not None:
            raise G2Error(f"give either a spec, got {spec!r}, or data to search for one; not both")
        if data is None:
            raise G2Error("a search needs data: batches as the model's forward takes them")
        from g2lstm.compression.search import search  # which compresses, too

        spec = search(model, data, metric, max_loss=max_loss, budget=budget).spec
    if prepared := preparations(model):
        return _as_prepared(model, prepared[0], prepared[0].spec if spec is None else Spec.of(spec))
    found, chosen = plan(model, Spec.of(spec))  # type: ignore[arg-type]  # which refuses None
    encodings = _encode(found, chosen)
    if lossy := _lossy(found, encodings):
        warnings.warn(
            f"compression changes these matrices a lot: {', '.join(lossy)}; check the model's output, or give them a "
            "finer encoding such as int8",
            stacklevel=2,
        )
    # The copy shares these parameters with the model until `install_` replaces them, so that none is copied in vain.
    replaced = {id(p): p for p in (found.matrices[name].parameter for name in encodings)}
    return install_(copied(model, replaced), encodings).eval()


def _as_prepared(model: Model, prepared: Preparation, spec: Spec) -> Model:
    """The model with the encodings that its forward calls see now."""
    if prepared.model is not model:
        name = next((name for name, module in model.named_modules() if module is prepared.model), "")
        raise G2Error(f"what is prepared is only a part of this model, {name!r}; compress that part")
    if spec != prepared.spec:
        raise G2Error(
            f"this model is prepared for {str(prepared.spec)!r}, got {str(spec)!r}; compress it as it was prepared, or "
            "call g2lstm.unprepare_(model) first"
        )
    found = find_targets(model)
    seen = {name: prepared.encoding(one.parameter, one.rows) for name, one in found.matrices.items()}
    encodings = {name: one for name, one in seen.items() if one is not None}
    for name in found.together(encodings) - encodings.keys():
        encodings[name] = Dense.encode(found.matrices[name].values, {})
    return install_(unprepare_(copied(model, {})), encodings).eval()


def plan(model: nn.Module, spec: Spec) -> tuple[Targets, dict[str, Operations]]:
    """The matrices of a model, and the operations for those that a spec compresses; raises if there are none.

    Warns about what the spec asks for in vain.
    """
    refuse_scripted(model)
    _refuse_compressed(model)
    if not any(map(is_dense, model.modules())):
        raise G2Error(
            f"found no recurrent layer (LSTM, GRU or a cell of them) inside {type(model).__name__}; "
            "compress needs a model that has one"
        )
    found = find_targets(model)
    chosen, in_vain = choose(model, found, spec)
    for one in in_vain:
        warnings.warn(f"compress leaves {called(one.name)} alone: {one.reason}", stacklevel=3)
    if not any(chosen.values()):
        present = sorted({target.group for target in found.matrices.values()}, key=GROUPS.index)
        raise G2Error(
            f"{str(spec)!r} would compress nothing of {type(model).__name__}; "
            f"the groups that it has: {', '.join(present) or 'none'}"
        )
    return found, {name: operations for name, operations in chosen.items() if operations}


def install_(model: Model, encodings: Mapping[str, Encoding]) -> Model:
    """Puts encoded matrices in the place of parameters, in place.

    Args:
        model: its parameters may be on the meta device; those that stay must then be loaded afterwards.
        encodings: named as by `encoded_matrices`. A recurrent layer needs all of its own, or none.

    Returns:
        The model; if it is a recurrent layer itself, the new one.
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
    needed = found.together(matrices)
    if missing := [name for name in found.matrices if name in needed and name not in matrices]:
        raise G2Error(f"the matrix {missing[0]!r} is missing; a layer needs all of its matrices, or none")
    made: dict[nn.Module, nn.Module] = {}
    for layer, names in found.layers.items():
        if own := {key: matrices[name] for key, name in names.items() if name in matrices}:
            made[layer] = compressed(layer, own)
    in_place = {}
    for name in matrices:
        for use in found.matrices[name].uses:
            if isinstance(use.module, nn.Embedding):
                made[use.module] = CompressedEmbedding(use.module, matrices[name])
            elif isinstance(use.module, nn.Linear):
                made[use.module] = CompressedLinear(use.module, matrices[name])
            elif isinstance(use.module, CONVOLUTIONS):
                made[use.module] = CompressedConvolution(use.module, matrices[name])
            elif use.module not in found.layers:
                in_place[use.module, use.attribute] = matrices[name]
    for (module, attribute), matrix in in_place.items():
        delattr(module, attribute)  # a module can't take the name of a parameter
        setattr(module, attribute, matrix.train(module.training))
        if type(module) is nn.MultiheadAttention:
            module.__class__ = CompressedAttention
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


def _encode(found: Targets, chosen: Mapping[str, Operations]) -> dict[str, Encoding]:
    """The matrices that get operations, and all others of recurrent layers that have one of them."""
    wanted = {name for name, operations in chosen.items() if operations}
    wanted |= found.together(wanted)
    encodings = {}
    for name, target in found.matrices.items():
        if name in wanted:
            try:
                encodings[name] = encode(target.values, chosen.get(name))
            except G2Error as error:
                raise G2Error(f"can't compress {name}: {error}") from None
    return encodings


def _lossy(found: Targets, encodings: Mapping[str, Encoding]) -> list[str]:
    """The matrices that lose much, each with its relative error."""
    lossy = []
    for name, encoding in encodings.items():
        target = found.matrices[name]
        values = target.values.cpu().float()
        error = float((values - torch.from_numpy(encoding.decode())).norm() / values.norm().clamp_min(1e-30))
        if error > _ERRORS[target.is_plain]:
            lossy.append(f"{name} ({error:.0%})")
    return lossy


def copied(model: Model, memo: dict[int, Any]) -> Model:
    """A deep copy; `memo` maps the ids of what is not copied to what the copy has instead.

    Tensors with a history, such as a state kept from the last step, lose it in the copy.
    """
    held = [value for module in model.modules() for value in vars(module).values()]
    seen: set[int] = set()
    while held:
        one = held.pop()
        if id(one) in seen or id(one) in memo:
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            if not one.is_leaf:
                memo[id(one)] = one.detach().clone()
        elif isinstance(one, Mapping):
            held += one.values()
        elif isinstance(one, list | tuple | set | frozenset | deque):
            held += one
        elif (
            hasattr(one, "__dict__")
            and not isinstance(one, type | ModuleType)
            and (isinstance(one, nn.Module) or not callable(one))
        ):
            held += vars(one).values()
    try:
        return copy.deepcopy(model, memo)
    except (TypeError, RuntimeError, NotImplementedError) as error:
        raise G2Error(
            f"{type(model).__name__} can't be copied: {error}; delete the attribute that is in the way"
        ) from error


def plain(model: nn.Module) -> nn.Module:
    """The model in float32 on the CPU, or a copy of it."""
    is_plain = all(p.dtype == torch.float32 and p.device.type == "cpu" for p in model.parameters())
    return model if is_plain else copied(model, {}).to("cpu", torch.float32)


def refuse_scripted(model: nn.Module) -> None:
    """Raises for a model of which a part was compiled by TorchScript."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise G2Error(
                f"{called(name)} is scripted (torch.jit), so none of its layers can be replaced; "
                "pass the model from which it was scripted"
            )


def _refuse_compressed(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, CompressedRecurrent | EncodedMatrix | Compressed):
            raise G2Error(f"{called(name)} is compressed already; compress the model that it was made from")


def prepare_(model: Model, spec: Given) -> Model:
    """Lets a model train through its compression, in place: forward calls see weights as they will be stored.

    Parameters, optimisers and `state_dict` stay as they are: the optimiser updates full weights, with the gradient of
    the encoded ones. Weights are encoded once per update. After training, `compress(model)` returns a model with
    exactly the weights that the last forward call would have seen, and `unprepare_` gives the full weights back.

    Encoding is quicker here than in `compress`, and a little less exact, which training makes up for.

    Args:
        model: any module that holds a recurrent layer, on any device. Make an optimiser from `model.parameters()`,
            before or after: attributes such as `layer.weight` are now what forward calls see, not the parameters.
        spec: as for `compress`.

    Returns:
        The model.

    Examples:
        >>> g2lstm.prepare_(model, "gates=int2; cell=int3; embedding=int4")
        >>> train(model)  # as before, for an epoch or two
        >>> small = g2lstm.compress(model)
    """
    check_module(model, "prepare_")
    wanted = Spec.of(spec)
    if before := preparations(model):
        raise G2Error(
            f"this model is already prepared for {str(before[0].spec)!r}; train it and compress it, or call "
            "g2lstm.unprepare_(model) before you prepare it for another spec"
        )
    found, chosen = plan(model, wanted)
    parts: dict[nn.Parameter, list[Part]] = {}
    for name, operations in chosen.items():
        target = found.matrices[name]
        parts.setdefault(target.parameter, []).append(Part(name, target.rows, operations))
    uses = {found.matrices[name].parameter: found.matrices[name].uses for name in chosen}
    modules: dict[nn.Module, dict[str, Master]] = {}
    for parameter, own in parts.items():
        first = uses[parameter][0]
        master = Master(first.module, first.attribute, own)
        for use in uses[parameter]:
            modules.setdefault(use.module, {})[use.attribute] = master
    Preparation(model, wanted, modules)
    return model
