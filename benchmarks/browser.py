"""How large the page of a run is, and how long it takes in headless Chromium to start and to answer.

python benchmarks/browser.py RUN ["a sentence"]

For a translation model: the median time to translate the sentence, with the recipe's beam and greedily. For a language
model: to read it and say what comes next. Needs the extra `dev` and Debian's package chromium.
"""

import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from g2lstm import export_html

SENTENCES = {"mt": "ein mann mit einem hut steht vor einem haus .", "lm": "the man with the hat is standing in a house"}
ROUNDS = 15
MEASURE = """async ([text, rounds, options]) => {
  const { model } = await g2lstm;
  const times = [];
  for (let round = 0; round < rounds; round += 1) {
    const began = performance.now();
    await (model.translate ? model.translate(text, options) : model.reading(text, () => {}));
    times.push(performance.now() - began);
  }
  return times;
}"""


def main() -> None:
    """Measures the run that the first argument names."""
    if len(sys.argv) < 2:
        sys.exit('usage: python benchmarks/browser.py RUN ["a sentence"]')
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "page.html"
        made = export_html(sys.argv[1], page_file)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_context(offline=True).new_page()
        began = time.perf_counter()
        page.goto(page_file.as_uri())
        facts = page.evaluate("async () => { const { facts } = await g2lstm; return [facts.task, facts.search.beam]; }")
        ready = time.perf_counter() - began
        task, beam = facts
        text = sys.argv[2] if len(sys.argv) > 2 else SENTENCES[task]
        found = {"bytes": made.bytes, "weights": made.weights, "seconds until it is ready": round(ready, 2)}
        for width in (beam, 1) if task == "mt" else (None,):
            name = "milliseconds" if width is None else f"milliseconds, beam {width}"
            options = {} if width is None else {"beam": width}
            times = page.evaluate(MEASURE, [text, ROUNDS, options])
            found[name] = {"first": round(times[0], 1), "median": round(statistics.median(times[1:]), 1)}
        print(json.dumps({"text": text, **found}, indent=2))
        browser.close()


if __name__ == "__main__":
    main()
