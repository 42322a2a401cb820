"""A run directory that anyone may have made: commands work or end with a clear error, and write nowhere else."""

import json
import os
import re
import shutil
import time

import pytest
import torch
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from g2lstm import G2Error
from g2lstm.compression import storage
from g2lstm.runs.compressed import new_folder, write_run
from g2lstm.runs.directory import RunDirectory
from g2lstm.runs.trained import load
from g2lstm.tasks.recipes import load_recipe
from tests.cli.command import run as command
from tests.fuzz import changed, damaged, fuzzed
from tests.lab.study.toys import of_language, write_text
from tests.pictures import draw_nothing
from tests.runs.test_compressed import compressed_run
from tests.runs.toys import language_run, translation_run

RUNS = ("lm", "mt", "small")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A language model, one that translates, and a compressed one; copied for each test."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("G2LSTM_CACHE", str(folder / "cache"))
        draw_nothing(patch)
        language, translation = language_run(folder / "lm"), translation_run(folder / "mt")
        runs = {"lm": language, "mt": translation, "small": compressed_run(language)[0]}
        for run in runs.values():
            line = {"step": 1, "tokens": 1, "seconds": 1.0, "perplexity": 2.0, "bleu": 1.0}
            counts = {f"{gate}/{k}": k for gate in ("input", "forget") for k in range(20)}
            for tokens in (1, 2, 3):
                RunDirectory(run).append_metrics({"kind": "valid", **line, "tokens": tokens})
                RunDirectory(run).append_metrics({"kind": "gates", **line, "tokens": tokens, **counts})
            assert command("eval", run, "--json").returncode == 0
            assert command("gates", run, "--samples", "2", "--json").returncode == 0
            for picture in (run / "gates").glob("*.[ps][nv]g"):
                picture.unlink()
        yield runs


def attempt(run, *more):
    """Commands that read a run: each ends well, or with one message of ours."""
    task = "translate" if "target" in (run / "recipe.toml").read_bytes().decode(errors="replace") else "generate"
    arguments = {"translate": [], "generate": ["--tokens", "2"]}[task]
    for one in ([task, run, *arguments], ["eval", run, "--json"], *more):
        done = command(*one, standard_input="ein haus\n")
        assert done.returncode in (0, 2), done.stderr
        assert "Traceback" not in done.stderr


def names(run):
    return sorted(path.name for path in run.iterdir() if path.is_file())


@fuzzed()
def test_damaged_files_are_noticed_or_do_no_harm(made, tmp_path, data):
    source = made[data.draw(st.sampled_from(RUNS))]
    run = tmp_path / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(source, run)
    file = run / data.draw(st.sampled_from(names(run)))
    file.write_bytes(damaged(data, file.read_bytes()))
    try:
        trained = load(run)
        trained.run.results()
        trained.run.metrics()
    except G2Error:
        return
    assert all(value.isfinite().all() for value in trained.model.state_dict().values())


@pytest.fixture
def visited(monkeypatch):
    """Instead of serving, `view` answers what the page asks about a sentence, once."""
    import uvicorn
    from starlette.testclient import TestClient

    def visit(server, sockets):
        with TestClient(server.config.app, base_url="http://127.0.0.1") as client:
            while client.get("/api/runs").json()["runs"][0]["state"] == "loading":
                time.sleep(0.01)
            question = {"run": "run", "text": "ein haus", "gate": "soft"}
            of_units = {**question, "layer": 0, "position": 0}
            for path, body in (("read", question), ("units", of_units), ("histograms", {"run": "run"})):
                answer = client.post(f"/api/{path}", json=body)
                assert answer.status_code in (200, 400, 503), answer.text
                json.loads(answer.text, parse_constant=pytest.fail)

    monkeypatch.setattr(uvicorn.Server, "run", visit)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)  # `view` wants one


COMMANDS = {  # that read a run, with the options that make them quick
    "eval": ["--json"],
    "verify": ["--json"],
    "gates": ["--samples", "1", "--json"],
    "report": [],
    "generate": ["--tokens", "2"],
    "translate": [],
    "compress": ["small", "--no-score", "--json"],
    "export": ["--json"],
    "view": ["--port", "0"],
}
WITH_COUNTS = ("report", "view")  # read gates.json


