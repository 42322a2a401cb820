"""Hears of every pickle that is read in this process, also in C, through Python's own hook, and refuses it."""

import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn
from unittest.mock import patch

import numpy as np
import torch

_LISTENING: list[bool] = []


class PickleError(AssertionError):
    """A pickle is read."""


def _listen(event: str, _: object) -> None:
    if _LISTENING and event == "pickle.find_class":
        raise PickleError(event)


sys.addaudithook(_listen)  # it stays for ever, so it listens only when asked to


def _refuse(*_: object, **__: object) -> NoReturn:
    raise PickleError("a pickle is read")


class _Refused:  # a class, because libraries derive their own from it
    __init__ = _refuse


@contextmanager
def unpickling_refused() -> Iterator[None]:
    """Any pickle that is read raises: the hook hears of those that name a class, whoever reads them."""
    with (
        patch.multiple(pickle, load=_refuse, loads=_refuse, Unpickler=_Refused, _Unpickler=_Refused),
        patch.object(torch, "load", _refuse),
        patch.object(np, "load", _refuse),
    ):
        _LISTENING.append(True)
        try:
            yield
        finally:
            _LISTENING.pop()
