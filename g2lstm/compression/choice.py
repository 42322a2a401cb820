"""What a spec with patterns says about each matrix of a model."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import filter as matching
from typing import NamedTuple

from torch import nn

from g2lstm.compression.spec import GROUPS, Operations, Spec
from g2lstm.compression.targets import Skipped, Target, Targets
from g2lstm.errors import G2Error

_WILDCARDS = re.compile(r"[*?]|\[[^]]*\]")


class Rule(NamedTuple):
    """The names that a pattern matches, of modules or of parameters, and what it says about them."""

    pattern: str
    names: set[str]
    spec: Spec


def choose(model: nn.Module, found: Targets, spec: Spec) -> tuple[dict[str, Operations], list[Skipped]]:
    """The operations for each matrix that the spec mentions, `keep` too; and what it asks for in vain.

    Raises:
        G2Error: if a pattern matches nothing that can be compressed, or if two places that share a weight get different
            operations.
    """
    rules = _rules(model, found.matrices.values(), spec.patterns)
    chosen: dict[str, Operations] = {}
    covered: set[str] = set().union(*(_around(one.name) for one in found.skipped))
    for name, target in found.matrices.items():
        said = {}
        for use in target.uses:
            names = {*_around(use.name), use.parameter, f"{use.parameter}.{target.gate}"}
            base = Spec() if target.is_convolution else spec
            said[use] = _operations(names, target.group, target.is_plain, rules, base)
            covered |= names
        if len(set(said.values())) > 1:
            one = target.uses[0]
            other = next(use for use in said if said[use] != said[one])
            got = ["nothing" if said[use] is None else said[use] for use in (one, other)]
            raise G2Error(
                f"{one.parameter} and {other.parameter} are the same weights, but the spec has {got[0]} for one and "
                f"{got[1]} for the other; give both the same"
            )
        if (operations := said[target.uses[0]]) is not None:
            chosen[name] = operations
    if idle := [rule.pattern for rule in rules if not rule.names & covered and rule.spec != Spec.parse("keep")]:
        raise G2Error(f"nothing that {idle[0]!r} matches has weights that can be compressed; leave this pattern out")
    in_vain = [
        one
        for one in found.skipped
        if any(_operations(_around(one.name), group, False, rules, spec) for group in one.groups)
    ]
    return chosen, in_vain


def _rules(model: nn.Module, targets: Iterable[Target], patterns: Sequence[tuple[str, Spec]]) -> list[Rule]:
    """The most specific first; see `compression.spec`."""
    modules = [name for name, _ in model.named_modules(remove_duplicate=False)]
    parameters = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    parameters += [f"{use.parameter}.{one.gate}" for one in targets if one.gate for use in one.uses]
    ranked: list[tuple[tuple[bool, int, int], Rule]] = []
    for number, (pattern, spec) in enumerate(patterns):
        named = matching(modules, pattern)
        matched = named or matching(parameters, pattern)
        if not matched:
            close = get_close_matches(pattern, [*modules, *parameters], n=3, cutoff=0.5)
            known = f"did you mean {', '.join(close)}?" if close else f"its modules: {', '.join(filter(None, modules))}"
            known = f"for the group, write {pattern}=..." if pattern in GROUPS else known
            raise G2Error(f"nothing in {type(model).__name__} has a name like {pattern!r}; {known}")
        ranked.append(((not named, len(_WILDCARDS.sub("", pattern)), number), Rule(pattern, set(matched), spec)))
    return [rule for _, rule in sorted(ranked, key=lambda pair: pair[0], reverse=True)]


def _around(name: str) -> set[str]:
    """A name and those of all modules that hold it; the model itself has none."""
    parts = name.split(".")
    return {"", *(".".join(parts[: k + 1]) for k in range(len(parts)))}


def _operations(names: set[str], group: str, is_plain: bool, rules: Iterable[Rule], base: Spec) -> Operations | None:
    for rule in rules:
        if names & rule.names and (said := rule.spec.operations(group, is_plain)) is not None:
            return said
    return base.operations(group, is_plain)
