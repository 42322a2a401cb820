"""Pictures: they show the values they are given, keep any text as it is, and are the same file each time."""

import re
import struct

import matplotlib
import numpy as np
import pytest
from matplotlib import font_manager

from g2lstm.compression.curve import Found, Point
from g2lstm.compression.spec import Spec
from g2lstm.look import record_split
from g2lstm.look.examine import examine, write_gallery
from g2lstm.look.pictures.curve import Curve, Dot, Shrunk, draw_bits, draw_curve, draw_shrunk
from g2lstm.look.pictures.histograms import draw_histograms, draw_layers, draw_sigmoid
from g2lstm.look.pictures.sentence import MAX_WORDS, draw_attention, draw_timelines, draw_units, draw_words
from g2lstm.look.pictures.style import heat_colours, new_figure, save, styled, svg_element
from g2lstm.look.pictures.training import draw_learning
from g2lstm.page.palette import HEAT, THEME, css_variables
from g2lstm.tasks.reading import LayerReading, Reading

TEXT = "the cat costs $ 5 , a$^$b , \x1b 猫 <b>"


@pytest.fixture(scope="module")
def layers(language):
    return record_split(language, "valid").statistics.summary()


def texts(axes):
    return [text.get_text() for text in axes.texts]


def heights(axes):
    return np.array([bar.get_height() for bar in sorted(axes.patches, key=lambda bar: bar.get_x())])


def test_histograms_have_the_counts(layers):
    figure = draw_histograms({"one": layers, "two": layers[:1]}, "evaluation, soft gates")
    panels = np.array(figure.axes).reshape(2, 2)
    for row, gate in zip(panels, ("input", "forget"), strict=True):
        for axes, shown in zip(row, (layers, layers[:1]), strict=True):
            counts = np.sum([layer["gates"][gate]["counts"] for layer in shown], axis=0)
            np.testing.assert_allclose(heights(axes), 100 * counts.reshape(50, 2).sum(1) / counts.sum())
            below = round(100 * counts[:10].sum() / counts.sum())
            assert f"{below} % below 0.1" in texts(axes)[0]
    assert "evaluation, soft gates" in figure.get_suptitle()


def test_perplexity_against_bits():
    curves = [Curve("LSTM", [(2.0, [110.0, 112.0]), (4.0, [100.0])], [99.0]), Curve("G²", [(2.0, [105.0])], [])]
    (axes,) = draw_bits(curves, [Dot("others, 2018", 3.0, 107.0)]).axes
    first, second = axes.containers
    np.testing.assert_allclose(first.lines[0].get_xydata(), [[2, 111], [4, 100]])
    np.testing.assert_allclose(second.lines[0].get_xydata(), [[2, 105]])
    assert axes.get_legend_handles_labels()[1] == ["others, 2018", "LSTM", "G²"]
    assert axes.xaxis_inverted()


def test_the_curve_of_a_search():
    points = [Point(Spec.parse("int8"), 4000, 0.001, None), Point(Spec.parse("int2"), 1000, 0.02, 0.03)]
    (axes,) = draw_curve(Found(points[1], points, 16000)).axes
    expected, measured, chosen = (line.get_xydata().tolist() for line in axes.lines)
    assert expected == [[4, 0.1], [1, 2]]
    assert measured == chosen == [[1, 3]]


def test_models_are_drawn_before_and_after_compression():
    models = [Shrunk("a$b", (8.0, 1.0), (100.0, 100.6)), Shrunk("c", (8.0, 0.5), (101.0, 103.0))]
    figure = draw_shrunk(models, "perplexity")
    (axes,) = figure.axes
    lines = {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}
    for model in models:
        assert tuple(lines[model.label].get_xdata()) == model.megabytes
        assert tuple(lines[model.label].get_ydata()) == model.scores
    assert axes.get_xlim()[0] == 0
    low, high = axes.get_ylim()
    assert high - low > 20  # three percent do not fill the picture


def test_layers_have_the_counts(layers):
    figure = draw_layers({"one": layers}, "training")
    assert len(figure.axes) == 3 * len(layers)
    (stairs,) = figure.axes[4].patches
    counts = np.array(layers[1]["gates"]["forget"]["counts"])
    np.testing.assert_allclose(stairs.get_data().values, 100 * counts.reshape(50, 2).sum(1) / counts.sum())
    assert figure.axes[4].get_title() == "layer 2, forget gate"
    assert {axes.get_ylim() for axes in figure.axes[3:6]} == {figure.axes[3].get_ylim()}  # one scale


