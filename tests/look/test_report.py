"""The report: everything that is known of the runs, nothing from elsewhere, and text that stays text."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

import g2lstm
from g2lstm.look import record_split
from g2lstm.look.examine import SAMPLES
from g2lstm.look.pictures.sentence import draw_attention, draw_words
from g2lstm.look.pictures.style import GATE_NAMES, svg_element
from g2lstm.look.report import write_report
from g2lstm.recipes.files import recipe_hash
from g2lstm.runs.directory import RunDirectory
from tests.look.toys import language_run, translation_run

TEXT = "the cat sat <b>on</b> the mat ."
EVIL = "</table><script>alert(1)</script>"
VOID = {"meta", "br", "rect", "path", "use"}


class Page(HTMLParser):
    """Checks that elements are closed, and collects their text and the addresses that they name."""

    def __init__(self, text):
        super().__init__()
        self.open, self.texts, self.addresses, self.names = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self._note(tag, attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        assert tag in VOID or "svg" in self.open
        self._note(tag, attributes)

    def _note(self, tag, attributes):
        self.names.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href", "xlink:href", "action")]

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
            translation_run(folder, "mt", layers=1),
        ]


@pytest.fixture
def measured(runs):
    """The first run with all that may be measured of one; afterwards it is as it was."""
    run = RunDirectory(runs[0])
    before = set(run.path.rglob("*"))
    for step in range(5):
        line = {"step": step, "epoch": 0, "tokens": 1000 * step, "seconds": 6.0 * step, "perplexity": 900.0 - step}
        run.append_metrics({"kind": "train", **line})
        run.append_metrics({"kind": "valid", **line})
        counts = {f"{gate}/{k}": 5 * (k == 3) for gate in ("input", "forget") for k in range(20)}
        run.append_metrics({"kind": "gates", **line, **counts})
    own = recipe_hash(run.recipe)
    for value, recipe in ((85.854, own), (12.34, "0")):
        score = {"perplexity": value, "split": "test", "eval_gate": "hard"}
        run.add_result({**score, "recipe": recipe, "signature": f"recipe:{recipe}|seed:1"})
    gate = {"mean": 0.25, "below_0.1": 0.5, "above_0.9": 0.125, "counts": [50, *[0] * 98, 50], "values": 100}
    gate |= {"entropy_bits": 1.0, "distance_to_nearer_end": 0.0}
    write(run.path / "gates" / "gates.json", {
        "mode": "evaluation, soft gates", "data": {"split": "valid", "tokens": {"text": 1234}},
        "layers": [{"name": "layers.0", "direction": "forward", "title": "layer 1",
                    "gates": dict.fromkeys(("input", "forget", "output"), gate)}],
    })  # fmt: skip
    size = {"before": 4000, "after": 1000, "bits_per_weight": 8.0, "ratio": 4.0}
    point = {"spec": "gates=int8", "file": size, "rest": size, "groups": {"gates": size}, "bits_per_weight": 8.0}
    point |= {"score": {"metric": "perplexity", "split": "test", "before": 85.85, "after": 86.21}}
    point["speed"] = {"unit": "steps/s", "how": "one stream", "before": 100.0, "after": 250.0}
    write(run.path / "compression.json", point)
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
    text = report(runs, tmp_path, texts=[EVIL])
    page = Page(text)
    told = " ".join(page.texts)
    for fact in (
        "g2 & <i>co", "lstm", "gumbel", "sigmoid", "translation",  # settings
        "perplexity 85.85", "hard gates", f"recipe:{recipe_hash(measured.recipe)}|seed:1", "left out: 1.",
        "perplexity, validation", "layer 1",
        "gates=int8", "86.21", "250.0", "2.50 ×",
        "Histograms of the gates over training time", "input gate",
        "evaluation, soft gates; valid, 1,234 text tokens", "12.5%", "forget",
        "[model]",
    ):  # fmt: skip
        assert fact in told, fact
    assert "12.34" not in told
    shown = re.findall('<svg role="img" aria-label="([^":]*)', text)
    assert shown == [
        "perplexity over training time", "histograms over training time",
        *["histograms of the gates"] * 3,
        *(f"{what} at each token of the {side}" for side in ("text", "source", "target")
          for what in ("gates", "units")),
        "attention",
        "perplexity on test against size",
    ]  # fmt: skip
    # What matters most comes first, then pictures, and what only experts read last.
    sentence = "g2 &amp; &lt;i&gt;co has a perplexity of 86.21 on the test text."
    first, last = text.index("<figure>"), text.rindex("</figure>")
    assert text.index("<table>") < text.index(sentence) < first
    assert last < text.index("<h2>Scores</h2>") < text.index("|seed:1") < text.index("[model]")
    # It needs nothing else, and text stays text.
    assert all(address.startswith("#") for address in page.addresses)
    assert not {"script", "link", "img", "image", "iframe", "b", "i"} & set(page.names)
    assert text.count("url(") == text.count("url(#")
    assert "@import" not in text
    assert EVIL in page.texts


@pytest.mark.usefixtures("no_drawing")
def test_a_run_that_counted_no_gates_while_training_is_named(runs, measured, tmp_path):
    old = RunDirectory(shutil.copytree(runs[1], tmp_path / "old"))
    for step in range(2):
        line = {"step": step, "epoch": 0, "tokens": 1000 * step + 1, "seconds": 6.0, "perplexity": 900.0}
        old.append_metrics({"kind": "valid", **line})
    told = " ".join(Page(report([runs[0], old.path], tmp_path, texts=[])).texts)
    assert "Not counted while training: old." in told


@pytest.mark.usefixtures("no_drawing")
def test_runs_with_the_same_layers_share_a_picture(runs, tmp_path):
    paths = []
    for name in ("low", "high"):
        run = RunDirectory(shutil.copytree(runs[1], tmp_path / name))
        for step in range(3):
            line = {"step": step, "epoch": 0, "tokens": 1000 * step, "seconds": 6.0, "perplexity": 900.0 - step}
            run.append_metrics({"kind": "valid", **line})
        paths.append(run.path)
    text = report(paths, tmp_path, texts=[])
    for what in ("perplexity over training time", "histograms of the gates"):
        assert f'aria-label="{what}: low, high"' in text


def test_runs_with_other_tokens_have_axes_of_their_own(runs, tmp_path):
    paths = []
    for name in ("words", "more-words", "other"):
        run = RunDirectory(shutil.copytree(runs[1], tmp_path / name))
        for step in range(3):
            line = {"step": step, "epoch": 0, "tokens": 1000 * step, "seconds": 6.0, "perplexity": 900.0 - step}
            run.append_metrics({"kind": "valid", **line})
        paths.append(run.path)
    tokenizer = paths[2] / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"mat"', '"rug"'))
    text = report(paths, tmp_path, texts=[])
    assert 'aria-label="perplexity over training time: words, more-words"' in text
    assert 'aria-label="perplexity over training time: other"' in text


def test_heat_maps_are_those_of_the_reading(runs, tmp_path):
    text = report(runs[:2], tmp_path, texts=[TEXT])
    readings = {path.name: g2lstm.load(path).read(TEXT) for path in runs[:2]}
    label = f"gates at each token of the text: {', '.join(readings)}; {TEXT}"
    assert svg_element(draw_words(readings, "text", tuple(GATE_NAMES)), label) in text


def test_attention_is_that_of_the_reading(runs, tmp_path):
    line = "die katze lief ."
    text = report([runs[2]], tmp_path, texts=[line])
    readings = {runs[2].name: g2lstm.load(runs[2]).read(line)}
    assert svg_element(draw_attention(readings), f"attention: {runs[2].name}; {line}") in text


@pytest.mark.usefixtures("no_drawing")
def test_sentences_come_from_the_validation_text(runs, tmp_path):
    text = report([runs[1]], tmp_path)
    assert "<h3>a dog saw the cat , which ran .</h3>" in text


@pytest.mark.usefixtures("no_drawing")
def test_a_run_of_which_nothing_was_measured(runs, tmp_path):
    told = " ".join(Page(report([runs[1]], tmp_path, texts=[])).texts)
    assert "g2lstm eval RUN" in told
    trained = g2lstm.load(runs[1])
    counted = record_split(trained, "valid", samples=SAMPLES)
    mean = counted.statistics.summary()[1]["gates"]["forget"]["mean"]
    assert f"evaluation, soft gates; valid, {counted.data['tokens']['text']} text tokens" in told
    assert f"layer 2 forget lstm {mean:.3f}" in told
    assert "Compression" not in told
    first = record_split(trained, "valid", samples=SAMPLES, explain=True).explained[0]
    assert f"{first.title} {first.gate} {first.unit} {first.feature} {first.open_with:.0%}" in told


def test_without_its_text_a_run_has_no_histograms(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("g2lstm.look.examine.validation_files", lambda *_: [Path("missing")])
    assert "g2lstm gates RUN" in " ".join(Page(report([runs[1]], tmp_path, texts=[])).texts)


@pytest.mark.usefixtures("no_drawing")
def test_half_of_the_pairs_are_not_counted(tmp_path):
    path = translation_run(tmp_path, "mt", layers=1)
    (tmp_path / "pairs" / "valid.en").unlink()
    assert "g2lstm gates RUN" in " ".join(Page(report([path], tmp_path, texts=[])).texts)


@pytest.mark.usefixtures("no_drawing")
def test_only_a_report_is_overwritten(runs, tmp_path):
    first = report([runs[1]], tmp_path, texts=[])
    assert report([runs[1]], tmp_path, texts=[]) == first
    mine = tmp_path / "mine.html"
    mine.write_text("<p>precious")
    with pytest.raises(g2lstm.G2Error, match="is not one of our reports"):
        write_report([runs[1]], mine)
    assert mine.read_text() == "<p>precious"
    with pytest.raises(g2lstm.G2Error, match="is a folder"):
        write_report([runs[1]], tmp_path)


@pytest.mark.parametrize("name", ["gates/gates.json", "compression.json"])
@pytest.mark.parametrize("content", ["{", "[]", '{"layers": 3}', "null", '{"spec": "\\ud800"}', "[" * 10_000])
def test_damaged_measurements_are_named(runs, measured, tmp_path, name, content):
    (runs[0] / name).write_text(content)
    with pytest.raises(g2lstm.G2Error, match=f"{re.escape(name)} is damaged"):
        report(runs[:1], tmp_path, texts=[])
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_run_is_refused(runs, tmp_path):
    with pytest.raises(g2lstm.G2Error, match="is not a run directory"):
        write_report([tmp_path], tmp_path / "report.html")
    with pytest.raises(g2lstm.G2Error, match="given twice"):
        write_report([runs[0], runs[0]], tmp_path / "report.html")
