"""The report: everything that is known of the runs, nothing from elsewhere, and text that stays text."""

import json
import re
import shutil
from html.parser import HTMLParser

import pytest

import g2lstm
from g2lstm.look.reading import read_sentence
from g2lstm.look.record import record_split
from g2lstm.look.report import write_report
from g2lstm.look.report_charts import (
    Series,
    dot_chart,
    heat_chart,
    histogram_chart,
    line_chart,
    log_ticks,
    nice_ticks,
)
from g2lstm.look.report_page import colour_of
from g2lstm.look.runs import SAMPLES
from g2lstm.recipes.files import recipe_hash
from g2lstm.runs.directory import RunDirectory
from tests.look.toys import language_run, translation_run

TEXT = "the cat sat <b>on</b> the mat ."
VOID = {"meta", "br", "circle", "line", "rect", "path", "polyline"}


class Page(HTMLParser):
    """Checks that elements are closed, and collects their text and the addresses that they name."""

    def __init__(self, text):
        super().__init__()
        self.open, self.texts, self.addresses, self.names = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.names.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href", "xlink:href", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        assert tag in VOID
        self.names.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("report")
        patch.setenv("G2LSTM_CACHE", str(folder / "cache"))
        yield [
            language_run(folder, "g2 & <i>co", method="gumbel"),
            language_run(folder, "lstm", method="sigmoid"),
            translation_run(folder, "mt"),
        ]


@pytest.fixture
def measured(runs):
    """The first run with all that may be measured of one; afterwards it is as it was."""
    run = RunDirectory(runs[0])
    before = set(run.path.rglob("*"))
    for step in range(5):
        line = {"step": step, "epoch": 0, "tokens": 1000 * step, "seconds": 6.0 * step, "perplexity": 900.0 - step}
        run.append_metrics({"kind": "train", **line})
        run.append_metrics({"kind": "valid", **line, "saturation/layers.0/forget": 0.1 * step})
        counts = {f"{gate}/{k}": 5 * (k == 3) for gate in ("input", "forget") for k in range(20)}
        run.append_metrics({"kind": "gates", **line, **counts})
    own = f"recipe:{recipe_hash(run.recipe)}|seed:1"
    for value, signature in ((85.854, own), (12.34, "recipe:0|seed:1")):
        run.add_result({"perplexity": value, "split": "test", "eval_gate": "hard", "signature": signature})
    gate = {"mean": 0.25, "below_0.1": 0.5, "above_0.9": 0.125, "counts": [50, *[0] * 98, 50]}
    write(run.path / "gates" / "gates.json", {
        "mode": "evaluation, soft gates", "data": {"split": "valid", "tokens": {"text": 1234}},
        "layers": [{"title": "layer 1", "gates": dict.fromkeys(("input", "forget", "output"), gate)}],
    })  # fmt: skip
    size = {"before": 4000, "after": 1000, "bits_per_weight": 8.0, "ratio": 4.0}
    point = {"spec": "gates=int8", "file": size, "rest": size, "groups": {"gates": size}, "bits_per_weight": 8.0}
    point |= {"score": {"metric": "perplexity", "split": "test", "before": 85.85, "after": 86.21}}
    point["speed"] = {"unit": "steps/s", "how": "one stream", "before": 100.0, "after": 250.0}
    write(run.path / "compression.json", point)
    write(run.path / "sweep" / "sweep.json", {
        "metric": "perplexity", "split": "test", "points": {"small": point, "tiny": {**point, "speed": None}},
        "before": {"bytes": 4000, "score": {"perplexity": 85.85}},
    })  # fmt: skip
    for file, spec, value in (("test", None, 85.85), ("a", "gates=svd:64", 99.5), ("b", "gates=svd:128", 88.0)):
        score = {"perplexity": value, "split": "test", "eval_gate": "soft", "cache": "500,0.2,0.1"}
        write(run.path / "measured" / f"{file}.json", {**score, "compressed": spec, "by_sentence": [[1.0, 2]]})
    write(run.path / "measured" / "training.json", {"epochs": 3.0})
    yield run
    for path in sorted(set(run.path.rglob("*")) - before, reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def write(path, values):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(values))


def report(runs, tmp_path, **options):
    out = tmp_path / "report.html"
    write_report(runs, out, **options)
    return out.read_text()


def test_all_that_is_known_is_told(runs, measured, tmp_path):
    text = report(runs, tmp_path, texts=[TEXT])
    page = Page(text)
    told = " ".join(page.texts)
    for fact in (
        "g2 & <i>co", "lstm", "gumbel", "sigmoid", "translation",  # settings
        "perplexity 85.85", "hard gates", f"recipe:{recipe_hash(measured.recipe)}|seed:1", "which are left out: 1.",
        "perplexity, validation", "layer 1, forget",
        "gates=int8", "86.21", "250.0", "2.50 ×", "4.0 ×", "tiny", "MB on disk",
        "perplexity on test, soft gates, with the cache; in brackets the change.", "88.00 (+2.15)", "99.50 (+13.65)",
        "Histograms of the gates over training time", "input gate",
        "evaluation, soft gates; valid, 1,234 text tokens", "12.5%", "forget",
        "<b>on</b>", "[model]",
    ):  # fmt: skip
        assert fact in told, fact
    assert "12.34" not in told
    assert (
        told.index("as trained", told.index("Score after")) < told.index("gates=svd:128") < told.index("gates=svd:64")
    )
    # perplexity, saturation, two over training time, sweep, and the histograms of one layer, of two and of five
    assert page.names.count("figure") == 13