def test_the_sigmoid_has_the_shares(layers):
    figure = draw_sigmoid({"one": layers}, "evaluation")
    bars = [bar.get_width() for bar in figure.axes[1].patches]
    counts = np.sum([layer["gates"]["forget"]["counts"] for layer in layers], axis=0)
    expected = [100 * part.sum() / counts.sum() for part in (counts[:10], counts[10:90], counts[90:])]
    np.testing.assert_allclose(bars[3:], expected)


@pytest.fixture(scope="module")
def hard_layers(language):
    return record_split(language, "valid", eval_gate="hard").statistics.summary()


def test_binary_gates_have_a_scale_of_their_own_beside_others(layers, hard_layers):
    for runs, scales in (({"a": layers, "b": hard_layers}, 2), ({"a": layers, "b": layers[:1]}, 1)):
        axes = draw_histograms(runs, "evaluation").axes
        assert len({each.get_ylim() for each in axes[:2]}) == scales
        for each in axes:
            highest = max(bar.get_height() for bar in each.patches)
            assert each.get_ylim()[1] >= 1.1 * highest  # room for the words


def test_binary_gates_are_two_bars(layers, hard_layers):
    for figure, number in (
        (draw_histograms({"one": hard_layers}, "hard"), 1),
        (draw_layers({"one": hard_layers[:1], "two": hard_layers[:1]}, "hard"), 2),
    ):
        counts = np.sum([layer["gates"]["input"]["counts"] for layer in hard_layers[: 3 - number]], axis=0)
        closed, opened = 100 * counts[0] / counts.sum(), 100 * counts[-1] / counts.sum()
        bars = [bar for bar in figure.axes[0].patches if hasattr(bar, "get_width")]
        assert sorted(bar.get_height() for bar in bars) == pytest.approx(sorted([closed, opened] * number))
        assert all(bar.get_x() >= 0 and bar.get_x() + bar.get_width() <= 1.0001 for bar in bars)
        assert [text.split(" %")[0] for text in texts(figure.axes[0])] == [f"{closed:.0f}", f"{opened:.0f}"] * number
    both = draw_layers({"soft": layers, "hard": hard_layers}, "both")
    assert len(texts(both.axes[0])) == 2
    assert texts(both.axes[2]) == []  # the output gate is soft
    step = draw_sigmoid({"hard": hard_layers}, "hard")
    assert step.axes[0].get_ylabel() == "gate 1[a ≥ 0]"
    assert "σ" in draw_sigmoid({"soft": layers, "hard": hard_layers}, "both").axes[0].get_ylabel()


def filled(axes, rows, columns):
    """Which cells of rows of units have the colour of open gates."""
    is_open = np.zeros((rows, columns), bool)
    for path in axes.collections[1].get_paths():
        column, row = path.vertices[:-1].mean(0).round().astype(int)
        is_open[row, column] = True
    return is_open


def test_units_of_binary_gates_have_rows(language):
    reading = language.read(TEXT, eval_gate="hard")
    layer = reading.layers[0]
    axes = draw_units({"one": layer}, [reading.tokens["text"]], reading.mode).axes[0]
    units = [int(label.get_text()) for label in axes.get_yticklabels()]
    np.testing.assert_array_equal(filled(axes, len(units), len(layer.input)), layer.input[:, units].T == 1)
    never, always = ((layer.input == end).all(0).sum() for end in (0, 1))
    assert f"{len(units)} of 8 units; {never} stay closed, {always} stay open" in axes.get_title()
    assert len(units) + never + always == 8


def test_timelines_of_explained_units(language):
    counted = record_split(language, "train", explain=True)
    reading = language.read(TEXT)
    figure = draw_timelines({"one": reading, "two": reading}, "text", dict.fromkeys(("one", "two"), counted.explained))
    axes = figure.axes[1]
    one, row = counted.explained[0], filled(axes, len(counted.explained), len(reading.tokens["text"]))[0]
    layer = next(layer for layer in reading.layers if layer.name == one.name)
    np.testing.assert_array_equal(row, getattr(layer, one.gate)[:, one.unit] >= 0.5)
    assert axes.get_yticklabels()[0].get_text() == f"{one.title}, {one.gate[0]} {one.unit}: {one.feature}"
    assert [label.get_text() for label in axes.get_xticklabels()] == reading.tokens["text"]


