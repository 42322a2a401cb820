"""`g2lstm view` as a command: what it refuses, what it says, and how it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
import torch

from g2lstm import G2Error
from g2lstm.cli.view import view


@pytest.fixture(autouse=True)
def _threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


OPTIONS = {"host": "127.0.0.1", "port": 0, "open_browser": False, "data_dir": None}


def test_what_is_no_run_is_refused(paths, tmp_path):
    with pytest.raises(G2Error, match="is not a run directory"):
        view([tmp_path], **OPTIONS)
    with pytest.raises(G2Error, match="given twice"):
        view([paths[0], paths[0]], **OPTIONS)


def test_a_run_without_a_model_is_refused(paths, tmp_path):
    (tmp_path / "recipe.toml").write_bytes((paths[0] / "recipe.toml").read_bytes())
    with pytest.raises(G2Error, match="no trained model yet"):
        view([tmp_path], **OPTIONS)


def test_a_port_that_is_taken(paths):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(G2Error, match="can't listen on 127.0.0.1, port .* --port"):
            view(paths, **(OPTIONS | {"port": other.getsockname()[1]}))
    with pytest.raises(G2Error, match="can't listen on nowhere.invalid"):
        view(paths, **(OPTIONS | {"host": "nowhere.invalid"}))


def test_without_its_packages_it_says_how_to_get_them(paths, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(G2Error, match=r"pip install 'g2lstm\[view\]'"):
        view(paths, **OPTIONS)


def test_others_may_only_come_if_that_was_said(paths, monkeypatch, capsys):
    import uvicorn

    apps = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: apps.append(server.config.app))
    monkeypatch.setattr("g2lstm.cli.view._listen", lambda host, port: socket.create_server(("127.0.0.1", 0)))
    view(paths, **OPTIONS)
    assert "no password" not in capsys.readouterr().err
    view(paths, **(OPTIONS | {"host": "0.0.0.0"}))
    said = capsys.readouterr()
    assert "Anyone who can reach 0.0.0.0 can use this page" in said.err
    assert said.out.startswith("http://127.0.0.1:")
    assert [app.user_middleware[0].kwargs["any_address"] for app in apps] == [False, True]


def test_it_serves_until_it_is_interrupted(paths):
    command = [sys.executable, "-m", "g2lstm", "view", *map(str, paths), "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    try:
        address = process.stdout.readline().split()[0]
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{address}api/runs", timeout=600) as answer:
            assert [run["name"] for run in json.load(answer)["runs"]] == ["g2", "lstm", "mt"]
    finally:
        process.send_signal(signal.SIGINT)
        out, messages = process.communicate(timeout=600)
    assert process.returncode == 0, messages
    assert (out, messages) == ("stopped\n", "")
