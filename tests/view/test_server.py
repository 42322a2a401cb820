"""What the server answers, and that its numbers are those of `return_gates`."""

import threading
import time
from importlib.resources import files
from pathlib import Path

import pytest
import torch

import g2lstm
from g2lstm.page.palette import css_variables
from g2lstm.tasks.lm.trained import TrainedLanguageModel
from g2lstm.view import run as view_run
from g2lstm.view.server import MAX_CHARACTERS, MAX_WORDS
from tests.view.conftest import load_runs

GATES = ("input", "forget", "output")


def ask(client, text="the cat sat .", run="g2", gate="soft"):
    return client.post("/api/read", json={"run": run, "text": text, "gate": gate})


def units(client, **question):
    return client.post("/api/units", json={"run": "g2", "text": "the cat sat .", "gate": "soft", **question})


def expected_gates(path, text, gate="soft"):
    """Layer by layer, from the layers themselves."""
    trained = g2lstm.load(path)
    ids = [trained.tokenizer.eos_id, *trained.tokenizer.encode(text)]
    x = trained.model.embedding(torch.tensor(ids).unsqueeze(1))
    found = []
    for layer in trained.model.lstms:
        layer.eval_gate = gate
        x, _, gates = layer(x, return_gates=True)
        found.append({name: getattr(gates, name)[0][:, 0].detach() for name in GATES})
    return found


def test_the_files_of_the_page(client):
    for path, kind in (("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css")):
        answer = client.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
        again = client.get(path, headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    shipped = {file.name for file in files("g2lstm.view").joinpath("static").iterdir()}
    assert all(client.get(f"/{name}").status_code == 200 for name in shipped)


def test_colours_are_those_of_the_pictures(client):
    answer = client.get("/palette.css")
    assert answer.headers["content-type"] == "text/css; charset=utf-8"
    assert answer.text == css_variables()


def test_plotly_comes_from_its_python_package(client):
    from plotly.offline import get_plotlyjs

    answer = client.get("/plotly/plotly.min.js")
    assert answer.text == get_plotlyjs()
    again = client.get("/plotly/plotly.min.js", headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/../server.py", "/..%2fserver.py", "/static/page.js", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd",
        "/page.js/x",
        "/page.js%00", "/api/../server.py", "/docs", "/openapi.json", "/api/runs/..%5c..%5cx", "/C:\\windows",
    ],
)  # fmt: skip
def test_nothing_else_is_served(client, path):
    answer = client.get(path, follow_redirects=False)
    assert answer.status_code in (404, 307)
    assert "import" not in answer.text
    assert "root:" not in answer.text


def test_runs(client):
    answer = client.get("/api/runs").json()
    assert answer["limits"] == {"words": MAX_WORDS, "characters": MAX_CHARACTERS}
    assert [(run["name"], run["task"], run["method"], run["state"]) for run in answer["runs"]] == [
        ("g2", "lm", "gumbel", "ready"),
        ("lstm", "lm", "sigmoid", "ready"),
        ("mt", "mt", "gumbel", "ready"),
    ]
    assert [run["title"] for run in answer["runs"]] == ["language model", "language model", "translation model"]
    assert answer["runs"][0]["examples"][0] == "a dog saw the cat , which ran ."


@pytest.mark.parametrize("gate", ["soft", "tempered", "hard"])
def test_means_and_units_are_those_of_return_gates(client, paths, gate):
    text = "the dog knows ."
    reading = ask(client, text, gate=gate).json()
    assert reading["tokens"] == {"text": ["<eos>", *text.split()]}
    assert gate in reading["mode"]
    for index, layer in enumerate(expected_gates(paths[0], text, gate)):
        shown = reading["layers"][index]
        assert shown["units"] == layer["input"].size(1)
        for name, values in layer.items():
            torch.testing.assert_close(torch.tensor(shown["means"][name]), values.mean(1), rtol=0, atol=1e-5)
            decided = ((values < 0.1) | (values > 0.9)).float().mean(1)
            torch.testing.assert_close(torch.tensor(shown["decided"][name]), decided, rtol=0, atol=1e-5)
        at = units(client, text=text, gate=gate, layer=index, position=2).json()
        along = units(client, text=text, gate=gate, layer=index, unit=3).json()
        assert at["token"] == "dog"
        assert along["tokens"] == reading["tokens"]["text"]
        for name, values in layer.items():
            torch.testing.assert_close(torch.tensor(at["values"][name]), values[2], rtol=0, atol=1e-5)
            torch.testing.assert_close(torch.tensor(along["values"][name]), values[:, 3], rtol=0, atol=1e-5)


