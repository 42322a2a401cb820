"""Translation through the command line, end to end, and its errors."""

import io
import itertools
import json
import os
import random
import shlex
import shutil
import signal
import sys
import unicodedata
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import g2lstm
from g2lstm.cli.main import main
from g2lstm.cli.progress import TrainingBar
from g2lstm.cli.translate import _groups
from g2lstm.tasks.mt.trained import TrainedTranslationModel
from tests.cli.command import run

NOUNS = {"die frau": "the woman", "der mann": "the man", "das kind": "the child", "der hund": "the dog"}
VERBS = {"schläft": "sleeps", "liest": "reads", "singt": "sings", "lacht": "laughs"}
TOY = [
    "data.name=", "model.embedding=32", "model.hidden=32", "model.layers=1", "train.minutes=", "train.epochs=30",
    "train.batch_size=16", "train.optimizer.lr=1e-2",
]  # fmt: skip


def write_pairs(folder):
    """Every sentence of a tiny grammar, in random order: 200 to train on, 20 to validate with, 52 to test with."""
    pairs = [(f"{noun} {verb} .", f"{NOUNS[noun]} {VERBS[verb]} .") for noun in NOUNS for verb in VERBS]
    for one, reads, sleeps, other in itertools.product(NOUNS, VERBS, VERBS, NOUNS):
        english = f"because {NOUNS[one]} {VERBS[reads]} , {NOUNS[other]} {VERBS[sleeps]} ."
        pairs.append((f"weil {one} {reads} , {sleeps} {other} .", english))
    random.Random(0).shuffle(pairs)
    folder.mkdir()
    for split, part in (("train", pairs[:200]), ("valid", pairs[200:220]), ("test", pairs[220:])):
        for side, ending in enumerate(("de", "en")):
            (folder / f"{split}.{ending}").write_text("".join(pair[side] + "\n" for pair in part))
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Interrupted after its first epoch, then resumed."""
    folder = tmp_path_factory.mktemp("runs")
    sets = [*TOY, f"data.path={write_pairs(folder / 'pairs')}"]
    command = ["train", "embedded-mt", *(word for each in sets for word in ("--set", each)), "--out", folder / "toy"]
    on_validation = TrainingBar.on_validation

    def interrupt(self, progress, validation, is_best):
        on_validation(self, progress, validation, is_best)
        if progress.epoch == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("G2LSTM_CACHE", str(folder / "cache"))
        patch.setattr(TrainingBar, "on_validation", interrupt)
        stopped = run(*command)
        assert stopped.returncode == 130
        assert "--resume" in stopped.stderr
        patch.setattr(TrainingBar, "on_validation", on_validation)
        done = run(*command, "--resume")
        assert done.returncode == 0, done.stderr
        assert "continuing from step" in done.stderr
        yield folder / "toy"


def test_a_run_has_its_files(trained):
    names = {path.name for path in trained.iterdir()}
    assert {"recipe.toml", "tokenizer.source.json", "tokenizer.target.json", "model.safetensors"} <= names


def test_held_out_pairs_are_translated(trained):
    done = run("eval", trained, "--split", "test", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["bleu"] > 90
    assert result["sentences"] == 52
    assert result["eval_gate"] == "soft"
    assert "|tok:none|" in result["bleu_signature"]
    assert "beam:5" in result["signature"]
    assert json.loads((trained / "result.json").read_text())["scores"] == [result]
    greedy = run("eval", trained, "--split", "test", "--beam", "1")
    assert "BLEU" in greedy.stdout
    assert "chrF2" in greedy.stdout


def test_translate(trained):
    german = "die frau schläft .\n\nweil der mann liest , schläft die frau .\n"
    done = run("translate", trained, "--beam", "3", standard_input=german)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.split("\n")
    assert lines[0] == "the woman sleeps ."
    assert lines[1] == ""
    assert lines[2] == "because the man reads , the woman sleeps ."
    best = run("translate", trained, "--n-best", "2", "--detokenize", standard_input=german)
    rows = [line.split("\t") for line in best.stdout.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "3", "3"]
    assert rows[0][2] == "the woman sleeps."
    assert float(rows[0][1]) > float(rows[1][1])


def test_attention_and_json(trained):
    shown = run("translate", trained, "--attention", standard_input="die frau schläft .\n").stdout.splitlines()
    assert shown[0] == "the woman sleeps ."
    assert [line.split()[0] for line in shown[1:]] == ["the", "woman", "sleeps", ".", "<eos>"]
    done = run("translate", trained, "--attention", "--json", standard_input="die frau schläft .\n")
    result = json.loads(done.stdout)
    assert result["text"] == "the woman sleeps ."
    assert result["rank"] == 1
    assert result["source"] == ["die", "frau", "schläft", ".", "<eos>"]
    assert all(sum(row) == pytest.approx(1, abs=1e-2) for row in result["attention"])


def test_options_reach_the_search(trained):
    """The mark of byte order before the first line is no word."""
    options = ["--json", "--n-best", "2", "--length-penalty", "0"]
    done = run("translate", trained, *options, standard_input="\ufeffdie frau schläft .\n")
    best, second = map(json.loads, done.stdout.splitlines())
    assert (best["text"], best["rank"], second["rank"]) == ("the woman sleeps .", 1, 2)
    assert best["score"] == best["log_probability"] > second["score"]
    cut = run("translate", trained, "--max-length", "2", "--beam", "1", standard_input="die frau schläft .\n")
    assert cut.stdout == "the woman\n"
    short = run("translate", trained, "--max-source", "2", standard_input="die frau schläft .\n")
    assert short.returncode == 2
    assert "line 1 has 4 tokens, more than max_source, which is 2" in short.stderr
    assert "line 1 was cut off after 2 target tokens; raise --max-length" in cut.stderr
    long = run("translate", trained, "--min-length", "9", standard_input="die frau schläft .\n")
    assert len(long.stdout.split()) >= 9
    many = run("translate", trained, "--max-source", "2000", "--max-length", "2", standard_input="die " * 1200)
    assert many.returncode == 0, many.stderr
    wrong = run("translate", trained, "--min-length", "9", "--max-length", "2", standard_input="die frau schläft .\n")
    assert "min_length is 9, more than max_length, which is 2" in wrong.stderr
    for option in ("--min-length", "--max-length"):  # neither runs for ages nor overflows
        huge = run("translate", trained, option, "9" * 20, standard_input="die frau schläft .\n")
        assert (huge.returncode, "Traceback" in huge.stderr) == (2, False)


def test_given_translations_are_scored(trained, tmp_path):
    """As the search scores its own."""
    source, target = tmp_path / "in", tmp_path / "out"
    german = "die frau schläft .\nweil der mann liest , schläft die frau .\n"
    best = [*map(json.loads, run("translate", trained, "--json", standard_input=german).stdout.splitlines())]
    source.write_text(german * 2)
    target.write_text("".join(f"{one['text']}\n" for one in best) + "the dog laughs .\na\n")
    done = run("score", trained, source, target)
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [int(row[1]) for row in rows[:3]] == [5, 10, 5]
    for row, one in zip(rows, best, strict=False):
        assert float(row[0]) == pytest.approx(one["log_probability"], abs=1e-3)
    assert float(rows[2][0]) < float(rows[0][0])
    assert "perplexity" in done.stderr
    assert json.loads(run("score", trained, source, target, "--json").stdout.splitlines()[3])["line"] == 4
    target.write_text("one line\n")
    assert "they must have the same number" in run("score", trained, source, target).stderr


def test_any_test_set(trained, tmp_path):
    before = (trained / "result.json").read_bytes() if (trained / "result.json").exists() else None
    source, reference, saved = (tmp_path / name for name in ("in.de", "in.en", "saved.en"))
    source.write_text("die frau schläft .\nder hund liest .\n")
    reference.write_text("the woman sleeps .\nthe dog sings .\n")
    command = ["eval", trained, "--source", source, "--reference", reference, "--save", saved]
    done = run(*command, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["split"], result["sentences"]) == ("given", 2)
    assert result["data"].startswith("own/")
    assert 0 < result["bleu"] < 100
    assert saved.read_text() == "the woman sleeps .\nthe dog reads .\n"
    assert f"on {source}" in run(*command).stdout
    after = (trained / "result.json").read_bytes() if (trained / "result.json").exists() else None
    assert after == before
    assert "needs both --source and --reference" in run("eval", trained, "--source", source).stderr


def test_runs_are_compared(trained, tmp_path):
    """With itself, with one that has lost some weights, and on too few sentences."""
    worse = shutil.copytree(trained, tmp_path / "worse")
    weights = load_file(worse / "model.safetensors")
    noise = torch.randn(weights["output.weight"].shape, generator=torch.Generator().manual_seed(0))
    weights["output.weight"] += 3 * noise
    with safe_open(worse / "model.safetensors", "pt") as file:
        save_file(weights, worse / "model.safetensors", file.metadata())
    files = ["--source", trained.parent / "pairs/test.de", "--reference", trained.parent / "pairs/test.en"]
    done = run("eval", trained, *files, "--against", trained, "--against", worse, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    same, other = result["against"]
    assert (same["difference"], same["low"], same["high"], same["p_value"]) == (0, 0, 0, 1)
    assert same["bleu"] == result["bleu"] == other["bleu"] + other["difference"]
    assert 0 < other["low"] < other["difference"] < other["high"]
    assert other["p_value"] < 0.05
    assert "by_sentence" not in result
    told = run("eval", trained, *files, "--against", worse).stdout
    assert f"{worse}: BLEU {other['bleu']:.2f}; {trained} differs by {other['difference']:+.2f}, 95 % interval" in told
    for file in files[1::2]:
        (tmp_path / file.name).write_text("".join(file.read_text().splitlines(keepends=True)[:5]))
    few = ["--source", tmp_path / "test.de", "--reference", tmp_path / "test.en"]
    assert (
        "5 sentences are too few to rule out chance; use at least 20"
        in run("eval", trained, *few, "--against", worse).stdout
    )
    assert "is not a run directory" in run("eval", trained, *few, "--against", tmp_path / "no").stderr
    told = run("eval", trained, "--against", Path(__file__).parents[2] / "models" / "wikitext-2").stderr
    assert "is a translation model, but" in told
    assert "is a language model; compare runs of the same kind" in told


def test_how_spaces_and_accents_are_written_changes_no_score(trained, tmp_path):
    sources = (trained.parent / "pairs/test.de").read_text()
    ways = {
        "as they are": sources,
        "doubled spaces": sources.replace(" ", "  "),
        "tabs": sources.replace(" ", "\t"),
        "no-break spaces": sources.replace(" ", "\u00a0"),
        "NFD": unicodedata.normalize("NFD", sources),
    }
    assert len(set(ways.values())) == 5
    source, found = tmp_path / "test.de", {}
    for way, text in ways.items():
        source.write_text(text)
        reference = trained.parent / "pairs/test.en"
        done = run("eval", trained, "--source", source, "--reference", reference, "--save", tmp_path / "out", "--json")
        found[way] = json.loads(done.stdout)["bleu"], (tmp_path / "out").read_text()
    assert found == dict.fromkeys(ways, found["as they are"])
    assert found["tabs"][0] > 20


def test_scores_and_alignments(trained):
    done = run("translate", trained, "--scores", "--alignments", standard_input="die frau schläft .\n\n")
    first, second = (line.split("\t") for line in done.stdout.splitlines())
    assert first[1] == "the woman sleeps ."
    assert float(first[0]) < 0
    pairs = [tuple(map(int, pair.split("-"))) for pair in first[2].split()]
    assert [target for _, target in sorted(pairs, key=lambda pair: pair[1])] == [0, 1, 2, 3]
    assert all(source in range(4) for source, _ in pairs)
    assert second == ["0.0000", "", ""]


def test_translations_are_drawn(trained):
    line = "weil die frau liest , lacht der hund .\n"
    command = ["translate", trained, "--sample", "--temperature", "2", "--n-best", "5"]
    few = run(*command, "--seed", "3", standard_input=line).stdout
    many = run(*command, "--seed", "3", standard_input="der mann singt .\n" * 20 + line).stdout  # with torch
    texts = [out.split("\t")[2] for out in few.splitlines()]
    assert texts == [out.split("\t")[2] for out in many.splitlines()[-5:]]
    assert len(set(texts)) > 1
    assert run(*command, standard_input=line).stdout != run(*command, standard_input=line).stdout
    greedy = run("translate", trained, "--sample", "--temperature", "0", standard_input=line).stdout
    assert greedy == run("translate", trained, "--beam", "1", standard_input=line).stdout
    wrong = run("translate", trained, "--seed", "3", standard_input=line)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "--temperature and --seed are for drawing at random; add --sample" in wrong.stderr


@pytest.mark.slow
def test_a_student_learns_from_its_teacher(trained, tmp_path, monkeypatch):
    """Interrupted while its teacher translates, and continued with the command that it is told."""
    monkeypatch.setenv("G2LSTM_CACHE", str(trained.parent / "cache"))
    monkeypatch.setattr("g2lstm.training.distill._AT_ONCE", 90)
    sets = [one for one in TOY if not one.startswith("data.")]
    sets = [word for each in [*sets, "model.hidden=24", "model.method=sigmoid"] for word in ("--set", each)]
    command = ["distill", trained, "--student", "embedded-mt", "--out", tmp_path / "student", *sets]
    texts = tmp_path / "student-data"

    search = TrainedTranslationModel.search
    calls = []

    def interrupt(self, lines, **options):
        calls.append(len(lines))
        if len(calls) == 2:
            raise KeyboardInterrupt
        found = search(self, lines, **options)
        return [[best[0]._replace(text=f"{best[0].text} !")] for best in found]  # unlike the references

    with monkeypatch.context() as patch:
        patch.setattr(TrainedTranslationModel, "search", interrupt)
        stopped = run(*command)
    assert stopped.returncode == 130
    assert "translating: 90 of 200 lines are done" in stopped.stderr
    assert not (texts / "train.en").exists()
    with (texts / "train.part").open("a") as part:
        part.write("half a li")  # as a crash would leave it
    again = shlex.split(stopped.stderr.rpartition("continue with: g2lstm ")[2])
    done = run(*again)
    assert done.returncode == 0, done.stderr
    assert "translating: 180 of 200" in done.stderr
    assert "best validation BLEU" in done.stdout

    teacher, student = g2lstm.load(trained), g2lstm.load(tmp_path / "student")
    sources = teacher.split("train")[0]
    texts = [best[0].text for best in teacher.search(sources)]
    assert student.split("train") == (sources, [f"{text} !" for text in texts[:90]] + texts[90:])
    assert student.split("test") == teacher.split("test")
    assert student.recipe.model.hidden == 24
    assert json.loads(run("eval", tmp_path / "student", "--split", "test", "--json").stdout)["bleu"] > 20

    assert "already holds a run" in run(*command).stderr
    assert "another teacher, beam or text" in run(*again, "--beam", "2").stderr


def test_bad_teachers_and_students(trained, tmp_path):
    command = ["distill", trained, "--out", tmp_path / "student", "--student"]
    assert "for task 'lm'; distillation needs one for 'mt'" in run(*command, "embedded").stderr
    assert "there is no recipe 'nobody'" in run(*command, "nobody").stderr
    assert "is not a run directory" in run("distill", tmp_path / "no", *command[2:], "embedded-mt").stderr
    (tmp_path / "student-data").mkdir()
    assert "student-data exists; continue with --resume" in run(*command, "embedded-mt").stderr
    (tmp_path / "student-data/other").touch()
    assert "is in use; choose another --out" in run(*command, "embedded-mt", "--resume").stderr
    (tmp_path / "student-data/distilled.json").write_bytes(b"\xff{")
    assert "holds translations by another teacher" in run(*command, "embedded-mt", "--resume").stderr
    assert not (tmp_path / "student").exists()
    beside = trained.with_name("toy-student-data")
    beside.mkdir()
    assert f"{beside} exists" in run("distill", trained, "--student", "embedded-mt").stderr
    beside.rmdir()


def test_a_reader_that_has_had_enough_is_no_error(trained, monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    given = io.TextIOWrapper(io.BytesIO(b"die frau .\n"))
    with os.fdopen(writing, "w") as stdout, monkeypatch.context() as patch:  # closing it must not fail either
        patch.setattr(sys, "argv", ["g2lstm", "translate", str(trained)])
        patch.setattr(sys, "stdin", given)
        patch.setattr(sys, "stdout", stdout)
        with pytest.raises(SystemExit) as end:
            main()
    assert end.value.code == 0


def test_from_python(trained):
    model = g2lstm.load(trained)
    assert model.translate("die frau schläft .\ndie frau schläft .") == "the woman sleeps .\nthe woman sleeps ."
    drawn = {model.translate("die frau schläft .", sample=True, temperature=3.0, seed=seed) for seed in range(9)}
    assert len(drawn) > 1
    unknown = model.translate("die frau xylophon schläft .")
    assert "<unk>" not in unknown
    with pytest.raises(g2lstm.G2Error, match=r"text must be a str, got list; for a list of lines, use search\(lines\)"):
        model.translate(["die frau schläft ."])
    with pytest.raises(g2lstm.G2Error, match="lines must be a list of sentences, got int"):
        model.search(3)
    with pytest.raises(g2lstm.G2Error, match="each line must be a str, got int"):
        model.search(["die frau schläft .", 3])
    with pytest.raises(AttributeError, match="a translation model has no 'generate'; it has translate and search"):
        model.generate("the")


@pytest.fixture
def folder(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.de").write_text("ein haus\n" * 50)
        (tmp_path / f"{split}.en").write_text("a house\n" * 50)
    return tmp_path


def own(folder, *more):
    sets = ["data.name=", f"data.path={folder}", "train.epochs=1", "train.minutes="]
    return [
        "train",
        "embedded-mt",
        *(part for each in sets for part in ("--set", each)),
        "--out",
        folder / "run",
        *more,
    ]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("train.en", b"a house\n" * 49, "has 50 lines, but"),
        ("train.en", b"", "contains no text"),
        ("train.de", b"gr\xfc\xdfe\n" * 50, "is not UTF-8 text: byte 0xfc"),
        ("valid.de", None, "lacks valid.de"),
    ],
)
def test_bad_files(folder, file, content, message):
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content)
    done = run(*own(folder))
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (folder / "run" / "recipe.toml").exists()


def test_a_folder_of_pairs_is_enough(tmp_path):
    """Without valid and test, without a recipe."""
    pairs = write_pairs(tmp_path / "pairs")
    for file in [*pairs.glob("valid.*"), *pairs.glob("test.*")]:
        file.unlink()
    cache = str(tmp_path / "cache")
    toy = ["--set", "train.epochs=1"]
    done = run("train", pairs, *toy, "--out", tmp_path / "run", G2LSTM_CACHE=cache)
    assert done.returncode == 0, done.stderr
    assert run("eval", tmp_path / "run", "--split", "test", G2LSTM_CACHE=cache).returncode == 0
    written = run("init", "de", "en", pairs, "--out", tmp_path / "my.toml", G2LSTM_CACHE=cache)
    assert written.returncode == 0, written.stderr
    assert written.stdout.startswith("de to en: 180 pairs to train on, tokenised text, ")
    assert "\nheld out from the training text: 10 pairs for valid, 10 pairs for test\n" in written.stdout
    assert f"the folder comes last: `g2lstm init de en {pairs}`" in run("init", pairs, "de", "en").stderr
    again = run("train", tmp_path / "my.toml", *toy, "--out", tmp_path / "run", "--resume", G2LSTM_CACHE=cache)
    assert again.returncode == 0, again.stderr  # the same recipe
    assert "give a text, or two languages and a folder" in run("init", "de", pairs).stderr


def test_init_says_how_bleu_reads_chinese(folder):
    for split in ("train", "valid", "test"):
        (folder / f"{split}.zh").write_text("我有一所房子。\n" * 50)
    done = run("init", "en", "zh", folder, "--out", folder / "my.toml")
    assert "\nBLEU counts what sacreBLEU's tokenizer 'zh' makes of the text" in done.stdout
    assert "held out" not in done.stdout


def test_unknown_pair(folder):
    done = run(*own(folder, "--set", "data.source=fr"))
    assert done.returncode == 2
    assert "train.fr" in done.stderr
    done = run("train", "multi30k-small", "--set", "data.source=fr", "--out", folder / "run")
    assert done.returncode == 2
    assert "fr" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_bad_input_of_translate(trained):
    """A bad line costs only itself."""
    good = b"die frau schl\xc3\xa4ft ."
    given = b"\n".join([good, b"gr\xfc\xdfe", b"die " * 1200, good])
    done = run("translate", trained, standard_input=given)
    assert done.returncode == 2
    assert done.stdout == "the woman sleeps .\n\n\nthe woman sleeps .\n"
    broken, long, end = done.stderr.splitlines()
    assert "line 2 is not UTF-8 text: byte 0xfc at position 3" in broken
    assert "line 3 has 1200 tokens, more than max_source, which is 1000" in long
    assert "2 line(s) could not be translated" in end
    rows = run("translate", trained, "--nbest", "2", standard_input=given).stdout.splitlines()
    assert [row.split("\t")[0] for row in rows] == ["1", "1", "2", "3", "4", "4"]
    assert rows[2] == "2\t\t"
    objects = [*map(json.loads, run("translate", trained, "--json", standard_input=given).stdout.splitlines())]
    assert [one.get("error", "")[:10] for one in objects] == ["", "is not UTF", "has 1200 t", ""]


@pytest.mark.parametrize("at_once", [7, 50, 1 << 16])
@pytest.mark.parametrize("end", ["", "\n"])
def test_a_line_that_is_too_long_is_skipped(trained, monkeypatch, at_once, end):
    """At once, since it might never end."""
    monkeypatch.setattr("g2lstm.cli.translate.MAX_INPUT", 40)
    monkeypatch.setattr("g2lstm.cli.translate._READ_AT_ONCE", at_once)
    good, long = "die frau schläft .", "die " * 500
    given = f"{good}\n{long}\n{good}\n\n{long}\n{long}{end}"
    done = run("translate", trained, standard_input=given)
    assert done.stdout == "the woman sleeps .\n\nthe woman sleeps .\n\n\n\n"
    says = [f"line {number} has more than 40 bytes; split it into sentences" for number in (2, 5, 6)]
    assert done.stderr.splitlines()[:3] == [f"g2lstm: {one}" for one in says]
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        assert max(len(line) for group in _groups() for line in group) <= 40 + max(at_once, 7)


def test_many_lines_are_translated_in_batches(trained):
    """In groups of what has come, by another runtime than a few lines."""
    given = "die frau schläft .\nder hund liest .\n" * 1500
    done = run("translate", trained, "--beam", "1", standard_input=given)
    assert done.stdout == "the woman sleeps .\nthe dog reads .\n" * 1500


def test_commands_of_the_other_task(trained):
    for command in (["generate", trained], ["eval", trained, "--cache"]):
        done = run(*command)
        assert done.returncode == 2
        assert "is a translation model" in done.stderr


def test_a_truncated_run(trained, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(trained, broken)
    (broken / "tokenizer.target.json").unlink()
    done = run("eval", broken)
    assert done.returncode == 2
    assert "has no tokenizer.target.json" in done.stderr


def test_a_run_that_is_not_there_is_an_error_without_a_line_to_translate(tmp_path):
    done = run("translate", tmp_path / "none")
    assert done.returncode == 2
    assert "is not a run directory" in done.stderr
