"""Compiles the CPU kernels, if it can; everything else about the package stands in pyproject.toml."""

import platform

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FLAGS = ["-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden"]
# One library for each instruction set; the room's `kernel.py` loads the best that the processor has.
BUILDS = {"_kernel_generic": []}
if platform.machine().lower() in ("x86_64", "amd64"):
    BUILDS |= {"_kernel_avx2": ["-mavx2", "-mfma"], "_kernel_avx512": ["-march=x86-64-v4"]}
KERNELS = {
    "nn": {
        "sources": ["g2lstm/nn/csrc/lstm.cpp", "g2lstm/nn/csrc/random.cpp"],
        "depends": ["g2lstm/nn/csrc/simd.h"],
        "flags": {},
        "link": [],
    },
    "compression": {
        "sources": ["g2lstm/compression/csrc/stack.cpp"],
        "depends": [
            "g2lstm/compression/csrc/block.h",
            "g2lstm/compression/csrc/products.h",
            "g2lstm/compression/csrc/team.h",
            "g2lstm/nn/csrc/simd.h",
        ],
        "flags": {"_kernel_avx2": ["-mf16c"], "_kernel_avx512": ["-mavx512vnni"]},
        "link": ["-pthread"],
    },
}


class BuildKernel(build_ext):
    """A plain shared library that Python opens with ctypes; with OpenMP where the compiler has it."""

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
                        f"{ext.name} is not compiled; g2lstm works without it, slower. "
                        "Install a C++ compiler, then install g2lstm again; `g2lstm info` tells what it has"
                    )
                    raise


setup(
    ext_modules=[
        Extension(
            f"g2lstm.{room}.{name}",
            kernel["sources"],
            depends=kernel["depends"],
            extra_compile_args=[*FLAGS, *flags, *kernel["flags"].get(name, [])],
            extra_link_args=kernel["link"],
            language="c++",
            optional=True,  # without a compiler the package installs all the same, and computes in torch operations
        )
        for room, kernel in KERNELS.items()
        for name, flags in BUILDS.items()
    ],
    cmdclass={"build_ext": BuildKernel},
)
