"""Prints the lowest versions that pyproject.toml allows users, as constraints; `make lowest` installs them."""

import re
import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Prints a line per direct dependency; what developers use stays as new as it is. An argument replaces torch's."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    chosen = {"torch": sys.argv[1]} if sys.argv[1:] else {}
    for requirement in [*project["dependencies"], *extras["text"], *extras["view"], *extras["export"]]:
        if floor := re.fullmatch(r"([\w.-]+)>=([\d.]+)", requirement):
            print(f"{floor[1]}=={chosen.get(floor[1], floor[2])}")


if __name__ == "__main__":
    main()
