"""Prints the pins of constraints.txt with the SHA-256 of their files: `python tools/hashes.py > hashes.txt`.

The files are those that pip chooses here. Compiled ones are marked as being for this Python and platform; elsewhere pip
passes over those lines. Torch is left out: each index has another file of it, with or without CUDA.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile
from urllib.parse import urlsplit

HEADING = "# The SHA-256 of what constraints.txt pins, but torch; made by `python tools/hashes.py > hashes.txt`."
HERE = 'python_version == "3.11" and sys_platform == "linux" and platform_machine == "x86_64"'


def main() -> None:
    """Asks pip which files it would install, and prints a line for each."""
    pins = [line for line in Path("constraints.txt").read_text().splitlines() if not line.startswith(("#", "torch=="))]
    with NamedTemporaryFile("w", suffix=".txt") as wanted:
        wanted.write("\n".join(pins))
        wanted.flush()
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps"]
        command += ["--only-binary", ":all:", "--report", "-", "--requirement", wanted.name]
        report = json.loads(subprocess.check_output(command))
    files = {file["metadata"]["name"].lower().replace("_", "-"): file["download_info"] for file in report["install"]}
    print(HEADING)
    for pin in pins:
        file = files[pin.split("==")[0].lower().replace("_", "-")]
        marker = "" if urlsplit(file["url"]).path.endswith("-none-any.whl") else f" ; {HERE}"
        print(f"{pin}{marker} --hash=sha256:{file['archive_info']['hashes']['sha256']}")


if __name__ == "__main__":
    main()
