// The heat rows: a sentence whose words stand over the mean of each gate, layer by layer; and its colours.

import { find, isDark, make, tip } from "./dom.js";

export const GATES = ["input", "forget", "output"];
export const LETTERS = { input: "i", forget: "f", output: "o" };

// Steadily darker, so that they can be told apart in grey and by colour-blind people. In the dark theme they run the
// other way: a closed gate always fades into the page.
const STOPS = getComputedStyle(document.documentElement).getPropertyValue("--heat").trim().split(" ").map((hex) =>
  [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));

export function colourOf(value, [low, high] = [0, 1]) {
  const share = high > low ? Math.min(Math.max((value - low) / (high - low), 0), 1) : 0.5;
  const at = (isDark() ? 1 - share : share) * (STOPS.length - 1);
  const index = Math.min(Math.floor(at), STOPS.length - 2);
  return STOPS[index].map((from, channel) => from + (STOPS[index + 1][channel] - from) * (at - index));
}

const luminance = (rgb) => {
  const [r, g, b] = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};

export const css = (rgb) => `rgb(${rgb.map(Math.round).join(" ")})`;

// Black or white, whichever reads better on a colour: contrast is at least 4.5:1.
export const inkOn = (rgb) => (luminance(rgb) > 0.179 ? "#000" : "#fff");

export const short = (value) => (value >= 0.995 ? "1.0" : value.toFixed(2).slice(1));

export function paint(cell, value, range) {
  const rgb = colourOf(value, range);
  cell.style.background = css(rgb);
  cell.style.color = inkOn(rgb);
}

export function drawLegend(range) {
  const steps = Array.from({ length: 21 }, (_, k) => css(colourOf(range[0] + (k / 20) * (range[1] - range[0]), range)));
  find("ramp").style.background = `linear-gradient(to right, ${steps.join(", ")})`;
  find("low").textContent = range[0].toFixed(2);
  find("high").textContent = range[1].toFixed(2);
}

export const keyOf = (layer) => (layer.direction === "backward" ? `${layer.name} backward` : layer.name);

// The lowest and highest of the values shown, for stretched colours.
export function rangeOf(layers, gates, value) {
  const values = layers.flatMap((layer) => gates.flatMap((gate) => layer[value][gate]));
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return high - low > 1e-6 ? [low, high] : [0, 1];
}

/* One layer as a list of words, each a button. `choose(position, gate)` is called on click or Enter. With `bits`, a strip
   under each word shows its surprisal; a full one stands for so many bits. */
export function drawLayer(reading, layer, { gates, value, range, chosen, choose, bits = 0 }) {
  const tokens = reading.tokens[layer.side];
  const unknown = new Set(reading.unknown[layer.side] ?? []);
  const list = make("ol", { className: "words", "aria-label": `${layer.title}, ${tokens.length} words` });
  list.dataset.layer = keyOf(layer);
  tokens.forEach((token, position) => {
    const lines = GATES.map((gate) => {
      const [mean, decided] = [layer.means[gate][position], layer.decided[gate][position]];
      return `${gate} ${mean.toFixed(4)} (${Math.round(100 * decided)} % near 0 or 1)`;
    });
    const surprisal = reading.surprisal?.[layer.side]?.[position - 1]; // nothing is said about the first
    if (surprisal !== undefined) lines.unshift(`surprise ${surprisal.toFixed(1)} bits, probability ${chance(surprisal)}`);
    if (unknown.has(position)) lines.unshift("unknown: read as <unk>");
    const name = make("span", { className: "token", textContent: token });
    const cells = gates.map((gate) => {
      const number = layer[value][gate][position];
      const cell = make("span", { className: "cell number", textContent: short(number), "aria-hidden": "true" });
      cell.dataset.gate = gate;
      paint(cell, number, range);
      return cell;
    });
    const strip = bits && layer.side in (reading.surprisal ?? {}) ? drawStrip(surprisal ?? 0, bits) : null;
    const word = make("button", { type: "button", className: "word" }, name, make("span", { className: "cells" }, ...cells),
      strip);
    word.setAttribute("aria-label", `${token}: ${lines.join(", ")}`);
    word.dataset.position = position;
    word.classList.toggle("unknown", unknown.has(position));
    word.classList.toggle("special", token === "<eos>");
    word.tabIndex = position === (chosen ?? 0) ? 0 : -1;
    word.setAttribute("aria-pressed", position === chosen);
    const show = () => tip.show(word.getBoundingClientRect(), [token, ...lines]);
    word.addEventListener("pointerenter", () => { show(); mark(layer.side, position); });
    word.addEventListener("pointerleave", () => { tip.hide(); mark(null); });
    word.addEventListener("focus", () => { if (word.matches(":focus-visible")) show(); });
    word.addEventListener("blur", tip.hide);
    word.addEventListener("click", (event) => choose(position, event.target.dataset.gate));
    list.append(make("li", {}, word));
  });
  list.dataset.side = layer.side;
  list.addEventListener("keydown", moveFocus);
  lines.observe(list);
  list.labels = gates.map((gate) => LETTERS[gate]).join("\n");
  const head = make("h3", {}, layer.title, make("span", { className: "quiet", textContent: ` ${layer.units} units` }));
  return make("div", { className: "layer" }, head, list);
}

function drawStrip(surprisal, bits) {
  const bar = make("span", { className: "bar" });
  bar.style.width = `${(100 * surprisal) / bits}%`;
  return make("span", { className: "track surprise", "aria-hidden": "true" }, bar);
}

function chance(bits) {
  const percent = 100 * 2 ** -bits;
  return percent >= 0.1 ? `${percent.toFixed(1)} %` : `1 in ${Math.round(2 ** bits).toLocaleString("en")}`;
}

// The most surprising word of some readings, in bits; whole numbers of a byte, so that the scale seldom changes.
export const mostBits = (readings) =>
  8 * Math.ceil(Math.max(1, ...readings.flatMap((one) => Object.values(one?.surprisal ?? {}).flat())) / 8);

// The same word in every layer and run.
function mark(side, position) {
  for (const word of document.querySelectorAll(".word.same")) word.classList.remove("same");
  if (side === null) return;
  const selector = `.words[data-side="${side}"] .word[data-position="${position}"]`;
  for (const word of document.querySelectorAll(selector)) word.classList.add("same");
}

function moveFocus(event) {
  const word = event.target.closest(".word");
  const list = event.currentTarget;
  const words = [...list.querySelectorAll(".word")];
  const at = words.indexOf(word);
  const lists = [...list.closest(".column").querySelectorAll(".words")];
  const other = (step) => {
    const target = lists[lists.indexOf(list) + step]?.querySelectorAll(".word");
    return target?.[Math.min(at, target.length - 1)];
  };
  const goal = {
    ArrowRight: () => words[at + 1], ArrowLeft: () => words[at - 1], Home: () => words[0], End: () => words.at(-1),
    ArrowUp: () => other(-1), ArrowDown: () => other(1),
  }[event.key]?.();
  if (event.key === "Escape") tip.hide();
  if (!goal) return;
  event.preventDefault();
  for (const each of goal.closest(".words").querySelectorAll(".word")) each.tabIndex = each === goal ? 0 : -1;
  goal.focus();
}

// The letters of the gates stand before each line of words.
const lines = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    let top = null;
    for (const item of target.children) {
      const begins = item.offsetTop !== top;
      top = item.offsetTop;
      if (begins) item.dataset.labels = target.labels;
      else delete item.dataset.labels;
    }
  }
});
