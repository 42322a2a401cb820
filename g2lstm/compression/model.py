"""`compress`: any model that holds LSTMs, as a copy whose matrices are encoded."""

import copy
import warnings
from collections.abc import Mapping

from torch import nn

from g2lstm.compression.lstm import CompressedLSTM
from g2lstm.compression.matrix import Encoded
from g2lstm.compression.methods import encode
from g2lstm.compression.spec import GROUPS, Spec
from g2lstm.compression.survey import GATE_GROUPS, Survey, survey
from g2lstm.compression.table import CompressedEmbedding, CompressedLinear, CompressedTable, Table
from g2lstm.errors import G2Error
from g2lstm.nn.convert import Model, replace_all
from g2lstm.nn.lstm import G2LSTM


def compress(model: Model, spec: str | Spec) -> Model:
    """A copy of a model with compressed weights, in evaluation mode; the model itself stays as it is.

    Every `G2LSTM` and `torch.nn.LSTM` becomes a `CompressedLSTM`, each gate's W_x and W_h being compressed by itself.
    Embeddings, and a softmax with weights of its own, become compressed ones if the spec speaks of them; tied weights
    stay tied. Which linear layers count as a softmax, `compression.survey.survey` says. All else is kept as it is, and
    so are, with a warning that names them, layers that may compute something else: subclasses, layers under a
    parametrisation or a hook, and those whose weights other modules use too.

    Args:
        model: any module that holds an LSTM, on any device.
        spec: such as "gates=round:0.2,clip:0.4; cell=int8", or the name of a preset. A group that the model does not
            have is passed over.

    Examples:
        >>> small = g2lstm.compress(model, "gates=round:0.2,clip:0.4; cell=int8; embedding=int8")
    """
    if not isinstance(model, nn.Module):
        raise G2Error(f"compress takes a torch.nn.Module, got {type(model).__name__}; of a run, give load(run).model")
    wanted = spec if isinstance(spec, Spec) else Spec.parse(spec)
    _refuse_compressed(model)
    if not any(isinstance(module, nn.LSTM | G2LSTM) for module in model.modules()):
        raise G2Error(
            f"found no G2LSTM or torch.nn.LSTM inside {type(model).__name__}; there is nothing to compress by gates"
        )
    found, groups = survey(model), {group for group in GROUPS if getattr(wanted, group)}
    for left in found.left:
        if groups & set(left.groups):
            warnings.warn(f"compress leaves {left.name or 'the model itself'} alone: {left.reason}", stacklevel=2)
    matrices = _encode(found, wanted)
    if not matrices:
        there = sorted({matrix.group for matrix in found.matrices.values()}, key=GROUPS.index)
        raise G2Error(
            f"nothing of {type(model).__name__} would be compressed by {str(wanted)!r}; "
            f"the groups that it has are: {', '.join(there) or 'none'}"
        )
    # The copy has those parameters in common with the model until `install_` replaces them: none is copied in vain.
    replaced = {id(p): p for p in (found.matrices[name].parameter for name in matrices)}
    return install_(copy.deepcopy(model, replaced), matrices).eval()


def install_(model: Model, matrices: Mapping[str, Encoded]) -> Model:
    """Puts encoded matrices in the place of parameters, in place.

    Args:
        model: whose parameters may be on the meta device; those that stay are still to be loaded then.
        matrices: as `encoded_matrices` names them. Of an LSTM all are needed, or none.

    Returns:
        The model; if it is an LSTM itself, the new layer.
    """
    _refuse_compressed(model)
    found = survey(model)
    for name, matrix in matrices.items():
        if name not in found.matrices:
            raise G2Error(
                f"{type(model).__name__} has no matrix {name!r} that could be compressed; it is another model's"
            )
        expected = tuple(found.matrices[name].values.shape)
        if matrix.shape != expected:
            raise G2Error(f"the matrix {name!r} must have the shape {expected}, got {matrix.shape}")
    made: dict[nn.Module, nn.Module] = {}
    for layer, names in found.lstms.items():
        missing = [name for name in names.values() if name not in matrices]
        if len(missing) < len(names):
            if missing:
                raise G2Error(f"the matrix {missing[0]!r} is missing; of an LSTM all are needed, or none")
            made[layer] = CompressedLSTM(layer, {key: matrices[name] for key, name in names.items()})
    softmaxes = []
    for name, uses in found.tables.items():
        if name not in matrices:
            continue
        table = Table(matrices[name])
        for use in uses:
            if isinstance(use.module, nn.Embedding):
                made[use.module] = CompressedEmbedding(use.module, table)
            elif isinstance(use.module, nn.Linear):
                made[use.module] = CompressedLinear(use.module, table)
            else:
                softmaxes.append((use, CompressedTable(table, found.matrices[name].parameter)))
    for use, softmax in softmaxes:
        delattr(use.module, use.attribute)  # the name of a parameter takes no module
        setattr(use.module, use.attribute, softmax.train(use.module.training))
    return replace_all(model, made)


def encoded_matrices(model: nn.Module) -> dict[str, Encoded]:
    """Every compressed matrix of a model by the name of its parameter, and of a gate: "layers.0.weight_ih_l0.i".

    One that several modules share is there once.
    """
    return {name: matrix for name, (_, matrix) in _compressed(model).items()}


def group_of(model: nn.Module) -> dict[str, str]:
    """The group of every matrix that is compressed or can be: "gates", "cell", "embedding" or "softmax"."""
    able = {name: matrix.group for name, matrix in survey(model).matrices.items()}
    return able | {name: group for name, (group, _) in _compressed(model).items()}


def _compressed(model: nn.Module) -> dict[str, tuple[str, Encoded]]:
    found: dict[str, tuple[str, Encoded]] = {}
    seen: set[int] = set()
    embedded = {id(m.matrix) for m in model.modules() if isinstance(m, CompressedEmbedding)}
    for prefix, module in model.named_modules():
        own: dict[str, tuple[str, Encoded]] = {}
        if isinstance(module, CompressedLSTM):
            own = {f"{prefix}.{key}": (GATE_GROUPS[key[-1]], matrix) for key, matrix in module.matrices.items()}
        elif isinstance(module, CompressedTable):
            group = "embedding" if id(module.matrix) in embedded else "softmax"
            own = {prefix if type(module) is CompressedTable else f"{prefix}.weight": (group, module.matrix)}
        for name, (group, matrix) in own.items():
            if id(matrix) not in seen:
                seen.add(id(matrix))
                found[name.removeprefix(".")] = group, matrix
    return found


def _encode(found: Survey, spec: Spec) -> dict[str, Encoded]:
    """The matrices of the groups that the spec speaks of, and all others of LSTMs that have one of them."""
    wanted = {name for name, matrix in found.matrices.items() if getattr(spec, matrix.group)}
    for names in found.lstms.values():
        if wanted & set(names.values()):
            wanted |= set(names.values())
    matrices = {}
    for name, matrix in found.matrices.items():
        if name in wanted:
            try:
                matrices[name] = encode(matrix.values, getattr(spec, matrix.group))
            except G2Error as error:
                raise G2Error(f"{name} cannot be compressed: {error}") from None
    return matrices


def _refuse_compressed(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, CompressedLSTM | CompressedTable):
            raise G2Error(
                f"{name or 'the model itself'} is compressed already; compress the model that it was made from"
            )
