"""Counts the source files and lines that the wheel contains; `make count` runs it."""

from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "g2lstm"
KINDS = {
    ".py": "Python",
    ".cpp": "C++",
    ".h": "C++",
    ".c": "C",
    ".toml": "TOML",
    ".js": "page",
    ".css": "page",
    ".html": "page",
}


def main() -> None:
    """Prints a line per package and kind of source, then the totals."""
    files: Counter[tuple[str, str]] = Counter()
    lines: Counter[tuple[str, str]] = Counter()
    for path in PACKAGE.rglob("*"):
        if kind := KINDS.get(path.suffix):
            folder = path.relative_to(PACKAGE).parts[0] if path.parent != PACKAGE else "g2lstm"
            for key in ((folder, kind), ("total", kind)):
                files[key] += 1
                lines[key] += len(path.read_text().splitlines())
    print(f"{'package':14}{'source':10}{'files':>6}{'lines':>8}")
    for folder, kind in sorted(files, key=lambda key: (key[0] == "total", key)):
        print(f"{folder:14}{kind:10}{files[folder, kind]:6}{lines[folder, kind]:8,}")


if __name__ == "__main__":
    main()
