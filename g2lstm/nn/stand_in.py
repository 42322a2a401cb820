"""Modules that are torch's own layers to `isinstance`, and that `torch.compile` traces all the same."""

import functools
import sys
from collections.abc import Callable
from typing import Any

from torch import nn


class StandIn(nn.Module):
    """A module that `isinstance` takes for one of another class, without being derived from it.

    Dynamo breaks its graph at every `torch.nn.LSTM` and `torch.nn.GRU`: the module that wraps objects for it asks
    `isinstance`, which looks at `__class__` where the type alone doesn't settle the matter. So that one module sees the
    type, and everyone else a class that also derives from torch's.
    """

    stands_for: type[nn.Module]

    @property
    def __class__(self) -> type:
        own: Any = type(self)
        asked_by = sys._getframe(1).f_globals.get("__name__")
        return own if asked_by == "torch._dynamo.variables.builder" else _joined(own, own.stands_for)

    @__class__.setter
    def __class__(self, kind: type) -> None:
        object.__dict__["__class__"].__set__(self, kind)  # what torch's parametrisations do

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., Any], tuple[type], Any]:
        """Copies and pickles have the type itself."""
        return remade, (type(self),), self.__getstate__()


@functools.cache
def _joined(own: Any, other: Any) -> type:
    """The class that objects of the type `own` claim to have; calling it makes such an object."""
    if issubclass(own, other):
        return own

    def make(kind: type, *arguments: Any, **options: Any) -> Any:
        if kind is not joined:  # a parametrised class, which derives from it
            return object.__new__(kind)
        return own(*arguments, **options) if arguments or options else remade(own)

    names = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__new__": make}
    joined = type(own.__name__, (own, other), names)
    return joined


def remade(kind: type) -> Any:
    """A new object, to be filled with the state of another."""
    return object.__new__(kind)
