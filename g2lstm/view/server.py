"""`create_app`: the web application behind `g2lstm view`: the page's own files and a few questions about runs."""

import gzip
import hashlib
import unicodedata
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from g2lstm.errors import G2Error
from g2lstm.look.counts import HIGH, LOW
from g2lstm.look.pictures.style import css_variables
from g2lstm.tasks.reading import GATES, LayerReading, Reading
from g2lstm.tasks.recipes import task_of
from g2lstm.version import __version__
from g2lstm.view.guard import Guard
from g2lstm.view.run import NotReadyError, ViewedRun

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
        for run in runs:
            run.start()
        yield
        for run in runs:
            run.stop()

    app = FastAPI(
        title="g2lstm view", lifespan=loading, docs_url=None, redoc_url=None, openapi_url=None,
        exception_handlers={
            G2Error: _mistake, NotReadyError: _not_ready, HTTPException: _refused, RequestValidationError: _malformed,
            Exception: _bug,
        },
    )  # fmt: skip
    app.add_middleware(Guard, hosts=hosts, any_address=any_address)
    app.state.runs = {run.name: run for run in runs}
    app.include_router(_routes)
    app.mount("/", StaticFiles(packages=[("g2lstm.view", "static")], html=True))
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
    if (question.position is None) == (question.unit is None):
        raise G2Error("ask for either a position or a unit")
    if question.position is not None:
        _check_index("position", question.position, len(tokens))
        values = {gate: _numbers(getattr(layer, gate)[question.position]) for gate in GATES}
        return JSONResponse({"token": tokens[question.position], "values": values})
    assert question.unit is not None
    _check_index("unit", question.unit, layer.input.shape[1])
    values = {gate: _numbers(getattr(layer, gate)[:, question.unit]) for gate in GATES}
    return JSONResponse({"tokens": tokens, "values": values})


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


@_routes.get("/plotly.js")
async def _plotly(request: Request) -> Response:
    content, tag = await run_in_threadpool(_compressed_plotly)
    headers = {"etag": tag, "content-encoding": "gzip", "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type="text/javascript")


@lru_cache(maxsize=1)
def _compressed_plotly() -> tuple[bytes, str]:
    """Plotly's script as its Python package ships it, compressed once (any browser can read that), and its ETag."""
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    content = gzip.compress(get_plotlyjs().encode(), compresslevel=6)
    return content, f'"{hashlib.sha256(content).hexdigest()[:16]}"'


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
        "layers": [_layer_answer(layer) for layer in reading.layers],
    }
    if reading.next_words:
        answer["next_words"] = [[word, round(share, 6)] for word, share in reading.next_words]
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


def _numbers(values: npt.NDArray[Any]) -> Any:
    return np.round(values.astype(np.float64), 6).tolist()


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status_code=status)


async def _mistake(_: Request, error: Any) -> JSONResponse:
    return _error(400, str(error))


async def _not_ready(_: Request, error: Any) -> JSONResponse:
    return _error(503, str(error))


async def _refused(_: Request, error: Any) -> JSONResponse:
    return _error(error.status_code, str(error.detail))


async def _malformed(_: Request, error: Any) -> JSONResponse:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    return _error(422, f"cannot understand the request: {place[:100] + ': ' if place else ''}{first['msg']}")


async def _bug(_: Request, __: Any) -> JSONResponse:
    return _error(500, "this is a bug in g2lstm; the terminal that runs the server shows more")
