"""Exports a translation run as C, and compares its translations of a test set with those of Python.

Run it: python benchmarks/c_translation.py runs/multi30k-small [--sentences 500] [--data-dir DIR]
"""

import argparse
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import torch

import g2lstm

MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include "mt.h"

static mt_workspace workspace;
static int32_t source[MT_MAX_SOURCE], out[MT_MAX_LENGTH];

int main(int count, char **arguments)
{
    const int beam = count > 1 ? atoi(arguments[1]) : 1;
    for (int size; scanf("%d", &size) == 1;) {
        for (int k = 0; k < size; ++k)
            if (scanf("%d", &source[k]) != 1) return 1;
        const int length = mt_translate(&workspace, source, size, beam, MT_LENGTH_PENALTY, out, NULL);
        for (int k = 0; k < length; ++k) printf("%d ", out[k]);
        printf("\\n");
    }
    return 0;
}
"""


def main() -> None:
    """Prints how many translations differ, and the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--sentences", type=int, default=500)
    parser.add_argument("--data-dir", type=Path)
    given = parser.parse_args()
    trained = g2lstm.load(given.run)
    lines, _ = trained.split("test", given.data_dir)
    sources = trained.source.encode_lines([trained.cleaned(line) for line in lines[: given.sentences]])
    text = "\n".join(f"{len(one)} {' '.join(map(str, one))}" for one in sources)
    compiler = shutil.which("cc")
    assert compiler is not None, "there is no C compiler, cc"
    with tempfile.TemporaryDirectory() as folder:
        made = g2lstm.export_c(trained, Path(folder) / "mt.c")
        print("\n".join(made.sizes.lines()))
        (Path(folder) / "main.c").write_text(MAIN)
        limit = f"-DMT_MAX_SOURCE={max(map(len, sources))}"
        build = [compiler, "-O3", "-march=native", limit, "mt.c", "main.c", "-o", "mt", "-lm"]
        subprocess.run(build, cwd=folder, check=True)
        search = trained.c_search()
        for beam in dict.fromkeys((1, search.beam)):
            start = time.perf_counter()
            said = subprocess.run(
                [Path(folder) / "mt", str(beam)], input=text, capture_output=True, text=True, check=True
            )
            seconds = time.perf_counter() - start
            found = [list(map(int, line.split())) for line in said.stdout.splitlines()]
            options = {name: getattr(search, name) for name in ("length_penalty", "forbidden", "utf8")} | {"beam": beam}
            wanted = [best.tokens for [best] in trained._translate(sources, batch_size=1, **options)]
            python = time.perf_counter() - start - seconds
            wrong = sum(one != other for one, other in zip(found, wanted, strict=True))
            print(
                f"beam {beam}: {wrong} of {len(sources)} differ; C {len(sources) / seconds:.0f} sentences/s "
                f"on one thread, Python {len(sources) / python:.0f} one at a time on {torch.get_num_threads()}"
            )


if __name__ == "__main__":
    main()
