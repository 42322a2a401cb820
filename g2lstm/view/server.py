"""`create_app`: the web application behind `g2lstm view`, which serves the page and answers questions about runs."""

import asyncio
import unicodedata
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from g2lstm.errors import G2Error
from g2lstm.look.counts import HIGH, LOW
from g2lstm.look.switches import Timelines
from g2lstm.page.palette import css_variables
from g2lstm.tasks.reading import GATES, LayerReading, Reading
from g2lstm.tasks.recipes import task_of
from g2lstm.version import __version__
from g2lstm.view.connections import Guard, without_repetition
from g2lstm.view.run import ViewedRun

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MAX_WORDS = 200
MAX_CHARACTERS = 4000  # a long word can become many tokens

_routes = APIRouter()


def create_app(runs: Sequence[ViewedRun], *, hosts: Iterable[str] = LOOPBACK, any_address: bool = False) -> FastAPI:
    """The application; runs begin to load when it starts.

    Args:
        runs: what to show, with unique names.
        hosts: names that requests may be addressed to.
        any_address: also accept any numeric address.
    """

    @asynccontextmanager
    async def loading(_: FastAPI) -> AsyncIterator[None]:
        without_repetition(asyncio.get_running_loop())
        for run in runs:
            run.start()
        yield
        for run in runs:
            run.stop()

    app = FastAPI(
        lifespan=loading,
        openapi_url=None,  # so no pages about it either
        exception_handlers=dict.fromkeys((G2Error, HTTPException, RequestValidationError, Exception), _failed),
    )
    app.add_middleware(Guard, hosts=hosts, any_address=any_address)
    app.state.runs = {run.name: run for run in runs}
    app.include_router(_routes)
    app.mount("/plotly", StaticFiles(packages=[("plotly", "package_data")]))
    app.mount("/", StaticFiles(packages=[("g2lstm.view", "static"), ("g2lstm.page", "static")], html=True))
    return app


class RunQuestion(BaseModel):
    """A question about a run."""

    model_config = ConfigDict(extra="forbid", strict=True)

    run: str = Field(max_length=500)


class Question(RunQuestion):
    """A sentence for a run to read."""

    text: str
    gate: Literal["soft", "tempered", "hard"]


class UnitsQuestion(Question):
    """All units at one word of a sentence, or one unit at all words."""

    layer: int = Field(ge=0)
    position: int | None = Field(default=None, ge=0)
    unit: int | None = Field(default=None, ge=0)


@_routes.get("/api/runs")
async def _runs(request: Request) -> JSONResponse:
    runs = [_run_answer(run) for run in request.app.state.runs.values()]
    limits = {"words": MAX_WORDS, "characters": MAX_CHARACTERS}
    return JSONResponse({"version": __version__, "limits": limits, "runs": runs})


@_routes.post("/api/read")
async def _read(question: Question, request: Request) -> JSONResponse:
    return JSONResponse(_reading_answer(await _reading(question, request)))


@_routes.post("/api/units")
async def _units(question: UnitsQuestion, request: Request) -> JSONResponse:
    reading = await _reading(question, request)
    _check_index("layer", question.layer, len(reading.layers))
    layer = reading.layers[question.layer]
    tokens = reading.tokens[layer.side]
    position, unit = question.position, question.unit
    if position is not None and unit is None:
        _check_index("position", position, len(tokens))
        values = {gate: _numbers(getattr(layer, gate)[position]) for gate in GATES}
        found = {gate: Timelines.of(getattr(layer, gate)) for gate in GATES}
        timelines = {gate: _timelines_answer(each) for gate, each in found.items() if each is not None}
        return JSONResponse({"token": tokens[position], "values": values, "tokens": tokens, "timelines": timelines})
    if unit is not None and position is None:
        _check_index("unit", unit, layer.input.shape[1])
        values = {gate: _numbers(getattr(layer, gate)[:, unit]) for gate in GATES}
        return JSONResponse({"tokens": tokens, "values": values})
    raise G2Error("ask for either a position or a unit")


@_routes.post("/api/histograms")
async def _histograms(question: RunQuestion, request: Request) -> JSONResponse:
    run = _run_named(question.run, request)
    found = await run.statistics()
    if found is None:
        return JSONResponse({"command": f"g2lstm gates {run.directory.path}"})
    return JSONResponse(found.model_dump(by_alias=True, exclude_none=True))


