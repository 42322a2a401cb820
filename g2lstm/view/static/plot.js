// How Plotly's drawings look. Drawings that are compared share one scale.

import { colour } from "./dom.js";
import { GATES } from "./heat.js";

const LINES = { input: "dot", forget: "solid", output: "dash" };
const COLOURS = ["c0", "c1", "c5"];

export const CONFIG = { displayModeBar: false, responsive: true };

// Each gate has its own colour and dashes.
export function curveOf(gate, isChosen = false) {
  const line = { dash: LINES[gate], width: isChosen ? 3 : 1.7, color: colour(COLOURS[GATES.indexOf(gate)]) };
  return { type: "scatter", name: gate, line };
}

export function layoutOf(xTitle, yTitle, xRange, yRange) {
  const axis = { gridcolor: colour("rule"), zeroline: false, linecolor: colour("rule"), fixedrange: true, automargin: true };
  return {
    height: 190, margin: { l: 44, r: 8, t: 8, b: 36 }, paper_bgcolor: "transparent", plot_bgcolor: "transparent",
    font: { family: "system-ui, sans-serif", size: 12, color: colour("ink") }, bargap: 0.06, showlegend: false,
    xaxis: { ...axis, title: { text: xTitle }, ...(xRange ? { range: xRange } : {}) },
    yaxis: { ...axis, title: { text: yTitle }, rangemode: "tozero", ...(yRange ? { range: yRange } : {}) },
  };
}

const compared = new Map(); // by name of the comparison: the drawings, and the highest value of each

/* Draws one of the drawings of a comparison; all visible ones get the scale of the highest. */
export async function drawCompared(plotly, name, plot, traces, layout) {
  const tops = compared.get(name) ?? new Map();
  compared.set(name, tops.set(plot, Math.max(...traces.flatMap(({ y }) => y))));
  for (const other of tops.keys()) if (other !== plot && !other.checkVisibility()) tops.delete(other);
  const end = () => 1.05 * Math.max(...tops.values());
  layout.yaxis.range = [0, end()];
  await plotly.react(plot, traces, layout, CONFIG);
  const others = [...tops.keys()].filter((each) => each.layout && each.layout.yaxis.range[1] !== end());
  await Promise.all(others.map((each) => plotly.relayout(each, { "yaxis.range": [0, end()] })));
}
