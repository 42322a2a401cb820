"""Real models and training loops of other projects, in an environment of their own."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
NAMES = ("word_language_model", "awd_lstm_lm", "fastai", "joeynmt", "tacotron2", "sb3_contrib", "silero_vad")
ALONE = ("fastai==2.8.12", "joeynmt==2.3.0")  # without their dependencies

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The Python of an environment with the projects in it, and the variables to run it with."""
    folder = tmp_path_factory.mktemp("third-party")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    for arguments in (
        ["--requirement", HERE / "requirements.txt"],
        ["--no-deps", *ALONE],
        ["--no-deps", "--target", folder / "torchaudio", "torchaudio==2.11.0"],
    ):
        done = subprocess.run([*pip, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"pip cannot install {arguments[-1]}: {done.stderr.strip().splitlines()[-1]}")
    variables = {"PYTHONPATH": str(ROOT), "G2LSTM_TORCHAUDIO": str(folder / "torchaudio"), "CUDA_VISIBLE_DEVICES": ""}
    return python, os.environ | variables


def run(environment, module, *arguments):
    python, variables = environment
    command = [python, "-m", f"tests.third_party.{module}", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_a_real_model_goes_through_it_all(environment, tmp_path, name):
    """Convert, train a step, freeze, compress, save, stream where causal; then load in another process."""
    run(environment, "check", name, str(tmp_path))
    run(environment, "check", name, str(tmp_path), "--load")


@pytest.mark.parametrize("library", ["lightning", "huggingface"])
def test_a_callback_converts_logs_and_freezes(environment, tmp_path, library):
    run(environment, "callbacks", library, str(tmp_path))


def test_the_loop_of_word_language_model(environment, tmp_path):
    run(environment, "loop", str(tmp_path))