def test_a_run_that_counted_no_gates_while_training_is_named(runs, measured, tmp_path):
    old = RunDirectory(shutil.copytree(runs[1], tmp_path / "old"))
    for step in range(2):
        line = {"step": step, "epoch": 0, "tokens": 1000 * step + 1, "seconds": 6.0, "perplexity": 900.0}
        old.append_metrics({"kind": "valid", **line})
    told = " ".join(Page(report([runs[0], old.path], tmp_path, texts=[])).texts)
    assert "Not counted while training: old." in told


def test_histograms_of_a_layer_have_one_scale(runs, measured, tmp_path):
    found = json.loads((runs[0] / "gates" / "gates.json").read_text())
    for gate in found["layers"][0]["gates"].values():
        gate["counts"] = [1] * 100
    write(runs[1] / "gates" / "gates.json", found)
    try:
        text = report(runs[:2], tmp_path, texts=[])
    finally:
        (runs[1] / "gates" / "gates.json").unlink()
    charts = [chart for chart in re.findall("<svg viewBox.*?</svg>", text) if "share of values" in chart]
    ticks = [re.findall(r'text-anchor="end">([^<]*)<', chart) for chart in charts]
    assert ticks == [["0", "20", "40"]] * 2


def test_it_needs_nothing_else_and_text_stays_text(runs, measured, tmp_path):
    text = report(runs, tmp_path, texts=[TEXT, "</table><script>alert(1)</script>"])
    page = Page(text)
    assert page.addresses == []
    assert not {"script", "link", "img", "iframe", "b", "i"} & set(page.names)
    assert "url(" not in text
    assert "@import" not in text
    assert "<script>alert(1)</script>" in "".join(page.texts)


def test_heat_maps_are_those_of_the_reading(runs, tmp_path):
    text = report([runs[0], runs[2]], tmp_path, texts=["the cat sat ."])
    shown = [float(value) for value in re.findall(r'<td style="[^"]*" title="([\d.]+)"', text)]
    expected = []
    for run in (runs[0], runs[2]):
        for layer in read_sentence(g2lstm.load(run), "the cat sat .").layers:
            for gate in ("input", "forget", "output"):
                expected += getattr(layer, gate).mean(1).tolist()
    assert sorted(shown) == pytest.approx(sorted(expected), abs=6e-5)  # a long sentence takes several lines


def test_sentences_come_from_the_validation_text(runs, tmp_path):
    text = report([runs[1]], tmp_path)
    assert "<h3>a dog saw the cat , which ran .</h3>" in text


def test_a_run_of_which_nothing_was_measured(runs, tmp_path):
    told = " ".join(Page(report([runs[1]], tmp_path, texts=[])).texts)
    assert "g2lstm eval RUN" in told
    trained = g2lstm.load(runs[1])
    counted = record_split(trained, "valid", samples=SAMPLES)
    mean = counted.statistics.summary()[1]["gates"]["forget"]["mean"]
    assert f"evaluation, soft gates; valid, {counted.data['tokens']['text']} text tokens" in told
    assert f"forget {mean:.3f}" in told
    assert "Compression" not in told


def test_without_its_text_a_run_has_no_histograms(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("g2lstm.look.runs.validation_file", lambda *_: None)
    assert "g2lstm gates RUN" in " ".join(Page(report([runs[1]], tmp_path, texts=[])).texts)


def test_half_of_the_pairs_are_not_counted(tmp_path):
    path = translation_run(tmp_path, "mt", layers=1)
    (tmp_path / "pairs" / "valid.en").unlink()
    assert "g2lstm gates RUN" in " ".join(Page(report([path], tmp_path, texts=[])).texts)


def test_saturations_have_one_scale(runs, tmp_path):
    paths = []
    for name, share in (("low", 0.1), ("high", 0.6)):
        run = RunDirectory(shutil.copytree(runs[1], tmp_path / name))
        for step in range(2):
            line = {"step": step, "epoch": 0, "tokens": 1000 * step, "seconds": 6.0, "perplexity": 900.0 - step}
            run.append_metrics({"kind": "valid", **line, "saturation/layers.0/forget": share * step})
        paths.append(run.path)
    text = report(paths, tmp_path, texts=[])
    charts = [chart for chart in re.findall("<svg viewBox.*?</svg>", text) if "% of values by million" in chart]
    assert [re.findall(r'text-anchor="end">([^<]*)<', chart) for chart in charts] == [["0", "20", "40", "60"]] * 2


def test_only_a_report_is_overwritten(runs, tmp_path):
    first = report([runs[1]], tmp_path, texts=[])
    assert report([runs[1]], tmp_path, texts=[]) == first
    mine = tmp_path / "mine.html"
    mine.write_text("<p>precious")
    with pytest.raises(g2lstm.G2Error, match="is not a report of ours"):
        write_report([runs[1]], mine)
    assert mine.read_text() == "<p>precious"
    with pytest.raises(g2lstm.G2Error, match="is a folder"):
        write_report([runs[1]], tmp_path)


@pytest.mark.parametrize("name", ["gates/gates.json", "compression.json", "sweep/sweep.json"])
@pytest.mark.parametrize("content", ["{", "[]", '{"layers": 3}', "null"])
def test_damaged_measurements_are_named(runs, measured, tmp_path, name, content):
    (runs[0] / name).write_text(content)
    with pytest.raises(g2lstm.G2Error, match=f"{re.escape(name)} is not as it was written"):
        report(runs[:1], tmp_path, texts=[])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["{", '{"split": "test"}', '{"split": 1, "perplexity": []}', "3"])
