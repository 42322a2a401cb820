"""A model that makes one step at a time, as C: `NAME_reset` and `NAME_step`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Template

from g2lstm.export.c.program import Function, Value, padded, width
from g2lstm.export.c.source import body, constants, kernel, place, size
from g2lstm.export.c.text import comment, string, template, wrapped
from g2lstm.version import __version__


@dataclass(frozen=True)
class Step:
    """One step of a model.

    Attributes:
        function: what computes it.
        output: what it computes.
        inputs: the width of the vector that it reads, or the number of tokens.
        is_token: whether it reads a token.
        is_index: whether the output is the place of the largest number, and not the numbers.
        what: the outputs, for people.
    """

    function: Function
    output: Value
    inputs: int
    is_token: bool = False
    is_index: bool = False
    what: str = "the outputs"

    @property
    def outputs(self) -> int:
        """The number of outputs."""
        return 1 if self.is_index else width(self.output)


@dataclass(frozen=True)
class Sizes:
    """What a model needs: bytes for its weights, for the state of a stream and beside it; multiply-adds per step."""

    weights: int
    state: int
    scratch: int
    macs: int
    source_macs: int = 0  # of a translation model, for each token of the source

    def lines(self) -> list[str]:
        """A table for people."""
        lines = [
            f"flash   weights      {self.weights:>12,} bytes; the code takes a few thousand more",
            f"RAM     state        {self.state:>12,} bytes per stream",
            f"        scratch      {self.scratch:>12,} bytes, in the same struct",
            f"work    per step     {self.macs:>12,} multiply-adds",
        ]
        return lines + ([f"        per source   {self.source_macs:>12,} for each token"] if self.source_macs else [])


def sources(step: Step, name: str, title: str, texts: Sequence[str] = ()) -> tuple[dict[str, str], Sizes]:
    """The content of NAME.h and NAME.c, and what they need; `texts` are the sides that `tokens_source` writes."""
    function, program, upper = step.function, step.function.program, name.upper()
    program.features |= {"argmax"} if step.is_index or _has_argmax(step) else set()
    if step.is_index:
        function.finish(f"*out = argmax({{0}}, {width(step.output)});", step.output)
    else:
        function.copy(step.output, "out")
    first = {
        place: program.vector(values, f"first {place}")[0].buffer.place
        for place, (_, values) in function.states.items()
        if values is not None
    }
    scratch = place([function])
    state = 4 * sum(padded(one.size) for one, _ in function.states.values())
    sizes = Sizes(size(program), state, scratch.bytes, function.macs)
    given, out = "int32_t token" if step.is_token else "const float *x", "int32_t" if step.is_index else "float"
    signature = f"{'int' if step.is_token else 'void'} {name}_step({name}_state *{{}}, {given}, {out} *out)"
    unit, check, done = ("VOCABULARY" if step.is_token else "INPUTS"), "", ""
    if step.is_token:
        check, done = f"    if (token < 0 || token >= {upper}_VOCABULARY) return -1;\n", "\n    return 0;"
    names = {"name": name, "upper": upper, "version": __version__, "title": comment(title)}
    header = Template(template("model.h", ())).substitute(
        names,
        table="\n".join(f"   {line}" for line in sizes.lines()),
        sizes=f"#define {upper}_{unit} {step.inputs}\n#define {upper}_OUTPUTS {step.outputs}",
        states="\n".join(f"    float {place}[{padded(one.size)}];" for place, (one, _) in function.states.items()),
        scratch="\n".join(f"    {line}" for line in scratch.fields()),
        step=f"{_told(step, upper)}\n{signature.format('state')};\n{_more(step, name, texts)}",
    )
    source = Template(template("model.c", ())).substitute(
        names,
        kernel=kernel(program),
        constants=constants(program),
        first="".join(f"    memcpy(s->{place}, {own}, sizeof {own});\n" for place, own in first.items()),
        signature=signature.format("s"),
        body=check + body(function, scratch) + done,
    )
    if _has_argmax(step):
        source += f"\nint32_t {name}_argmax(const float *out) {{ return argmax(out, {upper}_OUTPUTS); }}\n"
    return {f"{name}.h": header, f"{name}.c": source}, sizes


def _told(step: Step, upper: str) -> str:
    """The comment on the function."""
    given = f"a token, 0 to {upper}_VOCABULARY - 1" if step.is_token else f"x[{upper}_INPUTS]"
    what = "the place of the largest output" if step.is_index else f"{step.what} to out[{upper}_OUTPUTS]"
    text = f"Reads {given}, and writes {what}."
    return f"/* {text}{' Returns 0, or -1 for any other token.' if step.is_token else ''} */"


def _has_argmax(step: Step) -> bool:
    return step.is_token and not step.is_index and step.outputs > 1


def _more(step: Step, name: str, texts: Sequence[str]) -> str:
    """What the header declares beside the step."""
    lines = []
    if _has_argmax(step):
        lines += ["", "/* The likeliest token. */", f"int32_t {name}_argmax(const float *out);"]
    return "".join(f"{line}\n" for line in lines) + declarations(name, texts)


def declarations(name: str, texts: Sequence[str]) -> str:
    """The tables of the tokens of each side, for a header."""
    lines = [f"extern const char *const {name}_{side}[];\n" for side in texts]
    told = f"\n/* What each token adds to a text, in UTF-8; link {name}_tokens.c if you need it. */\n"
    return "".join([told, *lines] if lines else [])


def tokens_source(name: str, texts: Mapping[str, Sequence[bytes]]) -> str:
    """The content of NAME_tokens.c: what each token adds to a text. A token of the byte 0 is an empty string."""
    tables = []
    for side, tokens in texts.items():
        rows = wrapped(string(token.replace(b"\0", b"")) for token in tokens)
        tables.append(f"const char *const {name}_{side}[{len(tokens)}] = {{\n{rows}\n}};\n")
    return "\n".join([f"/* The tokens of {name}.c as text. */\n", f'#include "{name}.h"\n', *tables])
