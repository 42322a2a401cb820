"""`ViewedRun`: a run that the page shows, with the one thread that loads its model and reads with it."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from pathlib import Path
from typing import TypeVar

from starlette.exceptions import HTTPException

from g2lstm.errors import G2Error
from g2lstm.look.examine import count_some
from g2lstm.runs.directory import RunDirectory
from g2lstm.runs.records import GatesFile
from g2lstm.runs.trained import load
from g2lstm.tasks.reading import Reading

MAX_WAITING = 200  # requests; more are told to try again
READINGS = 8  # kept: a visitor looks at many units of one sentence
EXAMPLES = 6

Result = TypeVar("Result")


class ViewedRun:
    """A run under the name that the page uses.

    Only one thread uses its model, since a model has one gate mode at a time. Requests for other runs, for this run's
    state and for the page's files don't wait for that thread.

    Args:
        name: unique among the runs shown.
        directory: the run directory.
        data_dir: where the named data sets are.
    """

    def __init__(self, name: str, directory: RunDirectory, data_dir: Path | None = None) -> None:
        self.name = name
        self.directory = directory
        self.recipe = directory.recipe
        self.compression = directory.compression
        self.state = "loading"  # or "ready" or "failed"
        self.message = f"{name} is loading"  # unless it is ready, why not
        self.examples: list[str] = []  # sentences to start with
        self._data_dir = data_dir
        self._read: Callable[[str, str], Reading]
        self._count: Callable[[], GatesFile | None]
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
        """Counts of the gates, from `g2lstm gates` or made now; None if there is no text to count on."""
        return await self._do(lambda: self.directory.gate_counts() or self._count())

    async def _do(self, work: Callable[[], Result]) -> Result:
        if self.state != "ready":
            raise HTTPException(503, self.message)
        if self._waiting >= MAX_WAITING:
            raise HTTPException(503, f"{self.name} is answering {MAX_WAITING} other requests; try again in a moment")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._waiting -= 1

    def _load(self) -> None:
        try:
            trained = load(self.directory.path)
            self.examples = trained.examples(EXAMPLES, self._data_dir)
            self._read = lru_cache(READINGS)(lambda text, gate: trained.read(text, eval_gate=gate))
            self._count = cache(lambda: count_some(trained, self._data_dir))
            self.message, self.state = "", "ready"
        except Exception as error:  # whatever it is, the page must say so
            if not isinstance(error, G2Error):
                logging.getLogger(__name__).exception("cannot load %s", self.name)
            self.message, self.state = str(error) or type(error).__name__, "failed"