def test_binary_gates_have_timelines(client, paths):
    answer = units(client, gate="hard", layer=1, position=0).json()
    layer = expected_gates(paths[0], "the cat sat .", "hard")[1]
    assert answer["tokens"] == ["<eos>", "the", "cat", "sat", "."]
    assert set(answer["timelines"]) == {"input", "forget"}
    for gate, found in answer["timelines"].items():
        assert len(found["units"]) + found["closed"] + found["open"] == layer[gate].size(1)
        for unit, row in zip(found["units"], found["rows"], strict=True):
            assert [int(bit) for bit in row] == layer[gate][:, unit].tolist()
    assert units(client, layer=1, position=0).json()["timelines"] == {}


def test_next_words_are_probabilities_in_order(client):
    shares = [share for _, share in ask(client).json()["next_words"]]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 1.0001


def test_a_translation(client, paths):
    text = "die katze lief ."
    reading = ask(client, text, run="mt").json()
    assert reading["translation"] == g2lstm.load(paths[2]).translate(text)
    sides = [(layer["name"], layer["direction"], layer["side"]) for layer in reading["layers"]]
    assert sides[:2] == [("encoder.0", "forward", "source"), ("encoder.0", "backward", "source")]
    assert len(reading["attention"]) == len(reading["produced"])
    for weights in reading["attention"]:
        assert len(weights) == len(reading["tokens"]["source"])
        assert sum(weights) == pytest.approx(1, abs=1e-3)
    for layer in reading["layers"]:
        assert len(layer["means"]["input"]) == len(reading["tokens"][layer["side"]])


def test_histograms_are_counted_here_or_come_from_the_file(client, paths, tmp_path):
    import json

    counted = client.post("/api/histograms", json={"run": "g2"}).json()
    assert "evaluation" in counted["mode"]
    counts = counted["layers"][0]["gates"]["forget"]["counts"]
    assert sum(counts) == counted["data"]["tokens"]["text"] * ask(client).json()["layers"][0]["units"]
    file = paths[0] / "gates" / "gates.json"
    file.parent.mkdir()
    try:
        file.write_text(json.dumps({**counted, "mode": "from the file", "else": 1}))
        assert client.post("/api/histograms", json={"run": "g2"}).json() == {**counted, "mode": "from the file"}
        file.write_text("{")
        refused = client.post("/api/histograms", json={"run": "g2"})
        assert refused.status_code == 400
        assert "g2lstm gates" in refused.json()["error"]
    finally:
        file.unlink()
        file.parent.rmdir()


def test_without_the_text_the_page_is_told_the_command(make_client, monkeypatch):
    client = make_client()
    monkeypatch.setattr("g2lstm.look.examine.validation_files", lambda *_: [Path("missing")])
    answer = client.post("/api/histograms", json={"run": "lstm"}).json()
    assert answer["command"].startswith("g2lstm gates ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no word"),
        (" \n\t ", "there is no word"),
        ("\x00\x1b\x7f", "there is no word"),
        ("a " * 10_000, "shorten it to at most 4,000"),
        ("a " * (MAX_WORDS + 1), "has 201 words; shorten it to at most 200"),
        ("ä" * (MAX_CHARACTERS + 1), "has 4,001 characters"),
    ],
)
def test_texts_that_are_refused(client, text, message):
    answer = ask(client, text)
    assert answer.status_code == 400
    assert message in answer.json()["error"]


def test_many_tokens_in_few_words_are_refused(client):
    answer = ask(client, "\N{GRINNING FACE}" * 900, run="mt")
    assert answer.status_code == 400
    assert "tokens, and at most" in answer.json()["error"]


def test_strange_texts_are_read(client):
    longest = ask(client, "cat " * MAX_WORDS).json()
    assert len(longest["tokens"]["text"]) == MAX_WORDS + 1
    unknown = ask(client, "zebras yodel").json()
    assert unknown["unknown"]["text"] == [1, 2]
    assert unknown["tokens"]["text"][1:] == ["zebras", "yodel"]
    html = ask(client, "<script>alert(1)</script> <b>cat</b>").json()
    assert html["tokens"]["text"][1] == "<script>alert(1)</script>"
    control = ask(client, "the\x00cat\x1b[31m\nsat\u2028on").json()
    assert control["tokens"]["text"][1:] == ["the", "cat", "[31m", "sat", "on"]
    half = client.post(
        "/api/read",
        content=rb'{"run": "g2", "text": "the \ud800 cat", "gate": "soft"}',
        headers={"content-type": "application/json"},
    )
    assert half.json()["tokens"]["text"][1:] == ["the", "cat"]


@pytest.mark.parametrize("run", ["", "none", "../g2", "g2/", "0", "\x00"])
def test_unknown_runs(client, run):
    answer = ask(client, run=run)
    assert answer.status_code == 404
    assert "there are g2, lstm, mt" in answer.json()["error"]


