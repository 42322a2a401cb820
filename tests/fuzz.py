"""What the fuzz tests share: how many examples they try, and how they damage files."""

import inspect
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# The same examples in every run, so that a failure points to a change of the code. FUZZ=1 in the environment draws new
# ones in the slow tests, to look for what nobody has thought of.
SHORT = settings(
    derandomize=True,
    database=None,
    max_examples=60,
    suppress_health_check=[*settings.default.suppress_health_check, HealthCheck.function_scoped_fixture],
)


def fuzzed(few=60, many=1000):
    """Makes two tests of a function that draws from `data`: one of a few examples, a slow one of many."""

    def decorate(check):
        def test(examples, **fixtures):
            derandomize = examples == few or "FUZZ" not in os.environ

            @settings(SHORT, derandomize=derandomize, max_examples=examples)
            @given(st.data())
            def try_examples(data):
                check(data=data, **fixtures)

            try_examples()

        names = ["examples", *(name for name in inspect.signature(check).parameters if name != "data")]
        parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        test.__signature__ = inspect.Signature(parameters)
        return pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.slow)])(test)

    return decorate


def damaged(data, content: bytes, most: int = 3) -> bytes:
    """The content with bits flipped, parts removed, inserted or swapped, or its end cut off."""
    content = bytearray(content)
    for _ in range(data.draw(st.integers(1, most))):
        places = st.integers(0, max(len(content) - 1, 0))
        start = data.draw(places)
        match data.draw(st.sampled_from(["flip", "cut", "insert", "swap", "truncate"])):
            case "flip" if content:
                content[start] ^= 1 << data.draw(st.integers(0, 7))
            case "cut":
                del content[start : start + data.draw(st.integers(1, 40))]
            case "insert":
                content[start:start] = data.draw(st.binary(min_size=1, max_size=9))
            case "swap" if content:
                other = data.draw(places)
                content[start], content[other] = content[other], content[start]
            case "truncate":
                del content[start:]
    return bytes(content)


NUMBERS = st.sampled_from([0, -1, 1, 2**31, 2**63, 2**64, 10**12, 10**30, 10**400, 1e308, -0.0, 0.5])
STRINGS = st.sampled_from(
    ["", "\ud800", "\x1b[2J", "$\\frac{", "<script>", "a\nb", "é", "x" * 5000, "1", "-", "{x}", "%s"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | NUMBERS | st.text(max_size=5) | STRINGS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def changed(data, value):
    """The JSON with a few of its values replaced, removed or copied to another place."""
    for _ in range(data.draw(st.integers(1, 3))):
        table = value
        while True:
            if not table:
                break
            key = data.draw(st.sampled_from(sorted(table) if isinstance(table, dict) else range(len(table))))
            if isinstance(table[key], dict | list) and table[key] and data.draw(st.integers(0, 3)):
                table = table[key]
                continue
            match data.draw(st.sampled_from(["replace", "number", "string", "delete", "copy"])):
                case "replace":
                    table[key] = data.draw(JSON)
                case "number":
                    table[key] = data.draw(NUMBERS)
                case "string":
                    table[key] = data.draw(STRINGS)
                case "delete":
                    del table[key]
                case "copy" if isinstance(table, dict):
                    table[data.draw(st.sampled_from(sorted(table)))] = table[key]
            break
    return value
