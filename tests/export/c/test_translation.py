"""Translation models in C: the same translations as in Python, and where each word looked."""

import ctypes
import re
from itertools import product

import numpy as np
import pytest

import g2lstm
from tests.export.c.build import SANITIZED, STRICT, compile_c, compiler, run_self_test
from tests.runs.toys import translation_run
from tests.runtime.test_sampling import NO_CHARACTER

SHIM = """
#include "{name}.h"
int size(void);
int size(void) {{ return (int)sizeof({name}_workspace); }}
double score(const {name}_workspace *w);
double score(const {name}_workspace *w) {{ return w->score; }}
"""


class Translator:
    """An export as a shared library."""

    def __init__(self, path, flags=("-O2",)):
        shim = path.with_name("shim.c")
        shim.write_text(SHIM.format(name=path.stem))
        built = compile_c(compiler(), [*STRICT, *flags, "-shared", "-fPIC"], [path, shim], path.with_suffix(".so"))
        self._library = ctypes.CDLL(str(built))
        self._library.score.restype = ctypes.c_double
        self.size = self._library.size()
        self._workspace, self._call = ctypes.create_string_buffer(self.size + 64), f"{path.stem}_translate"

    def translate(self, source, beam, penalty=1.0):
        """The tokens, their score and where each looked; None if the source is refused."""
        given, out, places = (
            (ctypes.c_int32 * max(len(source), 1))(*source),
            (ctypes.c_int32 * 400)(),
            (ctypes.c_int32 * 400)(),
        )
        translate = getattr(self._library, self._call)
        count = translate(self._workspace, given, len(source), beam, ctypes.c_double(penalty), out, places)
        return None if count < 0 else (out[:count], self._library.score(self._workspace), places[:count])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Weights large enough that the model prefers some words, and translations have different lengths."""
    model = g2lstm.load(translation_run(tmp_path_factory.mktemp("mt"), "model.layers=2", "model.residual=true"))
    for parameter in model.model.parameters():
        parameter.data.mul_(4)
    return model


def sources(trained, count, longest=9):
    rng = np.random.default_rng(0)
    return [rng.integers(len(trained.source), size=size).tolist() for size in rng.integers(1, longest, count)]


def test_translations_are_the_same(trained, tmp_path):
    made = g2lstm.export_c(trained, tmp_path / "toy.c")
    translator = Translator(made.files[1])
    assert abs(translator.size - made.sizes.state - made.sizes.scratch) <= 16
    lines = sources(trained, 40)
    lengths = set()
    for beam, penalty in ((1, 1.0), (2, 0.0), (5, 1.3)):
        found = trained._translate(lines, beam=beam, length_penalty=penalty, keep_attention=True)
        for line, [best] in zip(lines, found, strict=True):
            tokens, score, places = translator.translate(line, beam, penalty)
            assert tokens == best.tokens
            assert score == pytest.approx(best.score, rel=made.tolerance)
            assert places == best.attention[: len(tokens), : len(line)].argmax(axis=1).tolist()
            lengths.add(len(tokens))
    assert len(lengths) > 5
    assert translator.translate([], 1) == ([], 0.0, [])
    most, size = made.sizes, len(trained.source)
    for refused in ([size], [-1], [0] * 51):
        assert translator.translate(refused, 1) is None
    assert translator.translate([0], 0) is translator.translate([0], 6) is None
    assert most.source_macs > 0


def test_translations_are_whole_characters_where_words_are_made_of_pieces(tmp_path):
    words = translation_run(tmp_path / "words")
    assert g2lstm.load(words).c_search().forbidden == []
    pieces = translation_run(tmp_path / "pieces", "data.tokenizer=bpe", "data.vocabulary=300")
    trained = g2lstm.load(pieces)
    for parameter in trained.model.parameters():
        parameter.data.mul_(4)
    trained.model.softmax_bias.data[trained.target.eos_id] = 1  # the end is often likely, in the middle of characters
    made = g2lstm.export_c(trained, tmp_path / "pieces.c")
    assert f"return token != PIECES_END && token != {trained.target.unk_id};" in made.files[1].read_text()
    translator, search, texts = Translator(made.files[1]), trained.c_search(), ""
    assert abs(translator.size - made.sizes.state - made.sizes.scratch) <= 16
    for beam, line in product((1, 5), sources(trained, 15)):
        [[best]] = trained._translate([line], beam=beam, forbidden=search.forbidden, utf8=search.utf8)
        tokens, score, _ = translator.translate(line, beam)
        assert tokens == best.tokens
        assert score == pytest.approx(best.score, rel=made.tolerance)
        written = b"".join(map(trained.target.bytes_of, tokens))
        texts += "" if NO_CHARACTER.search(written) else written.decode()
    assert max(map(ord, texts)) > 0x7F


@pytest.mark.slow
def test_the_self_test_is_strict_and_can_fail(trained, tmp_path):
    small = g2lstm.load(trained.run.path)
    small.model = g2lstm.compress(trained.model, "small")
    made = g2lstm.export_c(small, tmp_path / "mt.c")
    said = run_self_test(made.files[1], [*STRICT, *SANITIZED])
    assert re.fullmatch(r"mt: 3 sources, largest difference \S+, \S+ allowed: passed\n", said)
    source = made.files[1].read_text()
    made.files[1].write_text(source.replace("mean[k] /= (float)s->count;", "mean[k] /= (float)count;"))
    assert made.files[1].read_text() != source
    with pytest.raises(AssertionError, match="FAILED"):
        run_self_test(made.files[1], ["-O1"])


def test_a_model_without_its_tokens_is_refused(trained, tmp_path):
    with pytest.raises(g2lstm.G2Error, match=r"needs the tokens that begin and end its sentences; export load\(run\)"):
        g2lstm.export_c(trained.model, tmp_path / "mt.c")
    assert not list(tmp_path.iterdir())
