"""Toy runs behind a server; nothing is written to the user's cache."""

import threading
import time
from contextlib import ExitStack, contextmanager

import pytest

from g2lstm.look.examine import named_runs
from tests.conftest import PATIENCE
from tests.look.toys import language_run, translation_run


@pytest.fixture(scope="session")
def paths(folder):
    """Two language models and one that translates, apart from those of other tests."""
    own = folder / "view"
    own.mkdir()
    return [
        language_run(own, "g2", method="gumbel"),
        language_run(own, "lstm", method="sigmoid"),
        translation_run(own, "mt"),
    ]


def load_runs(paths):
    from g2lstm.view.run import ViewedRun

    return [ViewedRun(name, directory) for name, directory in named_runs(paths).items()]


@contextmanager
def serving(runs, wait=True, **options):
    """A client of an application that has loaded what it can."""
    from starlette.testclient import TestClient

    from g2lstm.view.server import create_app

    app = create_app(runs, **options)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        while wait and any(run.state == "loading" for run in runs):
            time.sleep(0.01)
        yield client


@pytest.fixture(scope="session")
def client(paths):
    """Shared by all tests: what one changes it changes back, and readings are cached."""
    with serving(load_runs(paths)) as client:
        yield client


@pytest.fixture
def make_client(paths):
    """Clients of applications of their own: with runs, or freshly loaded ones."""
    with ExitStack() as stack:
        yield lambda runs=None, **options: stack.enter_context(serving(runs or load_runs(paths), **options))


@pytest.fixture(scope="session")
def address(paths):
    """The address of a real server, which runs in a thread and is patient with slow clients."""
    import uvicorn

    from g2lstm.cli.view import _listen
    from g2lstm.view import connections
    from g2lstm.view.server import create_app

    runs = load_runs(paths)
    listening = _listen("127.0.0.1", 0)
    config = connections.configured(create_app(runs))
    config.timeout_keep_alive = 1  # which ends a test of connections
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started or any(run.state == "loading" for run in runs):
        time.sleep(0.01)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "REQUEST_SECONDS", 600)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    server.should_exit = True
    thread.join(timeout=120)
    assert not thread.is_alive()
    listening.close()


@pytest.fixture
def open_page(browser, address):
    """Opens the page at an address's end, and fails if the browser has complained by the end of the test."""
    complaints, contexts = [], []

    def open_(end="", width=1200, height=900, scheme="light", wait=".word"):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address + end)
        if wait:
            page.wait_for_selector(wait)
        return page

    open_.complaints = complaints
    yield open_
    for context in contexts:
        context.close()
    assert complaints == []
