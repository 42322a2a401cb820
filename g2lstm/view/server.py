"""`create_app`: the web application behind `g2lstm view`: the page's own files and a few questions about runs."""

import gzip
import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response

from g2lstm.errors import G2Error
from g2lstm.look.examine import GatesFile
from g2lstm.version import __version__
from g2lstm.view.answers import reading_answer, unit_answer, units_answer
from g2lstm.view.guard import Guard
from g2lstm.view.run import NotReadyError, ViewedRun
from g2lstm.view.sentence import MAX_CHARACTERS, MAX_WORDS, cleaned

LOOPBACK = ("127.0.0.1", "localhost", "::1")
FILES = {"/": "index.html", "/theme.js": "theme.js", "/page.js": "page.js", "/page.css": "page.css"}
FILES |= {
    f"/{name}": name
    for name in (
        "dom.js",
        "heat.js",
        "column.js",
        "more.js",
        "plot.js",
        "split.js",
        "units.js",
        "server.js",
        "icon.svg",
    )
}

_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


class RunQuestion(BaseModel):
    """A run."""

    model_config = ConfigDict(extra="forbid", strict=True)

    run: str = Field(max_length=500)


class Question(RunQuestion):
    """A sentence for a run."""

    text: str
    gate: Literal["soft", "tempered", "hard"]


class UnitsQuestion(Question):
    """One word's units, or one unit's words, in the reading of a sentence."""

    layer: int = Field(ge=0)
    position: int | None = Field(default=None, ge=0)
    unit: int | None = Field(default=None, ge=0)


def create_app(runs: Sequence[ViewedRun], *, hosts: Iterable[str] = LOOPBACK, any_address: bool = False) -> FastAPI:
    """The application; runs begin to load when it starts.

    Args:
        runs: what it shows, by unique names.
        hosts: names that requests may be addressed to.
        any_address: accept addresses in numbers as well, whichever they are.
    """
    by_name = {run.name: run for run in runs}

    @asynccontextmanager
    async def loading(_: FastAPI) -> AsyncIterator[None]:
        for run in runs:
            run.start()
        yield
        for run in runs:
            run.stop()

    app = FastAPI(title="g2lstm view", lifespan=loading, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, hosts=hosts, any_address=any_address)
    _add_errors(app)
    for path, name in FILES.items():
        _add_file(app, path, name)

    def run_named(name: str) -> ViewedRun:
        if name not in by_name:
            raise HTTPException(404, f"there is no run {name[:100]!r}; there are {', '.join(by_name)}")
        return by_name[name]

    @app.get("/api/runs")
    async def list_runs() -> JSONResponse:
        limits = {"words": MAX_WORDS, "characters": MAX_CHARACTERS}
        return JSONResponse({"version": __version__, "limits": limits, "runs": [_run_answer(run) for run in runs]})

    @app.post("/api/read")
    async def read(question: Question) -> JSONResponse:
        reading = await run_named(question.run).reading(cleaned(question.text), question.gate)
        return JSONResponse(reading_answer(reading))

    @app.post("/api/units")
    async def units(question: UnitsQuestion) -> JSONResponse:
        reading = await run_named(question.run).reading(cleaned(question.text), question.gate)
        if question.layer >= len(reading.layers):
            raise G2Error(f"there is no layer {question.layer}; the model has {len(reading.layers)}, from 0")
        values = reading.layers[question.layer].input
        if (question.position is None) == (question.unit is None):
            raise G2Error("ask for either a position or a unit")
        if question.position is not None:
            _check_index("position", question.position, len(values))
            return JSONResponse(units_answer(reading, question.layer, question.position))
        assert question.unit is not None
        _check_index("unit", question.unit, values.shape[1])
        return JSONResponse(unit_answer(reading, question.layer, question.unit))

    @app.post("/api/histograms")
    async def histograms(question: RunQuestion) -> JSONResponse:
        run = run_named(question.run)
        return JSONResponse(histograms_answer(run, await run.statistics()))

    @app.get("/plotly.js")
    async def plotly(request: Request) -> Response:
        content, tag = await run_in_threadpool(_plotly)
        return _file_response(request, content, tag, "text/javascript", is_compressed=True)

    return app


def histograms_answer(run: ViewedRun, found: GatesFile | None) -> dict[str, Any]:
    """The counts, or the command that makes them."""
    if found is None:
        return {"command": f"g2lstm gates {run.directory.path}"}
    return found.model_dump(by_alias=True, exclude_none=True)


def _check_index(name: str, value: int, count: int) -> None:
    if value >= count:
        raise G2Error(f"there is no {name} {value}; there are {count}, from 0")


def _run_answer(run: ViewedRun) -> dict[str, Any]:
    recipe = run.recipe
    return {
        "name": run.name,
        "task": recipe.task,
        "state": run.state,
        "message": run.message,
        "method": recipe.model.method,
        "gate": recipe.model.eval_gate,
        "data": recipe.data.name or "own text",
        "compression": run.compression,
        "examples": run.examples,
    }


def _add_file(app: FastAPI, path: str, name: str) -> None:
    content = files("g2lstm.view").joinpath("static", name).read_bytes()
    tag = _tag(content)

    @app.get(path)
    async def file(request: Request) -> Response:
        return _file_response(request, content, tag, _TYPES[name.rsplit(".", 1)[1]])


def _file_response(request: Request, content: bytes, tag: str, kind: str, *, is_compressed: bool = False) -> Response:
    headers = {"etag": tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    if is_compressed:
        headers |= {"content-encoding": "gzip", "vary": "accept-encoding"}
    return Response(content, headers=headers, media_type=f"{kind}; charset=utf-8")


@lru_cache(maxsize=1)
def _plotly() -> tuple[bytes, str]:
    """Plotly's script as its Python package ships it, compressed; every browser takes it so."""
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    content = gzip.compress(get_plotlyjs().encode(), compresslevel=6)
    return content, _tag(content)


def _tag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:16]}"'


def _add_errors(app: FastAPI) -> None:
    def answer(status: int, message: str, **extra: Any) -> JSONResponse:
        return JSONResponse({"error": message, **extra}, status_code=status)

    @app.exception_handler(G2Error)
    async def mistake(_: Request, error: G2Error) -> JSONResponse:
        return answer(400, str(error))

    @app.exception_handler(NotReadyError)
    async def not_ready(_: Request, error: NotReadyError) -> JSONResponse:
        return answer(503, str(error))

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> JSONResponse:
        return answer(error.status_code, str(error.detail))

    @app.exception_handler(Exception)
    async def bug(_: Request, __: Exception) -> JSONResponse:  # the terminal shows the traceback
        return answer(500, "this is a bug of ours; the terminal in which the server runs says more")

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "body")
        return answer(422, f"the request is not understood: {place[:100] + ': ' if place else ''}{first['msg']}")
