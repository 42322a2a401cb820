"""A process that makes parts of large texts: it reads one a line, and answers with an error's message or none."""

import json
import os
import signal
import sys
from contextlib import suppress

from g2lstm.errors import G2Error
from g2lstm.text.parts import Part

_STANDARD_OUTPUT = 1


def main() -> None:
    """Ends when there is nothing more to read, as when the process that started it dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it, too, gets an interrupt, and ends this one after its part
    for line in sys.stdin:
        message = ""
        try:
            Part(*json.loads(line)).make()
        except G2Error as error:
            message = str(error)
        with suppress(BrokenPipeError):  # it died
            os.write(_STANDARD_OUTPUT, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
