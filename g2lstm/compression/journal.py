"""What a search has measured, kept in a file so that it can be stopped at any time."""

import json
from pathlib import Path

from g2lstm.errors import G2Error
from g2lstm.files import parse_json, read_bounded, write_atomically

_MAX_BYTES = 2**26


class Journal:
    """The losses that were measured, by what was measured.

    Args:
        path: a JSON file; None to keep nothing.
        key: identifies model, data and encodings; what is kept under another key does not count.
    """

    def __init__(self, path: Path | None, key: str) -> None:
        self.path, self._key, self.losses = path, key, dict[str, float]()
        if path is not None and path.exists():
            try:
                kept = parse_json(read_bounded(path, _MAX_BYTES))
                losses = {str(name): float(loss) for name, loss in kept["losses"].items()}
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise G2Error(f"{path} is not the journal of a search: {error!r:.200}; delete it") from None
            if kept.get("key") == key:  # not of a model with other weights, say
                self.losses = losses

    def add(self, name: str, loss: float) -> None:
        """Keeps a loss."""
        self.losses[name] = loss
        if self.path is not None:
            with write_atomically(self.path) as file:
                file.write(json.dumps({"key": self._key, "losses": self.losses}, indent=1).encode())
