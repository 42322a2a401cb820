// What is shown, as one state that the controls, the address and the columns share.

import { Column, MODES, sentence } from "./column.js";
import { find, say, setOptions, tip } from "./dom.js";
import { drawLegend, GATES, keyOf, mostBits, rangeOf } from "./heat.js";
import { mostOf } from "./more.js";
import * as server from "./server.js";

// a and b are runs, agate and bgate their gate modes ("" for the run's own), at is the word whose units are shown, gate
// and unit say which of its units. All are strings.
const START = {
  text: "", a: "", agate: "", b: "", bgate: "", layer: "all", rows: "all", value: "means", stretch: "", at: "",
  gate: "forget", unit: "",
};
const CHOICES = {
  agate: Object.keys(MODES), bgate: Object.keys(MODES), gate: GATES, rows: ["all", ...GATES], value: ["means", "decided"],
};
const page = {
  state: { ...START },
  known: { runs: [], limits: { words: 200, characters: 4000 } },
  change(values) {
    Object.assign(page.state, values);
    writeAddress();
    show();
  },
  gone() {
    tell("The server doesn’t answer. Is “g2lstm view” still running? Trying again …");
    for (const column of columns) column.forget();
    refreshIn(2000);
  },
  retry: () => refreshIn(1000),
  added: [], // the sentences before each word that was added
  add(text) {
    page.added.push(page.state.text);
    page.change({ text: page.state.text.trimEnd() + text, at: "", unit: "" });
  },
  back() {
    page.change({ text: page.added.pop(), at: "", unit: "" });
  },
};
const columns = ["a", "b"].map((id) => new Column(id, page));

// The address holds everything that differs from the start.

function readAddress() {
  Object.assign(page.state, START);
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
    if (!Object.hasOwn(START, name)) continue;
    if (!CHOICES[name] || CHOICES[name].includes(value)) page.state[name] = value;
  }
}

function writeAddress() {
  const shown = new URLSearchParams(Object.entries(page.state).filter(([name, value]) => value !== START[name]));
  history.replaceState(null, "", `#${shown}`);
}

// From the state to the page.

async function show() {
  fillControls();
  await Promise.all(columns.map((column) => column.load()));
  draw();
}

function draw() {
  const { state } = page;
  const layers = columns.flatMap((column) => column.visible());
  const gates = state.rows === "all" ? GATES : [state.rows];
  const range = state.stretch && layers.length ? rangeOf(layers, gates, state.value) : [0, 1];
  const readings = columns.map((column) => column.reading);
  const [most, bits] = [Math.max(...readings.map(mostOf)), mostBits(readings)];
  const top = () => document.activeElement.getBoundingClientRect().top;
  const before = top();
  tip.hide(); // its word may be gone
  drawLegend(range);
  fillLayers();
  for (const column of columns) {
    column.draw(range, most, bits);
    column.drawUnits();
    column.split.show(state.layer);
  }
  if (document.activeElement !== document.body) scrollBy(0, top() - before); // what has the focus stays where it is
}

function fillControls() {
  const { known, state } = page;
  if (find("text").value !== state.text) find("text").value = state.text;
  const words = state.text.trim() ? state.text.trim().split(/\s+/).length : 0;
  find("count").textContent = words ? `${words} ${words === 1 ? "word" : "words"}` : "";
  for (const input of document.querySelectorAll("#rows input")) input.checked = input.value === state.rows;
  find("value").value = state.value;
  find("stretch").checked = Boolean(state.stretch);
  const examples = known.runs.find((run) => run.name === state.a)?.examples ?? [];
  setOptions(find("examples"), [["", "Pick a sentence …"], ...examples.map((text) => [text, text])]);
  find("examples").value = "";
}

function fillLayers() {
  const layers = columns.flatMap((column) => column.reading?.layers ?? []).map((layer) => [keyOf(layer), layer.title]);
  setOptions(find("layer"), [["all", "all layers"], ...new Map(layers)]);
  find("layer").value = layers.some(([key]) => key === page.state.layer) ? page.state.layer : "all";
}

// The server is asked for its runs at the start, while they load, and after it was gone.

let timer = null;

function refreshIn(milliseconds) {
  clearTimeout(timer);
  timer = setTimeout(refresh, milliseconds);
}

function tell(message) {
  find("gone").textContent = message;
  find("gone").hidden = !message;
}

async function refresh() {
  try {
    page.known = await server.runs();
  } catch (error) {
    if (error instanceof server.Gone) page.gone();
    else tell(sentence(error.message));
    return;
  }
  tell("");
  find("version").textContent = `g2lstm ${page.known.version}`;
  for (const column of columns) column.fill();
  setDefaults();
  if (page.known.runs.some((run) => run.state === "loading")) refreshIn(400);
  await show();
}

// Without an address: the first run, the next run of the same task beside it, and an example.
function setDefaults() {
  const { known: { runs }, state } = page;
  if (!state.a) {
    state.a = runs[0].name;
    if (!location.hash) state.b = runs.slice(1).find((run) => run.task === runs[0].task)?.name ?? "";
  }
  if (!location.hash && !state.text) state.text = runs.find((run) => run.name === state.a)?.examples[0] ?? "";
}

// The controls.

let typing = null;

function readText() {
  clearTimeout(typing);
  if (find("text").value === page.state.text) return;
  page.added = []; // they lead to another sentence
  page.change({ text: find("text").value });
}

find("text").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(readText, 250);
});
find("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey) return;
  event.preventDefault();
  readText();
});
find("ask").addEventListener("submit", (event) => event.preventDefault());
find("examples").addEventListener("change", ({ target }) => {
  page.added = [];
  if (target.value) page.change({ text: target.value, at: "", unit: "" });
});
for (const name of ["layer", "value"]) {
  find(name).addEventListener("change", ({ target }) => page.change({ [name]: target.value }));
}
find("rows").addEventListener("change", ({ target }) => page.change({ rows: target.value }));
find("stretch").addEventListener("change", ({ target }) => page.change({ stretch: target.checked ? "1" : "" }));
find("link").addEventListener("click", async () => {
  writeAddress();
  try {
    await navigator.clipboard.writeText(location.href);
    find("link").textContent = "Copied";
    say("Link copied.");
  } catch {
    find("link").textContent = "See the address bar";
  }
  setTimeout(() => { find("link").textContent = "Copy link"; }, 2000);
});
addEventListener("hashchange", () => {
  readAddress();
  refresh();
});
document.addEventListener("themechange", draw);

readAddress();
refresh();