@fuzzed(few=5, many=400)
def test_whatever_a_file_says_commands_work_or_end_with_one_message(made, visited, tmp_path, monkeypatch, data):
    """Its values are replaced, removed and moved, so that it is JSON still; the schemas are what keeps them out."""
    monkeypatch.setenv("G2LSTM_CACHE", str(tmp_path / "cache"))
    run = tmp_path / "run"
    which = data.draw(st.sampled_from(RUNS))
    for old in (run, tmp_path / "run+small", tmp_path / "report.html"):
        shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink(missing_ok=True)
    shutil.copytree(made[which], run)
    kind = data.draw(st.sampled_from(["report", "report", "gates", "verify", "view", *COMMANDS]))
    change_a_file(data, [path for path in run.rglob("*.json*") if kind in WITH_COUNTS or path.name != "gates.json"])
    done = command(kind, run, *COMMANDS[kind], *(["--out", tmp_path / "report.html"] if kind == "report" else []))
    assert_works_or_refuses(done, is_json="--json" in COMMANDS[kind])


def change_a_file(data, files):
    """Other values in one of these files, which stays JSON."""
    file = data.draw(st.sampled_from(sorted(files)))
    lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
    place = data.draw(st.integers(0, len(lines) - 1))
    lines[place] = json.dumps(changed(data, json.loads(lines[place])))
    file.write_text("\n".join(lines))


def assert_works_or_refuses(done, is_json):
    assert done.returncode in (0, 2), done.stderr
    assert "Traceback" not in done.stderr
    said = [line for line in done.stderr.splitlines() if re.match(r"g2lstm: |\S+ was left out: ", line)]
    assert done.returncode == 0 or (len(said) == 1 and done.stderr.endswith(f"{said[0]}\n")), done.stderr
    if is_json and done.returncode == 0:
        json.loads(done.stdout, parse_constant=pytest.fail)


@pytest.fixture(scope="module")
def studied(tmp_path_factory):
    """A study of one run, which was trained and measured."""
    folder = tmp_path_factory.mktemp("studied")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("G2LSTM_CACHE", str(folder / "cache"))
        toy = [word for each in of_language(write_text(folder / "data")) for word in ("--set", each)]
        arguments = ["study", "table3", "--json", "--only", "*small-gumbel*", *toy, "--out"]
        done = command(*arguments, folder / "out")
        assert done.returncode == 0, done.stderr
        yield folder / "out", arguments


@fuzzed(few=5, many=400)
def test_whatever_a_file_says_a_study_shows_its_table_or_ends_with_one_message(studied, tmp_path, monkeypatch, data):
    monkeypatch.setenv("G2LSTM_CACHE", str(tmp_path / "cache"))
    source, arguments = studied
    out = tmp_path / "out"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(source, out)
    change_a_file(data, [path for path in out.rglob("*.json*") if "checkpoints" not in path.parts])
    assert_works_or_refuses(command(*arguments, out, "--table-only"), is_json=True)


def line(**values):
    return {"kind": "valid", "step": 1, "tokens": 1, "seconds": 1.0, "perplexity": 2.0, **values}


def gate_line(tokens, count):
    counts = {f"{gate}/{k}": count for gate in ("input", "forget") for k in range(20)}
    return line(kind="gates", tokens=tokens, **counts)


