"""Compiles the CPU kernels, if it can; pyproject.toml says everything else about the package."""

import os
import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

CODE = Path("g2lstm/nn/csrc")
FLAGS = ["-std=c++17", "-O3", "-g0", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden"]
# One library for each instruction set; `nn/kernel.py` loads the fastest that the processor can run.
BUILDS = {"_kernel_generic": []}
if platform.machine().lower() in ("x86_64", "amd64"):
    BUILDS |= {
        "_kernel_avx2": ["-mavx2", "-mfma", "-mf16c"],
        "_kernel_avx512": ["-march=x86-64-v4"],
        "_kernel_avx512vnni": ["-march=x86-64-v4", "-mavx512vnni"],
        "_kernel_avx512bf16": ["-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16"],
    }


class BuildKernel(build_ext):
    """A plain shared library that Python opens with ctypes; with OpenMP where the compiler has it."""

    def get_ext_filename(self, fullname: str) -> str:
        """Its file, whose name does not say for which Python: it knows nothing of Python, so it is for all."""
        return str(Path(*fullname.split("."))) + (".pyd" if os.name == "nt" else ".so")

    def build_extension(self, ext: Extension) -> None:
        """Tries with threads, then without."""
        flags, link = list(ext.extra_compile_args), list(ext.extra_link_args)
        for threads in (["-fopenmp"], []):
            ext.extra_compile_args, ext.extra_link_args = [*flags, *threads], [*link, *threads]
            try:
                super().build_extension(ext)
                break
            except Exception:  # whatever the compiler's front end raises; setuptools reports that of the second try
                if not threads:
                    self.warn(
                        f"{ext.name} is not compiled; g2lstm works without it, slower. Install a C++ compiler, then "
                        "install g2lstm again; `g2lstm info` shows what it has"
                    )
                    raise


class OneWheel(bdist_wheel):
    """A wheel for all versions of Python on a platform."""

    def get_tag(self) -> tuple[str, str, str]:
        """The tags in the wheel's name."""
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            f"g2lstm.nn.{name}",
            sorted(map(str, CODE.glob("*.cpp"))),
            depends=sorted(map(str, CODE.glob("*.h"))),
            extra_compile_args=[*FLAGS, *flags],
            extra_link_args=["-pthread"],
            language="c++",
            optional=True,  # without a compiler the package installs all the same, and computes in torch operations
        )
        for name, flags in BUILDS.items()
    ],
    cmdclass={"build_ext": BuildKernel, "bdist_wheel": OneWheel},
)
