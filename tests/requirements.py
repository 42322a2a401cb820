"""What the package requires, directly and through what it requires, by its own metadata; what tests need."""

import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYPROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
CORE: list[str] = PYPROJECT["project"]["dependencies"]
EXTRAS: dict[str, list[str]] = PYPROJECT["project"]["optional-dependencies"]

needs_new_compiler = pytest.mark.skipif(
    torch.__version__ < "2.13", reason="compilers of older torch can't take every layer; see docs/decisions.md"
)
needs_new_onnx = pytest.mark.skipif(
    not hasattr(torch.onnx, "ops"), reason="export_onnx refuses older torch; see test_with_an_old_torch"
)


def direct(requirements: Iterable[str]) -> set[str]:
    """The canonical names of distributions; an extra of ours stands for what it brings."""
    names = set()
    for requirement in map(Requirement, requirements):
        if requirement.name == "g2lstm":
            names |= direct(one for extra in requirement.extras for one in EXTRAS[extra])
        else:
            names.add(canonicalize_name(requirement.name))
    return names


def closure(requirements: Iterable[str]) -> set[str]:
    """The canonical names of distributions and of all that they need in turn, on this system."""
    waiting = list(requirements)
    seen: dict[str, set[str]] = {}
    while waiting:
        requirement = Requirement(waiting.pop())
        name, extras = canonicalize_name(requirement.name), {"", *requirement.extras}
        if name == "g2lstm":
            waiting += [one for extra in requirement.extras for one in EXTRAS[extra]]
            continue
        new = extras - seen.get(name, set())
        seen[name] = seen.get(name, set()) | extras
        for inner in (metadata.requires(name) or ()) if new else ():
            marker = Requirement(inner).marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in new):
                waiting.append(inner)
    return set(seen)
