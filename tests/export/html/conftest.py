"""Pages opened from the disk, in a browser without a network."""

import pytest

from g2lstm import export_html
from tests.conftest import PATIENCE


@pytest.fixture
def open_page(browser, tmp_path):
    """Exports a run, opens the page, and fails if the browser has complained by the end of the test."""
    complaints, contexts = [], []

    def open_(run, width=1400, scheme="light", **options):
        path = tmp_path / f"{len(contexts)}.html"
        export_html(run, path, **options)
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True, reduced_motion="reduce"
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requested.append(request.url))
        page.goto(path.as_uri())
        page.evaluate("async () => { await g2lstm; }")
        return page

    requested = []
    yield open_
    for context in contexts:
        context.close()
    assert complaints == []
    assert all(url.startswith(("file:", "data:")) for url in requested)
