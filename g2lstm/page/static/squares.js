// The units of a layer at one word, each as a square in the colour of its gate.

import { colour, make, tip } from "./dom.js";
import { colourOf, css } from "./heat.js";

const SQUARE = { least: 12, most: 16 }; // pixels, with the gap

export const isBinary = (values) => values.every((value) => value === 0 || value === 1);

export class Squares {
  /* `choose` is called with the number of a unit when it is clicked. */
  constructor(choose = () => {}) {
    this.canvas = make("canvas", { role: "img" });
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", tip.hide);
    this.canvas.addEventListener("click", (event) => {
      const unit = this.unitUnder(event);
      if (unit !== undefined) choose(unit);
    });
  }

  /* values: of all units; gate: its name; width: in pixels; sorted: by value; marked: a unit with a frame, or null.
     Returns what there is to see, in words. */
  draw(values, gate, { width, sorted = false, marked = null }) {
    // Layers are often a power of two wide: then every row is full.
    const columns = 2 ** Math.max(Math.floor(Math.log2(width / SQUARE.least)), 0);
    const square = Math.min(Math.floor(width / columns), SQUARE.most);
    const rows = Math.ceil(values.length / columns);
    const scale = window.devicePixelRatio || 1;
    Object.assign(this.canvas, { width: columns * square * scale, height: rows * square * scale });
    Object.assign(this.canvas.style, { width: `${columns * square}px`, height: `${rows * square}px` });
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    const order = Array.from(values.keys());
    if (sorted) order.sort((a, b) => values[a] - values[b]);
    Object.assign(this, { values, gate, order, columns, square });
    order.forEach((unit, place) => {
      context.fillStyle = css(colourOf(values[unit]));
      const [x, y] = [(place % columns) * square, Math.floor(place / columns) * square];
      context.fillRect(x, y, square - 1, square - 1);
      if (unit === marked) {
        context.strokeStyle = colour("c1");
        context.lineWidth = 2;
        context.strokeRect(x, y, square - 1, square - 1);
      }
    });
    const share = (test) => `${Math.round((100 * values.filter(test).length) / values.length)} %`;
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    const text = isBinary(values)
      ? `${values.length} units: ${share((v) => v === 0)} closed (0), ${share((v) => v === 1)} open (1).`
      : `${values.length} units: mean ${mean.toFixed(3)}, ${share((v) => v < 0.1)} closed (below 0.1), ` +
        `${share((v) => v > 0.9)} open (above 0.9).`;
    this.canvas.setAttribute("aria-label", `The ${gate} gate of ${text}`);
    return text;
  }

  unitUnder(event) {
    const column = Math.floor(event.offsetX / this.square);
    const place = Math.floor(event.offsetY / this.square) * this.columns + column;
    return column < this.columns ? this.order?.[place] : undefined;
  }

  point(event) {
    const unit = this.unitUnder(event);
    if (unit === undefined) return tip.hide();
    const { clientX: left, clientY: top } = event;
    const lines = [`unit ${unit}`, `${this.gate} ${this.values[unit].toFixed(4)}`];
    return tip.show({ left, top: top - 4, bottom: top + 14, width: 0 }, lines);
  }
}
