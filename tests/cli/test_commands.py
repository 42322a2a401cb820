"""The command line as a user meets it: output, errors, exit codes."""

import json
import pickle
import re
import subprocess
import sys
from importlib.abc import MetaPathFinder

import pytest

from g2lstm import G2Error
from g2lstm.__main__ import main as load_and_run
from g2lstm.lab.bench import train
from g2lstm.lab.bench.measure import Field, Report
from g2lstm.text import lines
from tests.cli.command import run
from tests.pickles import PickleError


def test_as_a_process_of_its_own():
    command = [sys.executable, "-m", "g2lstm", "--debug", "bench", "layer", "--shape", "1,2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_the_command_line_starts_without_torch():
    code = "import sys; import g2lstm.cli.main; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_commands_are_run_where_pickles_are_refused():
    with pytest.raises(PickleError):
        pickle.loads(pickle.dumps(1))


def test_help_and_version():
    assert "demo" in run("--help").stdout
    assert run("--version").stdout.startswith("g2lstm ")


def test_info_says_which_backends_are_here():
    facts = json.loads(run("info", "--json").stdout)
    assert facts["backends"]["native"].startswith("compiled for")
    assert "backend native" in run("info").stdout


def test_info_says_which_kernels_are_here():
    kernels = json.loads(run("info", "--json").stdout)["kernels"]
    assert all(found.startswith("compiled for") for found in kernels.values())
    assert "kernel for packed weights" in run("info").stdout


def test_an_interrupt_while_modules_load_says_nothing(monkeypatch, capfd):
    class Interrupt(MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name == "g2lstm.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "g2lstm.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupt(), *sys.meta_path])
    with pytest.raises(SystemExit) as end:
        load_and_run()
    assert end.value.code == 130
    assert capfd.readouterr() == ("", "")


def test_the_preparation_of_a_large_text_is_shown(tmp_path, monkeypatch):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("a b c d\n" * 300)
    monkeypatch.setattr(lines, "REPORT_BYTES", 1600)
    monkeypatch.setenv("G2LSTM_CACHE", str(tmp_path / "cache"))
    toy = ["data.path=" + str(tmp_path), "model.hidden=4", "model.embedding=4", "train.epochs=1", "train.minutes="]
    sets = [word for setting in toy for word in ("--set", setting)]
    done = run("train", "embedded", *sets, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert f"reading {tmp_path / 'train.txt'}: 1 of 2 KB are done" in done.stderr
    assert f"reading {tmp_path / 'train.txt'}: 2 of 2 KB are done" in done.stderr
    for prepared in (tmp_path / "cache").rglob("*.tokens"):
        prepared.write_bytes(b"damaged")
    done = run("eval", tmp_path / "run", "--split", "valid")
    assert done.returncode == 0, done.stderr
    assert "does not match its checksum; it is made again" in done.stderr


def test_info_says_why_the_kernel_is_not_here(monkeypatch):
    from g2lstm.cli.info import describe_backends
    from g2lstm.nn import kernel

    monkeypatch.setattr(kernel, "find", lambda: kernel.Found(None, "not compiled: no C++ compiler"))
    assert (
        describe_backends()["native"]
        == "torch operations, which take 1.5 to 2.5 times as long (not compiled: no C++ compiler)"
    )


def bench_layer(*options):
    done = run("bench", "layer", "--shape", "3,2,4,5", "--rounds", "1", "--json", *options)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_bench_layer_as_json(monkeypatch):
    monkeypatch.setattr(train, "_SQUARE", 32)
    rows = bench_layer()
    assert [(row["what"], row["name"]) for row in rows] == [
        ("train", "torch.nn.LSTM"), ("train", "auto"), ("train", "bfloat16"), ("train", "stock"),
        ("train", "reference"), ("eval", "torch.nn.LSTM"), ("eval", "auto"),
        ("train", "torch.nn.GRU"), ("train", "G2GRU"),
    ]  # fmt: skip
    assert all(row["milliseconds"] > 0 and row["shape"] == [3, 2, 4, 5] for row in rows)
    monkeypatch.setattr(train, "peak_memory", lambda *_: 1.5)
    assert [row["megabytes"] for row in bench_layer("--memory")][:6] == [1.5] * 5 + [None]
    monkeypatch.setattr(train, "peak_memory", lambda *_: 0.0)  # too small a step to be seen
    assert {row["memory_ratio"] for row in bench_layer("--memory")} == {None}


def test_what_is_measured_is_shown_before_the_rest_is(monkeypatch):
    def measure(shapes, *_):
        for shape in shapes:
            yield Report(f"at {shape}", (Field("name", "layer"),), [{"name": "ours"}])
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "measure_layer", measure)
    done = run("bench", "layer", "--shape", "3,2,4,5", "--shape", "1,1,1,1")
    assert done.returncode == 130
    assert done.stdout.count("ours") == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "No such command 'nonsense'; see `g2lstm --help`"),
        ("eval", "Missing argument 'run'; see `g2lstm eval --help`"),
        ("eval run --splitt test", "No such option: --splitt"),
        ("bench layer --shape 1,2", "--shape takes four whole numbers above 0, such as 35,20,200,200, got '1,2'"),
        ("bench layer --rounds 0", "Invalid value for '--rounds': "),
        ("generate run --tokens 9223372036854775808", "Invalid value for '--tokens': "),
        ("study table1 --scale huge", "Invalid value for '--scale': 'huge' is not one of 'small', 'paper'; see"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_2(line, message):
    done = run(*line.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.lower().startswith(f"g2lstm: {message}".lower())  # typer 0.26.0 writes 'RUN'
    assert done.stderr.count("\n") == 1


def test_flags_have_no_type_in_the_help():
    told = run("train", "--help").stdout
    assert "--resume" in told
    assert "bool" not in told.lower()


def test_help_is_wrapped_to_the_terminal():
    told = run("train", "--help").stdout
    assert "`g2lstm init` writes these settings into a recipe." in told  # not where the docstring has its line
    presets = run("compress", "--help").stdout
    assert "small            gates=levels:5;" in presets
    assert re.search(r"\n {20}cell=int4; +\n {20}plain=int8;", presets)
    told = run("generate", "--help").stdout
    assert "[0<=x<=4294967295]" in told  # on one line
    assert "Below 1, likely tokens become likelier; above 1, unlikely ones do." in " ".join(
        re.findall(r"[\w,;.]+", told)
    )


def test_where_text_goes_is_said_if_it_is_an_argument():
    assert (
        "; it reads standard input: `g2lstm translate RUN < FILE` or `echo" in run("translate", "run", "in.en").stderr
    )
    assert "; give the beginning of the text with --prompt\n" in run("generate", "run", "once upon").stderr


def test_a_group_of_commands_alone_shows_its_help():
    done = run("bench")
    assert (done.returncode, done.stderr) == (2, "")
    assert "Usage: g2lstm bench" in done.stdout


def test_debug_shows_the_traceback():
    with pytest.raises(G2Error, match="shape"):
        run("--debug", "bench", "layer", "--shape", "1,2")