@pytest.mark.parametrize(
    "change",
    [
        {"gate": "open"}, {"gate": None}, {"text": 3}, {"text": ["a"]}, {"run": 1}, {"more": 1}, {"run": "x" * 501},
    ],
)  # fmt: skip
def test_questions_that_are_not_understood(client, change):
    answer = client.post("/api/read", json={"run": "g2", "text": "the cat", "gate": "soft", **change})
    assert answer.status_code == 422
    assert "cannot understand the request" in answer.json()["error"]
    assert next(iter(change)) in answer.json()["error"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"[" * 50_000, b"\xff", b'{"run": NaN}'])
def test_bodies_that_are_no_question(client, content):
    answer = client.post("/api/read", content=content, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422)
    assert answer.json()["error"]


def test_only_json_is_read(client):
    form = client.post("/api/read", data={"run": "g2", "text": "a", "gate": "soft"})
    plain = client.post("/api/read", content=b'{"run": "g2", "text": "a", "gate": "soft"}')
    assert (form.status_code, plain.status_code) == (422, 422)
    assert client.get("/api/read").status_code == 404


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"layer": 2, "position": 0}, "no layer 2; there are 2"),
        ({"layer": 0, "position": 5}, "no position 5; there are 5"),
        ({"layer": 0, "unit": 8}, "no unit 8; there are 8"),
        ({"layer": 0}, "either a position or a unit"),
        ({"layer": 0, "position": 0, "unit": 0}, "either a position or a unit"),
    ],
)
def test_units_that_are_not_there(client, question, message):
    answer = units(client, **question)
    assert answer.status_code == 400
    assert message in answer.json()["error"]


def test_a_run_that_loads_says_so(make_client, paths, monkeypatch):
    release = threading.Event()

    def slowly(path):
        assert release.wait(600)
        return g2lstm.load(path)

    monkeypatch.setattr(view_run, "load", slowly)
    runs = load_runs(paths)
    client = make_client(runs, wait=False)
    assert {run["state"] for run in client.get("/api/runs").json()["runs"]} == {"loading"}
    early = ask(client)
    assert early.status_code == 503
    assert early.json()["error"] == "g2 is loading"
    release.set()
    while any(run.state == "loading" for run in runs):
        time.sleep(0.01)
    assert ask(client).status_code == 200


def test_a_run_that_cannot_be_loaded_says_why_and_the_others_work(make_client, paths, monkeypatch):
    def partly(path):
        if path == paths[0]:
            raise g2lstm.G2Error("its file is broken")
        return g2lstm.load(path)

    monkeypatch.setattr(view_run, "load", partly)
    client = make_client()
    first = client.get("/api/runs").json()["runs"][0]
    assert (first["state"], first["message"]) == ("failed", "its file is broken")
    assert ask(client).json()["error"] == "its file is broken"
    assert ask(client, run="lstm").status_code == 200


def test_others_are_answered_while_one_request_computes(client, monkeypatch):
    begun, release = threading.Event(), threading.Event()
    original = TrainedLanguageModel.read

    def slowly(trained, text, **options):
        if text == "no one":
            begun.set()
            assert release.wait(600)
        return original(trained, text, **options)

    monkeypatch.setattr(TrainedLanguageModel, "read", slowly)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(ask(client, "no one")))
    thread.start()
    assert begun.wait(600)
    assert client.get("/api/runs").status_code == 200
    assert client.get("/").status_code == 200
    assert ask(client, run="lstm").status_code == 200
    assert answers == []
    release.set()
    thread.join()
    assert answers[0].json()["tokens"]["text"] == ["<eos>", "no", "one"]


def test_too_many_waiting_requests_are_told_to_come_back(client, monkeypatch):
    monkeypatch.setattr(view_run, "MAX_WAITING", 0)
    answer = ask(client)
    assert answer.status_code == 503
    assert "try again" in answer.json()["error"]


def test_a_sentence_is_computed_once_while_there_is_room(make_client, monkeypatch):
    original, computed = TrainedLanguageModel.read, []

    def counting(trained, text, **options):
        computed.append(text)
        return original(trained, text, **options)

    monkeypatch.setattr(TrainedLanguageModel, "read", counting)
    client = make_client()
    for _ in range(3):
        ask(client, "the  cat\n")
        units(client, text="the cat", layer=0, position=1)
    assert computed == ["the cat"]
    ask(client, "the cat", gate="hard")
    assert len(computed) == 2
    others = [f"{number} dogs" for number in range(view_run.READINGS)]
    for text in (*others, "the cat", "the cat"):
        ask(client, text)
    assert computed[2:] == [*others, "the cat"]


def test_a_bug_of_ours_is_an_answer_too(client, monkeypatch):
    monkeypatch.setattr(TrainedLanguageModel, "read", lambda *_, **__: 1 / 0)
    answer = ask(client, "a sentence that is not cached")
    assert answer.status_code == 500
    assert "ZeroDivision" not in answer.text
    assert answer.json()["error"]
