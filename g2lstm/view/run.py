"""`ViewedRun`: a run that the page shows, with the one thread that loads its model and reads with it."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from g2lstm.errors import G2Error
from g2lstm.look.examine import GatesFile, count_some
from g2lstm.runs.directory import RunDirectory
from g2lstm.runs.trained import load
from g2lstm.tasks.reading import Reading
from g2lstm.tasks.trained import Trained

MAX_WAITING = 200  # requests; others are asked to try again
CACHE_BYTES = 16 * 2**20  # about forty sentences of thirty words with a small model
EXAMPLES = 6

Result = TypeVar("Result")


class NotReadyError(Exception):
    """The run can't answer now: it is loading, has failed or is too busy; the message says which."""


class ViewedRun:
    """A run under the name that the page uses.

    Only one thread uses its model, since a model has one gate mode at a time. Requests for other runs, for this run's
    state and for the page's files don't wait for that thread.

    Args:
        name: unique among the runs shown.
        directory: the run directory.
        data_dir: where the named data sets are.

    Attributes:
        state: "loading", "ready" or "failed".
        message: why it failed.
        examples: sentences to start with.
    """

    def __init__(self, name: str, directory: RunDirectory, data_dir: Path | None = None) -> None:
        self.name = name
        self.directory = directory
        self.recipe = directory.recipe
        self.compression = directory.compression
        self.state = "loading"
        self.message = ""
        self.examples: list[str] = []
        self._data_dir = data_dir
        self._trained: Trained | None = None
        self._readings: OrderedDict[tuple[str, str], Reading] = OrderedDict()
        self._counted: GatesFile | None = None
        self._waiting = 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"view-{name}")

    def start(self) -> None:
        """Start to load the model in the background."""
        self._thread.submit(self._load)

    def stop(self) -> None:
        """Drop the work that has not started."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def reading(self, text: str, gate: str) -> Reading:
        """How the model reads a cleaned sentence with "soft", "tempered" or "hard" gates."""
        return await self._do(lambda: self._read(text, gate))

    async def statistics(self) -> GatesFile | None:
        """Counts of the gates: those of `g2lstm gates`, or counted now; None if there is no text to count on."""
        return await self._do(self._count)

    async def _do(self, work: Callable[[], Result]) -> Result:
        if self.state == "loading":
            raise NotReadyError(f"{self.name} is loading")
        if self.state == "failed":
            raise NotReadyError(self.message)
        if self._waiting >= MAX_WAITING:
            raise NotReadyError(f"{self.name} is answering {MAX_WAITING} other requests; try again in a moment")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._waiting -= 1

    def _load(self) -> None:
        try:
            self._trained = load(self.directory.path)
            self.examples = self._trained.examples(EXAMPLES, self._data_dir)
            self.state = "ready"
        except Exception as error:  # whatever it is, the page must say so
            if not isinstance(error, G2Error):
                logging.getLogger(__name__).exception("cannot load %s", self.name)
            self.message = str(error) or type(error).__name__
            self.state = "failed"

    def _read(self, text: str, gate: str) -> Reading:
        found = self._readings.pop((text, gate), None)
        if found is None:
            assert self._trained is not None
            found = self._trained.read(text, eval_gate=gate)
        self._readings[text, gate] = found
        while len(self._readings) > 1 and sum(map(_bytes, self._readings.values())) > CACHE_BYTES:
            self._readings.popitem(last=False)
        return found

    def _count(self) -> GatesFile | None:
        if (written := GatesFile.of_run(self.directory)) is not None:
            return written
        if self._counted is None:
            assert self._trained is not None
            self._counted = count_some(self._trained, self._data_dir)
        return self._counted


def _bytes(reading: Reading) -> int:
    attention = 0 if reading.attention is None else reading.attention.nbytes
    return attention + sum(layer.input.nbytes + layer.forget.nbytes + layer.output.nbytes for layer in reading.layers)
