"""`g2lstm` and `python -m g2lstm`: loads the command line and runs it."""

import signal
import sys

from g2lstm.errors import G2Error, needs


def main() -> None:
    """Loads the command line and runs it; an interrupt while it loads ends it quietly."""
    try:
        with needs("text", "the command line"):
            from g2lstm.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except G2Error as error:
        sys.stderr.write(f"g2lstm: {error}\n")
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
