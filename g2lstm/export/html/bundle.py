"""Joins the page's modules into one script: browsers import no modules from files on a disk."""

import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

_IMPORT = re.compile(r'^import (\{[^}]*\}|\* as \w+) from "\./([\w.]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:const|let|function|class)\*? (\w+))", re.MULTILINE)


def resource(name: str) -> str:
    """A file of this package, or one that all our pages share."""
    folders: list[Traversable] = [files("g2lstm.export.html") / "static", files("g2lstm.page") / "static"]
    found = next(folder / name for folder in folders if (folder / name).is_file())
    return found.read_text(encoding="utf-8")


def bundle(entry: str) -> str:
    """A script that does what the module `entry` does, with all that it imports; each keeps its own names."""
    each = "\n".join(f'modules["{name}"] = (() => {{\n{code}}})();' for name, code in _modules(entry, set()))
    return f'"use strict";\nconst modules = {{}};\n{each}\n'


def _modules(name: str, seen: set[str]) -> Iterator[tuple[str, str]]:
    """A module after all that it imports, as the body of a function that returns what it exports."""
    seen.add(name)
    source = resource(name)
    for imported in _IMPORT.finditer(source):
        if imported[2] not in seen:
            yield from _modules(imported[2], seen)
    exported = _EXPORT.findall(source)
    body = _EXPORT.sub("", _IMPORT.sub(_from_modules, source))
    yield name, f"{body.rstrip()}\nreturn {{ {', '.join(exported)} }};\n"


def _from_modules(found: re.Match[str]) -> str:
    names = found[1].removeprefix("* as ").replace(" as ", ": ")
    return f'const {names} = modules["{found[2]}"];'
