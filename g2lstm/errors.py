"""The exception for mistakes that the caller can fix, and its message if an optional package is missing."""

from collections.abc import Iterator
from contextlib import contextmanager


class G2Error(ValueError):
    """The caller asked for something impossible. The message says what is wrong, and what is allowed or what to do."""


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Turns a failed import inside the block into a `G2Error` that says which extra to install.

    `extra` is its name in pyproject.toml, such as "text"; `what` is the function or command, as the user calls it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "g2lstm":
            raise  # our own mistake: installing a package would not help
        raise G2Error(
            f"{what} needs the packages of the extra '{extra}', but {error.name} is not installed: "
            f"pip install 'g2lstm[{extra}]'"
        ) from None