@pytest.mark.parametrize(
    "huge", [1e308, *(pytest.param(huge, marks=pytest.mark.slow) for huge in (1e304, 1e100, 2**63 - 1, 10**30, 5e-324))]
)
def test_a_report_of_numbers_that_no_picture_can_show(made, tmp_path, monkeypatch, huge):
    monkeypatch.setenv("G2LSTM_CACHE", str(tmp_path / "cache"))
    run = shutil.copytree(made["lm"], tmp_path / "run")
    lines = [line(tokens=k, perplexity=p, seconds=huge) for k, p in enumerate([1.0, huge, 5.0])]
    lines += [line(tokens=tokens) for tokens in (-huge, 2, huge)] + [gate_line(k, huge) for k in (-huge, 2, 3, huge)]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    gates = json.loads((run / "gates" / "gates.json").read_text())
    for layer in gates["layers"]:
        layer["gates"]["input"] |= {"mean": float(huge), "counts": [int(huge) if huge < 2**63 else 1] * 100}
    gates["layers"] = [{**gates["layers"][0], "title": f"layer {k}"} for k in range(3 if huge > 1e100 else 1024)]
    (run / "gates" / "gates.json").write_text(json.dumps(gates))
    done = command("report", run, "--out", tmp_path / "report.html")
    assert done.returncode == (0 if huge <= 1e100 else 2), done.stderr
    if done.returncode:
        (run / "gates" / "gates.json").unlink()
        assert command("report", run, "--out", tmp_path / "report.html").returncode == 0


@pytest.mark.parametrize(
    "change", [{"title": "x" * 501}, {"title": "a\nb"}, {"name": "\x1b[2J"}, {"gates": {}}], ids=str
)
def test_counts_that_do_not_fit_into_a_picture(made, tmp_path, change):
    run = shutil.copytree(made["lm"], tmp_path / "run")
    gates = json.loads((run / "gates" / "gates.json").read_text())
    gates["layers"][0] |= change
    (run / "gates" / "gates.json").write_text(json.dumps(gates))
    with pytest.raises(G2Error, match=r"gates.json is damaged: layers.0.*; write it again with `g2lstm gates"):
        RunDirectory(run).gate_counts()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('"more": NaN', "scores.0: Value error, nan is not a number"),
        ('"more": [{"a": -Infinity}]', "scores.0: Value error, -inf is not a number"),
        ('"perplexity": 1e101', "scores.0.perplexity: Input should be less than or equal to 10{100}"),
        ('"bleu": NaN', "scores.0.bleu: Input should be a finite number"),
        ('"more": "\\ud800"', "Invalid JSON"),
        (f'"more": {"9" * 6000}', "Invalid JSON"),
    ],
    ids=lambda text: text[:20],
)
def test_scores_that_are_no_json(made, tmp_path, more, message):
    run = shutil.copytree(made["lm"], tmp_path / "run")
    score = json.loads((run / "result.json").read_text())["scores"][0]
    (run / "result.json").write_text(f'{{"scores": [{json.dumps(score)[:-1]}, {more}}}]}}')
    with pytest.raises(G2Error, match=f"result.json is damaged: {message}.*; delete it, and evaluate again"):
        RunDirectory(run).results()


@pytest.mark.parametrize("size", [1e38, 3e38])
def test_weights_that_are_finite_but_huge_have_no_score(made, tmp_path, monkeypatch, size):
    monkeypatch.setenv("G2LSTM_CACHE", str(tmp_path / "cache"))
    run = shutil.copytree(made["lm"], tmp_path / "run")
    weights, facts = load_file(run / "model.safetensors"), RunDirectory(run).training_facts()
    save_file({name: torch.full_like(value, size) for name, value in weights.items()}, run / "model.safetensors", facts)
    before = (run / "result.json").read_bytes()
    done = command("eval", run, "--json")
    assert done.returncode == 2
    assert "the perplexity is not finite (" in done.stderr
    assert (run / "result.json").read_bytes() == before


