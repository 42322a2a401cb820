"""`export_html`: a run as one HTML file that runs the model in the browser, offline."""

import base64
import hashlib
import json
import os
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from g2lstm.compression.encodings import Coded, Dense, Encoding
from g2lstm.compression.gate_weights import LayerWeights
from g2lstm.errors import G2Error
from g2lstm.files import read_bounded, refuse_existing, write_whole
from g2lstm.page.palette import css_variables
from g2lstm.runtime.beam import LIMIT_MORE, LIMIT_PER_TOKEN
from g2lstm.runtime.language import LanguageModel, LanguageParts
from g2lstm.runtime.opened import OpenedRun, open_run
from g2lstm.runtime.translation import TranslationParts, search_facts
from g2lstm.version import __version__

if TYPE_CHECKING:
    from g2lstm.text.tokenize import Tokenizer


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


_TYPES = {"float32": "f32", "float16": "f16", "int8": "i8", "int16": "i16", "int32": "i32"}
_ALIGNMENT = 8
_LINE = 4000  # characters of base64


class Payload:
    """Collects arrays, and describes each of them for the script.

    Attributes:
        weights: the number of weights in the matrices so far.
    """

    def __init__(self) -> None:
        self.weights = 0
        self._arrays: list[bytes] = []
        self._size = 0

    def array(self, values: NDArray[Any]) -> dict[str, Any]:
        """Adds an array; returns its type, its place and its length."""
        content = np.ascontiguousarray(values).tobytes()
        described = {"type": _TYPES[str(values.dtype)], "at": self._size, "length": values.size}
        padding = -len(content) % _ALIGNMENT
        self._arrays.append(content + bytes(padding))
        self._size += len(content) + padding
        return described

    def matrix(self, encoding: Encoding) -> dict[str, Any]:
        """Adds a matrix; returns its description."""
        self.weights += encoding.shape[0] * encoding.shape[1]
        return self._describe(encoding)

    def layer(self, layer: LayerWeights) -> dict[str, Any]:
        """Adds a recurrent layer."""
        return {
            "hidden": layer.hidden,
            "inputs": layer.w_x[0].encoding.shape[1],
            "x": [self.matrix(weight.encoding) for weight in layer.w_x],
            "h": [self.matrix(weight.encoding) for weight in layer.w_h],
            "factors": [weight.factor for weight in layer.w_x],
            "bias": self.array(layer.b_x + layer.b_h),
            "hard": layer.hard,
        }

    def encoded(self, facts: Mapping[str, Any]) -> str:
        """Everything as base64, in lines."""
        text = json.dumps(facts, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + 4) % _ALIGNMENT)
        compressor = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 9, zlib.Z_FILTERED)
        parts = [compressor.compress(part) for part in (struct.pack("<I", len(text)), text, *self._arrays)]
        content = base64.b64encode(b"".join([*parts, compressor.flush()])).decode()
        return "\n".join(content[at : at + _LINE] for at in range(0, len(content), _LINE))

    def _describe(self, encoding: Encoding) -> dict[str, Any]:
        shape = list(encoding.shape)
        if isinstance(encoding, Coded):
            codes, scales = self.array(encoding.codes), self.array(_narrow(encoding.group_scales))
            return {"shape": shape, "codes": codes, "scales": scales, "group": encoding.group or shape[1]}
        if len(factors := encoding.factors()) > 1:
            return {"shape": shape, "factors": [self._describe(factor) for factor in factors]}
        values = encoding.values if isinstance(encoding, Dense) else _narrow(encoding.decode())
        return {"shape": shape, "values": self.array(values)}


def _narrow(values: NDArray[np.float32]) -> NDArray[Any]:
    """In float16 where that is exact."""
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    return half if np.array_equal(half.astype(np.float32), values) else values


VERSION = 1  # of the facts
EXAMPLES = "examples.txt"  # in a run: sentences to pick, one per line
_MADE_UP = 4  # examples
_CAPITAL = re.compile("[A-Z]")  # in byte-pair encoding, other letters are bytes in disguise
_LANGUAGES = {"de": "German", "en": "English", "fr": "French", "es": "Spanish", "it": "Italian", "cs": "Czech"}


@dataclass(frozen=True)
class HtmlExport:
    """What was written.

    Attributes:
        file: the page.
        bytes: its size.
        weights: in the matrices of the model.
    """

    file: Path
    bytes: int
    weights: int


def export_html(
    run: Any,
    path: str | Path,
    *,
    title: str | None = None,
    examples: Sequence[str] = (),
    eval_gate: str | None = None,
    force: bool = False,
) -> HtmlExport:
    """Writes a run as one HTML file that runs the model in the browser: no server, no network.

    A language model shows the likeliest next words and continues what you type; a translation model translates, with
    its attention. Both show their gates word by word. Weights keep their codes, so a compressed run makes a small page.
    In the page, `window.g2lstm` has the model for scripts.

    Args:
        run: a run directory, or a model from `g2lstm.load`.
        path: NAME.html.
        title: of the page; what the model does if not given.
        examples: sentences that visitors can pick; those of examples.txt in the run if not given. A language model
            makes some up if there are none.
        eval_gate: "soft", "tempered" or "hard"; None for the model's own.
        force: replace an existing file.
    """
    path = Path(path)
    if path.suffix != ".html" or path.name == ".html":
        raise G2Error(f"the name of a page must end in .html, got {str(path)!r}; use a name such as model.html")
    if isinstance(examples, str):
        raise G2Error(f"examples must be a list of sentences, got one string; give [{examples!r}]")
    if not force:
        refuse_existing(path.parent, [path.name])
    directory = Path(getattr(getattr(run, "run", None), "path", run))
    opened = open_run(directory, eval_gate)
    payload, sentences = Payload(), list(examples)
    if not sentences and os.path.lexists(directory / EXAMPLES):
        lines = read_bounded(directory / EXAMPLES, 10_000).decode(errors="replace").splitlines()
        sentences = [line.strip() for line in lines if line.strip()]
    if isinstance(opened.parts, LanguageParts):
        model = _language(opened.parts, payload)
        sentences = sentences or _made_up(opened)
    else:
        model = _translation(opened.parts, payload)
    facts = {
        "version": VERSION,
        "g2lstm": __version__,
        "task": opened.recipe.task,
        "title": title or _title(opened),
        "method": opened.recipe.get("model.method", "gumbel"),
        "weights": payload.weights,
        "examples": sentences,
        "tokenizers": [_tokenizer(one, payload) for one in opened.tokenizers],
        "model": model,
        "search": _search(opened),
    }
    try:
        content = _page(facts, payload).encode()
    except UnicodeEncodeError as error:
        raise G2Error(
            f"the title and the examples must be valid Unicode, got half of a surrogate pair in {error.object!r}"[:300]
        ) from None
    write_whole(path, content)
    return HtmlExport(path, len(content), payload.weights)


