"""No text can break out of the C source: tokens, names of modules, comments."""

import subprocess

import pytest
from hypothesis import strategies as st
from torch import nn

import g2lstm
from g2lstm.export.c.step import tokens_source
from g2lstm.export.c.text import comment, identifier, is_identifier, number, string
from g2lstm.text.tokenize import train_bpe_tokenizer, train_word_tokenizer
from tests.export.c.build import STRICT, compile_c, compiler
from tests.fuzz import fuzzed

NASTY = [
    '"', "\\", '\\"', "*/", "/*", "//", "\n", "\r", "\t", "??/", "??=", "%s%n", "\x00", "\x1b[31m", "\x7f", "0\x012",
    "\\x41", "é", "\u2028", "\U0001f600", '");system("true");//', "#define int", "\\\n", "a\\", "''", "{}", "${name}",
]  # fmt: skip


def unquoted(text: str) -> bytes:
    """What a C compiler reads in a literal with octal escapes only."""
    assert text[0] == text[-1] == '"'
    inner, found, at = text[1:-1], bytearray(), 0
    while at < len(inner):
        if inner[at] == "\\":
            assert all(digit in "01234567" for digit in inner[at + 1 : at + 4])
            found.append(int(inner[at + 1 : at + 4], 8))
            at += 4
        else:
            assert inner[at] not in '"\n?'
            found.append(ord(inner[at]))
            at += 1
    return bytes(found)


@fuzzed()
def test_literals_are_closed_and_keep_every_byte(data):
    texts = st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass"))
    content = data.draw(st.binary(max_size=40) | texts)
    text = string(content)
    assert text.isascii()
    assert text.isprintable()
    assert unquoted(text) == content


@fuzzed()
def test_comments_end_where_they_should(data):
    found = comment(data.draw(st.text(max_size=40) | st.text("*/\\?\n ", max_size=9)))
    assert found.isascii()
    assert found.isprintable()
    assert not set("*/?\\\"'") & set(found)


@fuzzed()
def test_any_name_becomes_an_identifier(data):
    name, taken = data.draw(st.text(max_size=40)), data.draw(st.sets(st.text("ab_1", max_size=4), max_size=9))
    found = identifier(name, taken)
    assert is_identifier(found)
    assert found not in taken


def test_numbers_are_floats():
    assert [number(one) for one in (0, 1, -2.5, 1e-30, 3.4e38, 0.1)] == [
        "0.0f", "1.0f", "-2.5f", "1.00000000e-30f".replace("1.00000000", "1"), "3.39999995e+38f", "0.100000001f",
    ]  # fmt: skip


def test_a_compiler_reads_the_tokens_that_we_wrote(tmp_path):
    tokens = [one.encode() for one in NASTY] + [bytes([byte]) for byte in range(256)]
    (tmp_path / "m.h").write_text("extern const char *const m_text[];\n")
    (tmp_path / "m_tokens.c").write_text(tokens_source("m", {"text": tokens}))
    (tmp_path / "main.c").write_text(
        '#include <stdio.h>\n#include <string.h>\n#include "m.h"\n'
        f"int main(void)\n{{\n    for (int k = 0; k < {len(tokens)}; ++k) fwrite(m_text[k], 1, strlen(m_text[k]) + 1, "
        "stdout);\n    return 0;\n}\n"
    )
    program = compile_c(compiler(), STRICT, [tmp_path / "m_tokens.c", tmp_path / "main.c"], tmp_path / "main")
    said = subprocess.run([program], capture_output=True, check=True).stdout
    assert said.split(b"\0")[:-1] == [one.replace(b"\0", b"") for one in tokens]


def test_names_of_modules_stay_within_comments_and_identifiers(tmp_path):
    model = nn.Sequential()
    for place, name in enumerate(["*/ int x; /*", 'a"b', "while", "free", "é", "lstm"]):
        model.add_module(name, nn.Linear(4, 4) if place else nn.LSTM(4, 4))
    model.get_submodule("*/ int x; /*").register_forward_hook(lambda module, inputs, output: output[0])
    made = g2lstm.export_c(model.eval(), tmp_path / "odd.c", compiler=compiler())
    assert made.checked is not None
    assert made.checked.endswith("passed")


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_tokens_add_up_to_the_text(kind):
    lines = ["the cat sat on the mat", "ein Käse & 猫 \x7f 😀", "the cat"]
    tokenizer = train_word_tokenizer(lines) if kind == "word" else train_bpe_tokenizer(lines, vocabulary=270)
    for line in lines:
        ids = [*tokenizer.encode(f" {line}"), tokenizer.eos_id]
        assert b"".join(map(tokenizer.bytes_of, ids)) == f" {line}\n".encode()
