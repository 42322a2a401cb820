"""The report in a real browser."""

import pytest

from g2lstm.look.report import write_report
from tests.conftest import PATIENCE


@pytest.fixture(scope="module")
def report(paths, tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "report.html"
    write_report(paths[:2], out, texts=["the cat sat on the mat ."])
    return out


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_opens_offline_at_any_width(browser, report, scheme):
    context = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme=scheme, offline=True)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    complaints = []
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(report.as_uri())
    assert page.locator("h1").inner_text() == "g2, lstm"
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (colour == "rgb(255, 255, 255)") == (scheme == "light")
    ink = page.evaluate("getComputedStyle(document.querySelector('svg text')).fill")
    assert ink == ("rgb(29, 37, 48)" if scheme == "light" else "rgb(228, 232, 238)")  # pictures follow the theme
    context.close()
    assert complaints == []
