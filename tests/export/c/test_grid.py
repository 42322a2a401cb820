"""Exports in C with every compiler, instruction set and encoding that we promise; slow."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import g2lstm
from g2lstm.compression.stream import stream
from tests.export.c.build import SANITIZED, STRICT, Stream, compiler, run_self_test
from tests.export.c.models import ENCODINGS, Detector, mixed
from tests.runs.toys import translation_run

pytestmark = pytest.mark.slow

STEPS = 10_000
CORTEX = {
    "m0": ["-mcpu=cortex-m0"],
    "m4": ["-mcpu=cortex-m4", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"],
    "m7": ["-mcpu=cortex-m7", "-mfloat-abi=hard", "-mfpu=fpv5-d16"],
}
VECTORS = {  # what each instruction set needs of the processor, and of the compiler
    "plain": ([], ["-DPLAIN_C"]),
    "sse2": (["sse2"], []),
    "avx2": (["avx2", "fma", "f16c"], ["-mavx2", "-mfma", "-mf16c"]),
    "avx512": (["avx512bw"], ["-mavx512f", "-mavx512bw"]),
    "vnni": (["avx512bw", "avx512_vnni"], ["-mavx512f", "-mavx512bw", "-mavx512vnni"]),
}


def need_processor(features: list[str]) -> None:
    """Skips the test on a processor without these."""
    known = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
    if missing := [one for one in features if one not in known]:
        pytest.skip(f"this processor has no {', '.join(missing)}")


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """All encodings in one model, a model as others write it, and a translation model."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("exports")
    trained = g2lstm.load(translation_run(folder / "run"))
    trained.model = g2lstm.compress(trained.model, "small")
    models = {"mixed": mixed(), "detector": Detector().eval(), "translation": trained}
    return [g2lstm.export_c(model, folder / f"{name}.c").files[1] for name, model in models.items()]


@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize("cc", ["gcc", "clang"])
def test_no_warning_and_nothing_undefined(exports, cc, vectors):
    features, flags = VECTORS[vectors]
    need_processor(features)
    for path in exports:
        assert "passed" in run_self_test(path, [*STRICT, *SANITIZED, *flags], cc)
        assert "passed" in run_self_test(path, [*STRICT, "-O3", *flags], cc)


@pytest.mark.parametrize("flags", [[], ["-march=armv8.2-a+dotprod"]], ids=["plain", "dot product"])
def test_64_bit_arm(exports, flags):
    emulator = compiler("qemu-aarch64")
    for path in exports:
        said = run_self_test(
            path, [*STRICT, "-O2", "-static", *flags], "aarch64-linux-gnu-gcc", (emulator, "-cpu", "max")
        )
        assert "passed" in said


@pytest.mark.parametrize("core", CORTEX)
def test_cortex_m(exports, core):
    """Code for the core, with system calls of Linux: qemu's user mode has no board."""
    emulator, start = compiler("qemu-arm"), Path(__file__).with_name("cortex_m.c")
    flags = [*STRICT, "-O2", "-mthumb", *CORTEX[core], "--specs=nosys.specs", "-nostartfiles", str(start)]
    for path in exports:
        assert "passed" in run_self_test(path, flags, "arm-none-eabi-gcc", (emulator, "-cpu", "max"))


def test_a_small_stack_fits_512_kilobytes_of_flash(tmp_path):
    model = g2lstm.compress(g2lstm.G2LSTM(256, 256, 2), "small")
    made = g2lstm.export_c(model, tmp_path / "stack.c")
    cc, size = compiler("arm-none-eabi-gcc"), compiler("arm-none-eabi-size")
    for level in ("-O2", "-Os"):
        target = tmp_path / "stack.o"
        subprocess.run([cc, "-std=c99", level, "-mthumb", *CORTEX["m4"], "-c", made.files[1], "-o", target], check=True)
        text, data, bss = subprocess.check_output([size, target], text=True).splitlines()[1].split()[:3]
        assert int(text) + int(data) <= 512 * 1024
        assert int(text) - made.sizes.weights <= 6000  # "a few thousand more"
        assert int(bss) == 0


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_ten_thousand_steps_of_each_encoding(tmp_path, encoding, kind):
    torch.manual_seed(1)
    layer = getattr(g2lstm, f"G2{kind}")(24, 40, 2).eval()
    model = layer if encoding == "float32" else g2lstm.compress(layer, ENCODINGS[encoding])
    made = g2lstm.export_c(model, tmp_path / "stack.c")
    x = np.random.default_rng(0).normal(size=(STEPS, 24)).astype(np.float32)
    wanted = stream(model, 1).sequence(x)
    for flags in (("-O3", "-march=native"), ("-O2", "-DPLAIN_C")):
        found = Stream(made.files[1], 40, flags).sequence(x)
        assert (np.abs(found - wanted) <= made.tolerance * (1 + np.abs(wanted))).all()


def test_a_language_model_for_ten_thousand_steps(tmp_path):
    """With a tied table of six bits, and residual connections."""
    from g2lstm.tasks.lm.model import LanguageModel

    torch.manual_seed(2)
    model = g2lstm.compress(LanguageModel(300, 40, 40, 3, residual=True).eval(), "small")
    made = g2lstm.export_c(model, tmp_path / "words.c")
    tokens = np.random.default_rng(0).integers(300, size=STEPS)
    wanted = stream(model, 1).sequence(tokens)
    found = Stream(made.files[1], 300, ("-O3", "-march=native")).sequence(tokens)
    assert (np.abs(found - wanted) <= made.tolerance * (1 + np.abs(wanted))).all()


def test_hard_gates_for_many_steps(tmp_path):
    """A gate may flip where its pre-activation is within rounding of 0; with these weights and inputs none does."""
    torch.manual_seed(3)
    model = g2lstm.compress(g2lstm.G2LSTM(24, 40, 2, gates="ifo", eval_gate="hard").eval(), "int8")
    made = g2lstm.export_c(model, tmp_path / "hard.c")
    x = np.random.default_rng(0).normal(size=(200, 24)).astype(np.float32)
    wanted = stream(model, 1).sequence(x)
    found = Stream(made.files[1], 40).sequence(x)
    assert (np.abs(found - wanted) <= made.tolerance * (1 + np.abs(wanted))).all()


def test_any_number_of_streams_share_the_code(tmp_path):
    """All state is in the struct: streams that take turns do not disturb each other."""
    model = g2lstm.compress(nn.LSTM(6, 16).eval(), "int8")
    first = Stream(g2lstm.export_c(model, tmp_path / "one.c").files[1], 16)
    second = first.another()
    x, y = (np.random.default_rng(seed).normal(size=(20, 6)).astype(np.float32) for seed in (0, 1))
    alone = [stream(model, 1).sequence(one) for one in (x, y)]
    both = [[first.step(a), second.step(b)] for a, b in zip(x, y, strict=True)]
    assert np.abs(np.array(both).swapaxes(0, 1) - np.array(alone)).max() < 1e-4
