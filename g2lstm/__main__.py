"""`g2lstm` and `python -m g2lstm`: the command line, which an interrupt ends quietly while it still loads."""

import signal
import sys


def main() -> None:
    """Loads the command line and runs it."""
    try:
        from g2lstm.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    run()


if __name__ == "__main__":
    main()