def test_words_have_the_means_of_their_gates(language):
    reading = language.read(TEXT)
    figure = draw_words({"one": reading, "two": reading}, "text")
    first = figure.axes[0]
    shown = np.asarray(first.collections[0].get_array())
    expected = [gate.mean(1) for layer in reading.layers for gate in (layer.input, layer.forget)]
    np.testing.assert_array_equal(shown, np.stack(expected))
    assert [label.get_text() for label in first.get_xticklabels()] == reading.tokens["text"]
    assert texts(first)[0] == f"{shown[0, 0]:.2f}".removeprefix("0")
    assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == ["one", "two"]
    styles = [label.get_fontstyle() for label in first.get_xticklabels()]
    assert [place for place, style in enumerate(styles) if style == "italic"] == reading.unknown["text"] != []
    three = draw_words({"one": reading}, "text", ("input", "forget", "output")).axes[0]
    np.testing.assert_array_equal(np.asarray(three.collections[0].get_array())[2], reading.layers[0].output.mean(1))


def luminance(colour):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_attention_has_its_weights(translation):
    reading = translation.read("die katze lief .")
    figure = draw_attention({"one": reading, "other": reading})
    one, other, _ = figure.axes
    for axes in (one, other):
        assert np.array_equal(axes.collections[0].get_array(), reading.attention)
        assert [label.get_text() for label in axes.get_yticklabels()] == reading.produced
        assert [label.get_text() for label in axes.get_xticklabels()] == reading.tokens["source"]


def test_numbers_can_be_read_on_their_colours():
    from matplotlib.colors import to_rgb

    means = np.linspace(0, 1, 101, dtype=np.float32)
    layer = LayerReading("layers.0", "forward", "layer 1", *[means[:, None]] * 3)
    words = [str(k) for k in range(101)]
    figure = draw_words({"one": Reading({"text": words}, [layer], "evaluation", {"text": []})}, "text")
    seen = []
    for axes in figure.axes[:-1]:
        (cells,) = axes.collections
        for text, value in zip(axes.texts, np.asarray(cells.get_array()).flatten(), strict=True):
            lower, higher = sorted((luminance(to_rgb(text.get_color())), luminance(cells.to_rgba(value))))
            seen.append((higher + 0.05) / (lower + 0.05))
    assert len(seen) == 202
    assert min(seen) >= 4.5


def test_a_long_text_is_drawn_in_lines_and_cut(language):
    reading = language.read("the cat " * 100)
    figure = draw_words({"one": reading}, "text")
    panels = [np.asarray(axes.collections[0].get_array()) for axes in figure.axes if axes.get_title(loc="left")]
    joined = np.concatenate(panels, axis=1)
    assert joined.shape[1] == MAX_WORDS
    np.testing.assert_array_equal(joined[0], reading.layers[0].input[:MAX_WORDS].mean(1))
    assert f"the first {MAX_WORDS} tokens" in figure.get_suptitle()


def test_units_are_sorted_by_their_mean(translation):
    reading = translation.read("die katze lief .")
    layer = reading.layers[1]
    figure = draw_units({"one": layer}, [reading.tokens["source"]], reading.mode)
    shown = np.asarray(figure.axes[1].images[0].get_array())
    assert (np.diff(shown.mean(1)) >= 0).all()
    np.testing.assert_array_equal(np.sort(shown, axis=0), np.sort(layer.forget.T, axis=0))
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == reading.tokens["source"]


def test_colours_darken_steadily():
    greys = [np.dot(heat_colours()(k / 40)[:3], (0.3, 0.59, 0.11)) for k in range(41)]
    assert greys == sorted(greys, reverse=True)


def test_lines_can_be_seen_on_light_and_dark_pages():
    from matplotlib.colors import to_rgb

    for light, dark in [pair for name, pair in THEME.items() if name != "rule"]:
        assert 1.05 / (luminance(to_rgb(light)) + 0.05) >= 4.5
        assert (luminance(to_rgb(dark)) + 0.05) / (luminance(to_rgb("#14191f")) + 0.05) >= 4.5
    assert all(f"--{name}: light-dark({light}, {dark})" in css_variables() for name, (light, dark) in THEME.items())
    assert f"--heat: {' '.join(HEAT)}" in css_variables()


def test_learning_curves_leave_out_what_cannot_be_drawn():
    def line(kind, tokens, perplexity):
        return {"kind": kind, "tokens": tokens, "perplexity": perplexity}

    nan, infinite = float("nan"), float("inf")
    lines = [line("train", 1e4, 5e4), *(line(kind, k * 1e6, y) for kind in ("train", "valid")
             for k, y in enumerate([900.0, nan, 90.0, infinite, 80.0, -3.0]))]  # fmt: skip
    figure = draw_learning({"one $ run": lines, "other": []}, "perplexity")
    train, valid = figure.axes[0].lines
    assert train.get_alpha() < 0.5
    assert valid.get_xydata().tolist() == [[2, 90], [4, 80]]  # what was before 2 % of training is left out too
    assert valid.get_label() == "one $ run"
    assert figure.axes[0].get_yscale() == "log"
    ticks = [label for label in figure.axes[0].get_yticklabels() if 80 <= label.get_position()[1] <= 90]
    assert len(ticks) >= 2
    assert draw_learning({"one": lines[:1]}, "perplexity") is None
    assert draw_learning({"one": lines}, "bleu") is None


