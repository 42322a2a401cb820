// What a model makes of the sentence: the next words it expects, or its translation with attention.

import { make, tip } from "./dom.js";
import { paint, short } from "./heat.js";

/* `choose`, if given, is called with the number of a next word when it is clicked. The longest bar stands for `most`;
   `controls` stand below the bars. */
export function drawOutcome(reading, choose = null, most = mostOf(reading), controls = []) {
  if (reading.next_words) return [drawNextWords(reading.next_words, choose, most, controls)];
  if (reading.attention) return [drawTranslation(reading), drawAttention(reading)];
  return [];
}

// The probability of the likeliest next word, 0 if there is none.
export const mostOf = (reading) => reading?.next_words?.[0][1] ?? 0;

function drawNextWords(words, choose, most, controls) {
  const items = words.map(([word, share], number) => {
    const bar = make("span", { className: "bar" });
    bar.style.width = `${Math.max((100 * share) / most, 0.5)}%`;
    const percent = make("span", { className: "number quiet", textContent: `${(100 * share).toFixed(1)} %` });
    const name = make(choose ? "button" : "span", { className: "token", textContent: word });
    if (choose) {
      name.type = "button";
      name.addEventListener("click", () => choose(number));
    }
    return make("li", {}, name, make("span", { className: "track" }, bar), percent);
  });
  return section("Next word", make("ol", { className: "next" }, ...items), ...controls);
}

function drawTranslation(reading) {
  return section("Translation", make("p", { className: "translation", textContent: reading.translation }));
}

function drawAttention(reading) {
  const { attention, produced, tokens: { source } } = reading;
  const head = make("tr", {}, make("td"), ...source.map((token) =>
    make("th", { scope: "col" }, make("span", { textContent: token }))));
  const rows = attention.map((weights, row) => make("tr", {}, make("th", { scope: "row", textContent: produced[row] }),
    ...weights.map((weight, column) => {
      const cell = make("td", { className: "number", textContent: weight >= 0.095 ? short(weight) : "" });
      paint(cell, weight);
      const lines = [`${produced[row]} ← ${source[column]}`, weight.toFixed(4)];
      cell.addEventListener("pointerenter", () => tip.show(cell.getBoundingClientRect(), lines));
      cell.addEventListener("pointerleave", tip.hide);
      return cell;
    })));
  const table = make("table", { className: "attention" }, make("thead", {}, head), make("tbody", {}, ...rows));
  const explained = "Each row is a word of the translation; its cells show how much it looks at each source word.";
  const scroll = make("div", { className: "scroll", tabIndex: 0, role: "group", "aria-label": "Attention" }, table);
  return section("Attention", make("p", { className: "quiet", textContent: explained }), scroll);
}

const section = (title, ...content) =>
  make("section", { className: "outcome" }, make("h3", { textContent: title }), ...content);