@_routes.get("/palette.css")
async def _palette() -> Response:
    return Response(css_variables(), media_type="text/css")


def _run_named(name: str, request: Request) -> ViewedRun:
    runs: dict[str, ViewedRun] = request.app.state.runs
    if name not in runs:
        raise HTTPException(404, f"there is no run {name[:100]!r}; there are {', '.join(runs)}")
    return runs[name]


async def _reading(question: Question, request: Request) -> Reading:
    return await _run_named(question.run, request).reading(cleaned(question.text), question.gate)


def cleaned(text: str) -> str:
    """A visitor's text as one line, with single spaces between words; control characters become spaces.

    Raises:
        G2Error: it has no word in it, or too many.
    """
    if len(text) > MAX_CHARACTERS:
        raise G2Error(f"the text has {len(text):,} characters; shorten it to at most {MAX_CHARACTERS:,}")
    readable = (" " if unicodedata.category(mark) in ("Cc", "Cs", "Zl", "Zp") else mark for mark in text)
    words = "".join(readable).split()
    if not words:
        raise G2Error("there is no word in the text; type a sentence")
    if len(words) > MAX_WORDS:
        raise G2Error(f"the text has {len(words):,} words; shorten it to at most {MAX_WORDS}")
    return " ".join(words)


def _check_index(name: str, value: int, count: int) -> None:
    if value >= count:
        raise G2Error(f"there is no {name} {value}; there are {count}, counted from 0")


def _run_answer(run: ViewedRun) -> dict[str, Any]:
    recipe = run.recipe
    return {
        "name": run.name,
        "task": recipe.task,
        "title": task_of(recipe).trained.title,
        "state": run.state,
        "message": run.message,
        "method": recipe.model.method,
        "gate": recipe.model.eval_gate,
        "data": recipe.data.name or "own text",
        "compression": run.compression,
        "examples": run.examples,
    }


def _reading_answer(reading: Reading) -> dict[str, Any]:
    """Everything about a sentence except single units."""
    answer: dict[str, Any] = {
        "mode": reading.mode,
        "tokens": reading.tokens,
        "unknown": reading.unknown,
        "surprisal": {side: [round(bits, 3) for bits in each] for side, each in reading.surprisal.items()},
        "layers": [_layer_answer(layer) for layer in reading.layers],
    }
    if reading.next_words:
        answer["next_words"] = [[word, round(share, 6)] for word, share in reading.next_words]
        answer["next_texts"] = reading.next_texts
    if reading.attention is not None:
        answer |= {"translation": reading.translation, "produced": reading.produced}
        answer["attention"] = _numbers(reading.attention)
    return answer


def _layer_answer(layer: LayerReading) -> dict[str, Any]:
    """For each gate and word the mean over units, and the share of units that are saturated ("decided")."""
    values = {gate: getattr(layer, gate) for gate in GATES}
    return {
        "name": layer.name,
        "title": layer.title,
        "side": layer.side,
        "direction": layer.direction,
        "units": layer.input.shape[1],
        "means": {gate: _numbers(value.mean(axis=1)) for gate, value in values.items()},
        "decided": {gate: _numbers(((value < LOW) | (value > HIGH)).mean(axis=1)) for gate, value in values.items()},
    }


def _timelines_answer(found: Timelines) -> dict[str, Any]:
    """For each unit a text of 0 and 1, a character for each token."""
    rows = ["".join("01"[is_open] for is_open in row) for row in found.is_open.astype(int).tolist()]
    return {"units": found.units, "rows": rows, "closed": found.closed, "open": found.open}


def _numbers(values: npt.NDArray[Any]) -> Any:
    return np.round(values.astype(np.float64), 6).tolist()


async def _failed(_: Request, error: Exception) -> JSONResponse:
    status, message = 500, "this is a bug in g2lstm; the terminal that runs the server shows more"
    headers = None
    if isinstance(error, G2Error):
        status, message = 400, str(error)
    elif isinstance(error, HTTPException):
        status, message, headers = error.status_code, str(error.detail), error.headers
    elif isinstance(error, RequestValidationError):
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "body")
        status, message = 422, f"cannot understand the request: {f'{place[:100]}: ' if place else ''}{first['msg']}"
    return JSONResponse({"error": message}, status, headers)
