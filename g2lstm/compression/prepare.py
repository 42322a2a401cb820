"""`prepare_`: gets a model ready to be trained with its weights as compression will store them."""

from torch import nn

from g2lstm.compression.model import plan
from g2lstm.compression.spec import Given, Spec
from g2lstm.compression.straight_through import Master, Part, Preparation, preparations
from g2lstm.errors import G2Error
from g2lstm.nn.checks import check_module
from g2lstm.nn.convert import Model


def prepare_(model: Model, spec: Given) -> Model:
    """Lets a model train through its compression, in place: forward calls see weights as they will be stored.

    Parameters, optimisers and `state_dict` stay as they are: the optimiser updates full weights, with the gradient of
    the encoded ones. Weights are encoded once per update. After training, `compress(model)` returns a model with
    exactly the weights that the last forward call would have seen, and `unprepare_` gives the full weights back.

    Encoding is quicker here than in `compress`, and a little less close, which training makes up for.

    Args:
        model: any module that holds a recurrent layer, on any device. Make an optimiser from `model.parameters()`,
            before or after: attributes such as `layer.weight` now are what forward calls see, not the parameters.
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