def _page(facts: dict[str, Any], payload: Payload) -> str:
    """The page; no string of the model is in it but its title, because everything else is inside the payload."""
    style = css_variables() + resource("page.css") + resource("model.css")
    theme, script = resource("theme.js"), bundle("demo.js")
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src {_hash(style)}; script-src {_hash(theme)} {_hash(script)}"
    )
    icon = base64.b64encode(resource("icon.svg").encode()).decode()
    return Template(resource("model.html")).substitute(
        title=escape(facts["title"]),
        policy=policy,
        icon=f"data:image/svg+xml;base64,{icon}",
        style=style,
        theme=theme,
        script=script,
        payload=payload.encoded(facts),
    )


def _hash(text: str) -> str:
    """How a content security policy names an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _language(parts: LanguageParts, payload: Payload) -> dict[str, Any]:
    return {
        "embedding": payload.matrix(parts.embedding),
        "layers": [
            payload.layer(one) | {"residual": residual}
            for one, residual in zip(parts.layers, parts.residual, strict=True)
        ],
        "softmax": None if parts.softmax is parts.embedding else payload.matrix(parts.softmax),
        "bias": payload.array(parts.bias),
    }


def _translation(parts: TranslationParts, payload: Payload) -> dict[str, Any]:
    tables: dict[str, Any] = {name: payload.matrix(getattr(parts, name)) for name in ("target", "key")}
    tied = {name: getattr(parts, name) for name in ("source", "softmax")}
    tables |= {name: None if one is parts.target else payload.matrix(one) for name, one in tied.items()}
    linears = {
        name: {"weight": payload.matrix(matrix), "bias": payload.array(bias)}
        for name, (matrix, bias) in {"bridge": parts.bridge, "output": parts.output}.items()
    }
    stacks = {name: [payload.layer(one) for one in getattr(parts, name)] for name in ("directions", "above", "decoder")}
    return {**tables, **linears, **stacks, "bias": payload.array(parts.bias), "residual": parts.residual}


def _search(opened: OpenedRun) -> dict[str, Any]:
    if isinstance(opened.parts, LanguageParts):
        return {}
    how, target = search_facts(opened.recipe), opened.tokenizers[-1]
    return {
        "beam": how.beam,
        "length_penalty": how.length_penalty,
        "is_tokenized": how.is_tokenized,
        "forbidden": [] if target.kind == "word" else [target.unk_id],
        "limit": [LIMIT_PER_TOKEN, LIMIT_MORE],
    }


def _tokenizer(tokenizer: "Tokenizer", payload: Payload) -> dict[str, Any]:
    """A tokenizer as the script takes it; `text.tokenize` allows only these settings."""
    settings = json.loads(tokenizer.backend.to_str())
    ids: dict[str, int] = settings["model"]["vocab"]
    tokens = sorted(ids, key=ids.__getitem__)
    normalizer = json.dumps(settings["normalizer"])
    steps = (settings["normalizer"] or {}).get("normalizers", [])
    described = {
        "kind": tokenizer.kind,
        "tokens": tokens,
        "unk": tokenizer.unk_id,
        "eos": tokenizer.eos_id,
        "replaced": [[one["pattern"]["Regex"], one["content"]] for one in steps if one["type"] == "Replace"],
        "lowercase": "Lowercase" in normalizer,
        "prefix": "Prepend" in normalizer,
        "only_spaces": "Split" in json.dumps(settings["pre_tokenizer"]),
        "has_capitals": sum(len(token) > 1 and bool(_CAPITAL.search(token)) for token in tokens) > len(tokens) / 100,
    }
    if tokenizer.kind == "bpe":
        pairs = [one.split(" ") if isinstance(one, str) else one for one in settings["model"]["merges"]]
        flat = [ids[token] for pair in pairs for token in pair]
        described["merges"] = payload.array(np.array(flat, np.int32))
    return described


def _made_up(opened: OpenedRun) -> list[str]:
    """Sentences that a language model writes by itself."""
    assert isinstance(opened.parts, LanguageParts)
    model = LanguageModel(opened.parts, opened.tokenizers[0], threads=1)
    texts = (model.generate(tokens=16, temperature=0.7, seed=seed) for seed in range(_MADE_UP))
    return [line for text in texts if (line := text.strip().split("\n")[0])]


def _title(opened: OpenedRun) -> str:
    if isinstance(opened.parts, LanguageParts):
        return "What comes next?"
    sides = (opened.recipe.get(f"data.{side}", "") for side in ("source", "target"))
    return " to ".join(_LANGUAGES.get(side, side) for side in sides)
