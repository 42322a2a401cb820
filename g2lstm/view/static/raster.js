// Units of a binary gate along a sentence: a row for each, filled at the words where the gate is open.

import { colour, make, tip } from "./dom.js";

const CELL = { least: 5, most: 30, height: 13 }; // pixels, with the gap
const LEFT = 44, ANGLE = -Math.PI / 3.6;

export class Raster {
  /* `change` is called with the unit that was clicked. */
  constructor(change) {
    this.change = change;
    this.title = make("p", { className: "quiet" });
    this.canvas = make("canvas", { role: "img" });
    this.element = make("div", { className: "raster", hidden: true }, this.title, this.canvas);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", tip.hide);
    this.canvas.addEventListener("click", (event) => {
      const found = this.under(event);
      if (found) change({ unit: String(found.unit) });
    });
  }

  /* found: what the server says about the gate, if it is binary. */
  draw(found, tokens, position, chosen) {
    this.element.hidden = !found?.units.length;
    if (this.element.hidden) return;
    Object.assign(this, { found, tokens });
    const { units, rows, closed, open } = found;
    this.title.textContent = `The ${units.length} units that switch most in this sentence, filled where open; ` +
      `${closed} others stay closed, ${open} stay open.`;
    const room = this.element.clientWidth - LEFT - 40;
    this.cell = Math.min(Math.max(Math.floor(room / tokens.length), CELL.least), CELL.most);
    this.top = 12 + 7 * Math.min(Math.max(...tokens.map((token) => token.length)), 12);
    const [width, height] = [LEFT + this.cell * tokens.length + 40, this.top + rows.length * CELL.height];
    const scale = window.devicePixelRatio || 1;
    Object.assign(this.canvas, { width: width * scale, height: height * scale });
    Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    this.canvas.setAttribute("aria-label", this.title.textContent);
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    context.font = "11px system-ui, sans-serif";
    const [ink, full, empty, mark] = ["ink", "c0", "rule", "c1"].map(colour);
    const every = Math.ceil(12 / this.cell);
    tokens.forEach((token, place) => {
      if (place % every) return;
      context.save();
      context.translate(LEFT + (place + 0.5) * this.cell, this.top - 5);
      context.rotate(ANGLE);
      context.fillStyle = place === position ? mark : ink;
      context.fillText(token.length > 12 ? `${token.slice(0, 11)}…` : token, 0, 0);
      context.restore();
    });
    context.textAlign = "right";
    units.forEach((unit, row) => {
      const y = this.top + row * CELL.height;
      context.fillStyle = String(unit) === chosen ? mark : ink;
      context.fillText(String(unit), LEFT - 6, y + CELL.height - 3);
      [...rows[row]].forEach((bit, place) => {
        context.fillStyle = bit === "1" ? full : empty;
        context.fillRect(LEFT + place * this.cell, y, this.cell - 1, CELL.height - 2);
      });
    });
  }

  under(event) {
    const row = Math.floor((event.offsetY - this.top) / CELL.height);
    const place = Math.floor((event.offsetX - LEFT) / this.cell);
    const unit = this.found?.units[row];
    return unit === undefined ? null : { unit, token: this.tokens[place], bit: this.found.rows[row][place] };
  }

  point(event) {
    const found = this.under(event);
    if (!found?.bit) return tip.hide();
    const { clientX: left, clientY: top } = event;
    const lines = [`unit ${found.unit}`, `${found.token}: ${found.bit === "1" ? "open" : "closed"}`];
    return tip.show({ left, top: top - 4, bottom: top + 14, width: 0 }, lines);
  }
}