def test_a_picture_in_a_page_keeps_its_text_and_follows_the_theme(language):
    reading = language.read(TEXT)
    one, two = (svg_element(draw_words({"run": reading}, "text"), label) for label in ('a "label"', "another"))
    assert one.startswith('<svg role="img" aria-label="a &quot;label&quot;"')
    assert ">&lt;b&gt;</text>" in one
    assert "var(--ink)" in one
    assert not any(light in one for light, _ in THEME.values())
    assert "<image" not in one
    assert "<style" not in one
    ids = [set(re.findall(' id="([^"]*)"', each)) for each in (one, two)]
    assert ids[0]
    assert not ids[0] & ids[1]
    assert {
        used.lstrip("#") for used in re.findall(r'href="([^"]*)"|url\(#([^)]*)\)', one) for used in used if used
    } <= ids[0]


def overlapping(figure):
    """The pairs of words in a figure that cover each other; numbers along an axis and turned words left out."""
    figure.draw_without_rendering()
    renderer = figure._get_renderer()
    boxes = []
    for axes in figure.axes:
        found = [*axes.texts, axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label]
        found += [*axes.get_yticklabels()]
        boxes += [
            (text.get_text(), text.get_window_extent(renderer))
            for text in found
            if any(map(str.isalpha, text.get_text()))
        ]
    return [(a, b) for n, (a, one) in enumerate(boxes) for b, other in boxes[n + 1 :] if one.overlaps(other)]


def test_no_texts_overlap(layers, language, translation):
    runs = {"a-run-with-a-long-name": layers, "another-run-with-a-long-name": layers}
    for figure in (
        draw_histograms(runs, "evaluation"),
        draw_layers(runs, "evaluation"),
        draw_sigmoid(runs, "evaluation"),
    ):
        assert overlapping(figure) == []
    reading = translation.read("die katze lief .")
    assert overlapping(draw_words({"one": reading, "two": reading}, "source")) == []
    assert overlapping(draw_words({"one": language.read("the cat")}, "text")) == []


@pytest.mark.slow
def test_any_text_becomes_files(language, tmp_path):
    found = examine(language, "run", text=TEXT, split=None)
    names = {file.name for file in write_gallery(tmp_path, {"run with $ and $": found})}
    pictures = ["histograms", "layers", "sigmoid", "words", "units-layer-1", "units-layer-2"]
    assert names == {"gates.json", *(f"{name}.{ending}" for name in pictures for ending in ("png", "svg"))}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert "<b>" not in (tmp_path / "words.svg").read_text()


def test_the_same_picture_is_the_same_file(language, tmp_path):
    reading = language.read(TEXT)
    one, two = (save(draw_words({"run": reading}, "text"), tmp_path / name) for name in ("one", "two"))
    assert [file.read_bytes() for file in one] == [file.read_bytes() for file in two]


def test_a_png_is_large_enough_to_read(layers, tmp_path):
    png, svg = save(draw_histograms({"one": layers}, "evaluation"), tmp_path / "deep" / "picture.of.it")
    assert (png.name, svg.name) == ("picture.of.it.png", "picture.of.it.svg")
    width, height = struct.unpack(">II", png.read_bytes()[16:24])
    assert width >= 800
    assert height >= 800
    assert svg.read_text().startswith("<?xml")


def test_other_scripts_are_drawn_in_a_font_that_is_there(monkeypatch):
    monkeypatch.setattr(font_manager.fontManager, "get_font_names", lambda: ["Loma", "Noto Sans CJK JP", "cmb10"])
    with styled():
        assert matplotlib.rcParams["font.family"] == ["DejaVu Sans", "Noto Sans CJK JP", "Loma"]


@pytest.mark.parametrize(("title", "is_told"), [("plain", False), ("\ue000", True)])
def test_characters_without_a_font_are_told(tmp_path, caplog, title, is_told):
    with styled():
        figure = new_figure(2, 1)
        figure.subplots().set_title(title)
    assert [file.suffix for file in save(figure, tmp_path / "picture")] == [".png", ".svg"]
    assert ("drawn as boxes, since matplotlib knows no font that has them" in caplog.text) == is_told