@pytest.mark.parametrize("arguments", [["translate", "RUN"], ["score", "RUN", "test.de", "test.en"]], ids=" ".join)
def test_nor_have_translations(made, tmp_path, monkeypatch, arguments):
    monkeypatch.setenv("G2LSTM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(made["mt"].parent / "texts")
    run = shutil.copytree(made["mt"], tmp_path / "run")
    weights, facts = load_file(run / "model.safetensors"), RunDirectory(run).training_facts()
    save_file({name: torch.full_like(value, 3e38) for name, value in weights.items()}, run / "model.safetensors", facts)
    given = [run if word == "RUN" else word for word in arguments]
    done = command(*given, "--json", standard_input="ein haus\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(
        "the model's log-probabilities are not numbers (NaN): its weights are broken; train it again\n"
    )


def empty(path):
    path.write_bytes(b"")


def folder(path):
    path.unlink()
    path.mkdir()


def hole(path):
    os.truncate(path, 2**42)


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def loop(path):
    path.unlink()
    path.symlink_to(path.name)


@pytest.mark.parametrize("damage", [empty, folder, hole, pipe, loop], ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", ["recipe.toml", "tokenizer.json", "model.safetensors", "result.json", "metrics.jsonl"])
def test_files_that_are_something_else(made, tmp_path, monkeypatch, name, damage):
    monkeypatch.setenv("G2LSTM_CACHE", str(tmp_path / "cache"))
    run = tmp_path / "run"
    shutil.copytree(made["lm"], run)
    damage(run / name)
    if (name, damage) in (("metrics.jsonl", empty), ("metrics.jsonl", loop), ("result.json", loop)):  # as if not begun
        assert [] in read_all(run)
        return
    with pytest.raises(G2Error):
        read_all(run)


def read_all(run):
    trained = load(run)
    return trained.run.results(), trained.run.metrics()


@pytest.fixture
def outside(tmp_path):
    """Files of the user's, which must stay as they are."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "step-00000001.safetensors").write_text("mine")
    (folder / "notes.txt").write_text("mine")
    yield folder
    assert {path.name: path.read_text() for path in folder.rglob("*")} == {
        "step-00000001.safetensors": "mine",
        "notes.txt": "mine",
    }


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "checkpoints", "events"])
def test_training_writes_through_no_link(made, tmp_path, monkeypatch, outside, name):
    monkeypatch.setenv("G2LSTM_CACHE", str(tmp_path / "cache"))
    run = tmp_path / "run"
    shutil.copytree(made["lm"], run)
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(outside if name in ("checkpoints", "events") else outside / "notes.txt")
    done = command("train", run / "recipe.toml", "--resume")
    assert done.returncode == 2
    assert "is a link to" in done.stderr


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("gates", ["gates", "--samples", "1"]), ("export", ["export"])],
)
def test_commands_write_through_no_link(made, tmp_path, monkeypatch, outside, name, arguments):
    monkeypatch.setenv("G2LSTM_CACHE", str(tmp_path / "cache"))
    run = tmp_path / "run"
    shutil.copytree(made["lm"], run)
    shutil.rmtree(run / name, ignore_errors=True)
    (run / name).symlink_to(outside)
    done = command(arguments[0], run, *arguments[1:])
    assert done.returncode == 2
    assert "is a link to" in done.stderr


def test_a_linked_result_is_replaced_and_not_followed(made, tmp_path, monkeypatch, outside):
    monkeypatch.setenv("G2LSTM_CACHE", str(tmp_path / "cache"))
    run = tmp_path / "run"
    shutil.copytree(made["lm"], run)
    shutil.copy(run / "result.json", tmp_path / "result.json")
    before = (tmp_path / "result.json").read_bytes()
    (run / "result.json").unlink()
    (run / "result.json").symlink_to(tmp_path / "result.json")
    assert command("eval", run, "--json", "--split", "test").returncode == 0
    assert not (run / "result.json").is_symlink()
    assert (tmp_path / "result.json").read_bytes() == before


def test_only_the_tokenizers_of_a_run_are_copied(made, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(made["lm"], run)
    (tmp_path / "secret").write_text("mine")
    (run / "tokenizer.more.json").symlink_to(tmp_path / "secret")
    trained = load(run)
    spec = load(made["small"]).run.compression
    with new_folder(tmp_path / "small") as folder:
        from g2lstm.compression.model import compress
        from g2lstm.compression.spec import Spec

        write_run(folder, trained.run, compress(trained.model, spec), Spec.parse(spec))
    assert not list((tmp_path / "small").glob("tokenizer.more*"))


@pytest.mark.parametrize("version", ["²", "9" * 5000, "-1", "1.0", ""])
def test_versions_that_are_no_numbers(made, tmp_path, version):
    run = RunDirectory(tmp_path)
    save_file({"a": torch.zeros(1)}, run.model_file, {"format": "g2lstm", "version": version})
    with pytest.raises(G2Error, match="was not written by g2lstm"):
        run.training_facts()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights["softmax_bias"].fill_(torch.nan), "softmax_bias is not finite; train the model again"),
        (lambda weights: weights.update(more=torch.zeros(1)), "'more' has shape .1. F32, expected none"),
        (lambda weights: weights.update(softmax_bias=torch.zeros(3)), "'softmax_bias' has shape .3. F32, expected"),
        (
            lambda weights: weights.update(softmax_bias=weights["softmax_bias"].long()),
            "'softmax_bias' has shape .32. I64",
        ),
        (lambda weights: weights.update({"a\n" * 999: torch.zeros(1)}), "has shape .1. F32, expected none"),
    ],
)
def test_weights_that_no_training_writes(made, tmp_path, change, message):
    run = tmp_path / "run"
    shutil.copytree(made["lm"], run)
    weights, facts = load_file(run / "model.safetensors"), RunDirectory(run).training_facts()
    change(weights)
    save_file(weights, run / "model.safetensors", facts)
    with pytest.raises(G2Error, match=message) as raised:
        load(run)
    assert len(str(raised.value)) < 600


def test_nothing_is_allocated_for_a_recipe_that_the_weights_do_not_fit(made, tmp_path, monkeypatch):
    """The recipe asks for more than there may be room for, and the file of weights is small."""
    run = tmp_path / "run"
    shutil.copytree(made["lm"], run)
    text = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(text.replace("hidden = 12", "hidden = 3000"))
    assert load_recipe(run / "recipe.toml").model.hidden == 3000
    sizes, empty = [], torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: sizes.append(made_of := empty(*a, **k)) or made_of)
    with pytest.raises(G2Error, match="does not fit the recipe"):
        load(run)
    assert sizes
    assert all(tensor.device.type == "meta" for tensor in sizes)


@pytest.mark.parametrize("change", [{"window": 2**31 - 1}, {"window": 1}])
def test_a_cache_takes_no_more_memory_than_the_text_needs(made, tmp_path, monkeypatch, change):
    monkeypatch.setenv("G2LSTM_CACHE", str(tmp_path / "cache"))
    run = tmp_path / "run"
    shutil.copytree(made["lm"], run)
    text = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(text.replace("window = 20", f"window = {change['window']}"))
    done = command("eval", run, "--cache", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["perplexity"] > 1


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000, "a\x00b", "~nobody-of-this-name/run", ""])
def test_names_of_runs_that_cannot_be(name):
    with pytest.raises(G2Error, match="is not a run directory"):
        load(name)


@pytest.mark.slow
@pytest.mark.parametrize("which", RUNS)
def test_every_command_survives_damage_to_every_file(made, tmp_path, monkeypatch, which):
    monkeypatch.setenv("G2LSTM_CACHE", str(tmp_path / "cache"))
    run = tmp_path / "run"
    for name in names(made[which]):
        content = (made[which] / name).read_bytes()
        for damage in (content[: len(content) // 2], content[:-1], content[::-1], b"", b"\0" * len(content)):
            shutil.rmtree(run, ignore_errors=True)
            shutil.copytree(made[which], run)
            (run / name).write_bytes(damage)
            attempt(run, ["gates", run, "--samples", "1"], ["report", run, "--out", tmp_path / "report.html"])


def test_compressed_weights_that_are_not_finite(made, tmp_path):
    """The parameters that stay as they are, under a checksum that is right."""
    run = tmp_path / "run"
    shutil.copytree(made["small"], run)
    opened = RunDirectory(run)
    stored = storage.load(opened.model_file)
    facts = {name: value for name, value in opened.training_facts().items() if name != "compression"}
    stored.others["softmax_bias"][0] = torch.inf
    opened.model_file.write_bytes(storage.save(stored.matrices, stored.others, stored.spec, facts))
    with pytest.raises(G2Error, match="'softmax_bias' holds NaN or infinity"):
        load(run)
