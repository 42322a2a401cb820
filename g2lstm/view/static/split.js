// Histograms of all gates over a split of the data, layer by layer; loaded when opened.

import { make } from "./dom.js";
import { GATES, keyOf } from "./heat.js";
import { curveOf, drawCompared, layoutOf } from "./plot.js";
import { Gone, histograms, loadPlotly } from "./server.js";

const BINS = 50;

export class SplitPanel {
  /* gone: called when the server does not answer. */
  constructor(gone) {
    this.gone = gone;
    this.message = make("p", { className: "quiet", role: "status" });
    this.plots = make("div");
    this.element = make("details", { className: "split", hidden: true },
      make("summary", { textContent: "Gates over many sentences" }), this.message, this.plots);
    this.element.addEventListener("toggle", () => this.draw());
  }

  setRun(run) {
    this.element.hidden = run?.state !== "ready";
    if (this.run === run?.name) return;
    this.run = run?.name;
    this.answer = null;
  }

  /* layer: the key of the one to show, or "all". */
  show(layer) {
    this.layer = layer;
    this.draw();
  }

  async draw() {
    if (!this.element.open || this.element.hidden) return;
    const run = this.run;
    try {
      if (!this.answer) {
        this.message.textContent = "Counting …";
        this.plots.replaceChildren();
        const answer = await histograms(run);
        if (run !== this.run) return;
        this.answer = answer;
      }
      if (this.answer.command) {
        this.message.replaceChildren("There is no text here to count on. To count the gates, run: ",
          make("code", { textContent: this.answer.command }));
        return;
      }
      const plotly = await loadPlotly();
      const { data, mode, layers } = this.answer;
      const tokens = Object.entries(data.tokens).map(([side, count]) => `${count.toLocaleString("en")} ${side} tokens`);
      this.message.textContent = `${tokens.join(", ")}${data.split ? ` of ${data.split}` : ""}; ${mode}.`;
      const found = layers.filter((layer) => keyOf(layer) === this.layer);
      const plots = (found.length ? found : layers).map((layer) => {
        const plot = make("div", { className: "plot" });
        this.plots.append(plot);
        return [layer, plot];
      });
      this.plots.replaceChildren(...plots.flatMap(([layer, plot]) => [make("h3", { textContent: layer.title }), plot]));
      this.plots.append(...drawExplained(this.answer.explained.filter((one) => !found.length || keyOf(one) === this.layer)));
      for (const [layer, plot] of plots) {
        await drawCompared(plotly, `split ${keyOf(layer)}`, plot, curvesOf(layer), layout());
      }
    } catch (error) {
      this.message.textContent = `No histograms: ${error.message}.`;
      if (error instanceof Gone) this.gone();
    }
  }
}

// A gate that is 0 or 1.
function twoBars(gate, counts, whole) {
  const [shares, at] = [[counts[0], counts.at(-1)].map((count) => (100 * count) / whole), GATES.indexOf(gate)];
  const { name, line } = curveOf(gate);
  return { type: "bar", name, x: [0.03 + 0.06 * at, 0.85 + 0.06 * at], y: shares, width: 0.05, marker: { color: line.color },
    text: shares.map((share) => `${Math.round(share)} %`), textposition: "outside", cliponaxis: false,
    hovertemplate: "%{y:.1f} %" };
}

// The units whose switching can be explained, with examples: the gate is open at the marked words.
function drawExplained(units) {
  if (!units.length) return [];
  const rows = units.map((one) => {
    const percent = (share) => `${Math.round(100 * share)} %`;
    const texts = one.examples.map(({ tokens, open }) => make("p", {}, ...tokens.flatMap((token, place) =>
      [open[place] ? make("mark", { textContent: token }) : token, " "])));
    const said = `: open at ${percent(one.open_with)} of ${one.feature}, ${percent(one.open_without)} elsewhere`;
    return make("li", {}, make("strong", { textContent: `${one.title}, ${one.gate} ${one.unit}` }), said, ...texts);
  });
  return [make("h3", { textContent: "Units that can be explained" }), make("ul", { className: "explained" }, ...rows)];
}

function layout() {
  const made = layoutOf("gate", "% of values", [0, 1]);
  return { ...made, height: 220, showlegend: true, legend: { orientation: "h", y: 1.2 } };
}

function curvesOf(layer) {
  return GATES.map((gate) => {
    const { counts } = layer.gates[gate];
    const whole = counts.reduce((sum, count) => sum + count, 0);
    if (counts[0] + counts.at(-1) === whole && layer.gates[gate].distance_to_nearer_end === 0) return twoBars(gate, counts, whole);
    const wide = counts.length / BINS;
    const shares = Array.from({ length: BINS }, (_, bin) =>
      (100 * counts.slice(bin * wide, (bin + 1) * wide).reduce((sum, count) => sum + count, 0)) / whole);
    return { ...curveOf(gate), mode: "lines", x: shares.map((_, bin) => (bin + 0.5) / BINS), y: shares,
      line: { ...curveOf(gate).line, shape: "hvh" }, hovertemplate: "%{y:.1f} %" };
  });
}