def test_damaged_scores_are_named(runs, measured, tmp_path, content):
    (runs[0] / "measured" / "a.json").write_text(content)
    with pytest.raises(g2lstm.G2Error, match="a.json is not as it was written"):
        report(runs[:1], tmp_path, texts=[])


def test_a_heat_map_has_the_shares():
    chart = heat_chart([[0, 100, 0, 0], [25, 25, 25, 25]], [0, 1, 2], x_title="x", y_title="y", top=100)
    cells = re.findall(r'<rect fill="(#\w+)" x="([\d.]+)" y="([\d.]+)"', chart)
    assert [colour for colour, _, _ in cells] == [colour_of(v)[0] for v in (0, 1, 0, 0, 0.5, 0.5, 0.5, 0.5)]
    assert float(cells[0][2]) > float(cells[1][2]) > float(cells[3][2])  # upwards
    assert float(cells[0][1]) < float(cells[4][1])


def test_what_is_no_run_is_refused(runs, tmp_path):
    with pytest.raises(g2lstm.G2Error, match="is not a run directory"):
        write_report([tmp_path], tmp_path / "report.html")
    with pytest.raises(g2lstm.G2Error, match="given twice"):
        write_report([runs[0], runs[0]], tmp_path / "report.html")


def test_ticks_are_round_and_inside():
    assert nice_ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert nice_ticks(3, 3) == [3]
    assert log_ticks(1, 1000) == [1, 10, 100, 1000]
    for low, high in ((84.9, 97.2), (0.003, 0.0041), (2, 40_000)):
        ticks = log_ticks(low, high)
        assert len(ticks) >= 2
        assert all(low <= tick <= high for tick in ticks)


def test_charts_leave_out_what_is_not_finite():
    nan, infinite = float("nan"), float("inf")
    chart = line_chart([Series("a", [1, 2, 3, 4], [nan, 5, infinite, 7])], x_title="x", y_title="y", is_log=True)
    points = re.search(r'points="([^"]*)"', chart)[1].split()
    assert len(points) == 2
    assert "nan" not in chart
    assert line_chart([Series("a", [], [])], x_title="x", y_title="y").count("<polyline") == 1


def test_a_histogram_is_drawn_in_shares():
    chart = histogram_chart({"input": [3, 1]}, x_title="gate", top=100)
    heights = [float(pair.split(",")[1]) for pair in re.search(r'points="([^"]*)"', chart)[1].split()]
    zero, whole = 170 - 40, 10 + (170 - 50) * 5 / 105  # the axis ends five per cent above the top
    assert heights == pytest.approx([zero + (whole - zero) * share for share in (0.75, 0.75, 0.25, 0.25)], abs=0.1)


def test_labels_of_dots_do_not_lie_upon_each_other():
    chart = dot_chart([Series("a", [1, 1, 5], [2, 2, 3], labels=["one", "two", "three"])], x_title="x", y_title="y")
    places = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="\w+">(?:one|two)<', chart)
    assert abs(float(places[0][1]) - float(places[1][1])) >= 12


@pytest.mark.parametrize("value", [0, 0.1, 0.33, 0.5, 0.62, 0.75, 1])
def test_numbers_can_be_read_upon_their_colours(value):
    def luminance(colour):
        digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        channels = [int(digits[k : k + 2], 16) / 255 for k in (0, 2, 4)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    lower, higher = sorted(map(luminance, colour_of(value)))
    assert (higher + 0.05) / (lower + 0.05) >= 4.5


def test_colours_darken_steadily():
    greys = [int(c[1:3], 16) * 0.3 + int(c[3:5], 16) * 0.59 + int(c[5:], 16) * 0.11 for c in
             (colour_of(k / 20)[0] for k in range(21))]  # fmt: skip
    assert greys == sorted(greys, reverse=True)
