"""The report in a real browser."""

import pytest

from g2lstm.look.report import write_report


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_opens_offline_at_any_width(browser, paths, tmp_path, scheme):
    write_report(paths, tmp_path / "report.html", texts=["the cat sat on the mat ."])
    context = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme=scheme, offline=True)
    page = context.new_page()
    complaints = []
    page.on("console", lambda message: complaints.append(message.text))
    page.goto((tmp_path / "report.html").as_uri())
    assert page.locator("h1").inner_text() == "g2, lstm, mt"
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (colour == "rgb(255, 255, 255)") == (scheme == "light")
    context.close()
    assert complaints == []
