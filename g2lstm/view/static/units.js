// The units of one word: each unit's gate as a square, their histogram, and one unit along the whole sentence.

import { colour, make } from "./dom.js";
import { GATES, LETTERS } from "./heat.js";
import { CONFIG, curveOf, drawCompared, layoutOf } from "./plot.js";
import { Raster } from "./raster.js";
import { loadPlotly, units as askUnits } from "./server.js";
import { isBinary, Squares } from "./squares.js";

const BINS = 20;
let panels = 0;

export class UnitsPanel {
  /* `change` is called with the new gate, unit (a text, "" for none), or at ("" to close). */
  constructor(change) {
    this.change = change;
    this.title = make("h3", { tabIndex: -1 });
    this.summary = make("p", { className: "quiet" });
    this.squares = new Squares((unit) => change({ unit: String(unit) }));
    this.sorted = make("input", { type: "checkbox" });
    this.unit = make("input", { type: "number", min: 0, step: 1, className: "number" });
    this.raster = new Raster(change);
    this.histogram = make("div", { className: "plot" });
    this.trace = make("div", { className: "plot" });
    this.message = make("p", { className: "quiet", role: "status" });
    const group = `units-${panels++}`;
    this.gates = make("fieldset", {}, make("legend", { textContent: "Gate" }), ...GATES.map((gate) => {
      const input = make("input", { type: "radio", name: group, value: gate });
      input.addEventListener("change", () => change({ gate }));
      return make("label", {}, input, make("span", {}, make("i", { textContent: LETTERS[gate] }), ` ${gate}`));
    }));
    const close = make("button", { type: "button", className: "plain", textContent: "Close" });
    close.addEventListener("click", () => {
      this.element.closest(".column").querySelector(".word[aria-pressed=true]")?.focus(); // where the focus came from
      change({ at: "", unit: "" });
    });
    const bar = make("div", { className: "line" }, this.gates,
      make("label", { className: "check" }, this.sorted, " sorted"), make("label", {}, "Unit ", this.unit), close);
    this.element = make("section", { className: "units", hidden: true }, this.title, bar, this.message, this.summary,
      this.squares.canvas, this.raster.element, this.histogram, this.trace);
    this.sorted.addEventListener("change", () => this.draw());
    this.unit.addEventListener("change", () => {
      const wanted = Math.min(Math.max(Math.round(Number(this.unit.value)), 0), this.count - 1);
      change({ unit: this.unit.value === "" ? "" : String(wanted) });
    });
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  hide() {
    this.element.hidden = true;
    this.key = null;
  }

  /* question: what the server is asked; layer: as in the reading; position, gate and unit: what is chosen. */
  async show(question, layer, position, gate, unit, signal) {
    this.element.hidden = false;
    this.gate = gate;
    this.count = layer.units;
    this.unit.max = layer.units - 1;
    this.unit.value = unit ?? "";
    for (const input of this.gates.querySelectorAll("input")) input.checked = input.value === gate;
    const key = JSON.stringify([question, position]);
    if (this.key !== key) {
      this.answer = await askUnits({ ...question, position }, signal);
      this.key = key;
    }
    this.position = position;
    this.title.textContent = `Units of “${this.answer.token}” in ${layer.title}`;
    this.draw();
    this.message.textContent = "";
    const along = unit === null ? null : await askUnits({ ...question, unit }, signal);
    try {
      if (!window.Plotly) this.message.textContent = "The drawing library is loading …";
      const plotly = await loadPlotly();
      if (signal.aborted) return;
      this.message.textContent = "";
      await this.plot(plotly, along, position, unit);
    } catch (error) {
      this.message.textContent = `No histogram: ${error.message}.`;
    }
  }

  draw() {
    if (this.element.hidden || !this.answer) return;
    const options = { sorted: this.sorted.checked, marked: this.unit.value === "" ? null : Number(this.unit.value) };
    const values = this.answer.values[this.gate];
    this.summary.textContent = this.squares.draw(values, this.gate, { width: this.element.clientWidth, ...options });
    this.raster.draw(this.answer.timelines[this.gate], this.answer.tokens, this.position, this.unit.value);
  }

  async plot(plotly, along, position, unit) {
    const values = this.answer.values[this.gate];
    const counts = new Array(BINS).fill(0);
    for (const value of values) counts[Math.min(Math.floor(value * BINS), BINS - 1)] += 100 / values.length;
    const centres = counts.map((_, bin) => (bin + 0.5) / BINS);
    const bars = { type: "bar", x: centres, y: counts, width: 1 / BINS, marker: { color: colour("accent") },
      hovertemplate: "%{y:.1f} %<extra></extra>" };
    if (isBinary(values)) {
      bars.text = counts.map((count, bin) => (bin % (BINS - 1) ? "" : `${Math.round(count)} %`));
      bars.textposition = "inside";
    }
    await drawCompared(plotly, "units", this.histogram, [bars], layoutOf(`${this.gate} gate`, "% of units", [0, 1]));
    this.trace.hidden = !along;
    if (!along) return plotly.purge(this.trace);
    const places = along.tokens.map((_, place) => place);
    const curves = GATES.map((gate) => ({ ...curveOf(gate, gate === this.gate), mode: "lines+markers", x: places,
      y: along.values[gate], text: along.tokens.map(plain), hovertemplate: "%{text}: %{y:.4f}" }));
    for (const curve of curves) if (isBinary(curve.y)) Object.assign(curve, { mode: "lines", line: { ...curve.line, shape: "hvh" } });
    const layout = layoutOf("", `unit ${unit}`, null, [-0.03, 1.03]);
    const names = along.tokens.map((token) => plain(cut(token)));
    Object.assign(layout.xaxis, { tickvals: places, ticktext: names, tickangle: -60 });
    Object.assign(layout, { showlegend: true, legend: { orientation: "h", y: 1.18 }, height: 260, hovermode: "x" });
    const line = { color: colour("rule"), width: 6 };
    layout.shapes = [{ type: "line", x0: position, x1: position, yref: "paper", y0: 0, y1: 1, line, layer: "below" }];
    return plotly.react(this.trace, curves, layout, CONFIG);
  }
}

const cut = (token) => (token.length > 12 ? `${token.slice(0, 11)}…` : token);

// Plotly interprets some HTML in labels, but what a visitor typed must stay text.
const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
