// The page of one model: what is typed is read at once, and what the model makes of it is drawn.

import { find, make, say, setOptions, tip } from "./dom.js";
import { drawLayer, drawLegend, GATES, keyOf, LETTERS, rangeOf } from "./heat.js";
import { LanguageModel } from "./language.js";
import { drawOutcome } from "./more.js";
import { openPayload } from "./payload.js";
import { Squares } from "./squares.js";
import { TranslationModel } from "./translation.js";

const MOST_WORDS = 200;
const MOST_CHARACTERS = 4000;
const MARKS = /^(.*[^\s])([.,!?;:"()])$|^([.,!?;:"()])(.*[^\s])$/u;
const state = { reading: null, at: "", gate: "forget", turn: 0 };
let model = null;
let facts = null;

class Overtaken extends Error {}

/* A function to await between steps: the page stays responsive, and work that is no longer wanted ends. */
function pauses() {
  const turn = ++state.turn;
  let last = performance.now();
  return async () => {
    if (performance.now() - last > 50) {
      await new Promise((done) => { setTimeout(done); });
      last = performance.now();
    }
    if (turn !== state.turn) throw new Overtaken();
  };
}

/* A text as the model's training text was: capitals and punctuation follow what it has seen. */
export function adapted(text, tokenizer, isTokenized) {
  const lower = tokenizer.has_capitals ? text : text.toLowerCase();
  if (!isTokenized) return lower;
  const apart = (word) => {
    if (word.length < 2 || (tokenizer.kind === "word" && tokenizer.ids.has(word))) return [word];
    const found = MARKS.exec(word);
    if (!found || (tokenizer.kind === "word" && !tokenizer.ids.has(found[2] ?? found[3]))) return [word];
    return found[2] ? [...apart(found[1]), found[2]] : [found[3], ...apart(found[4])];
  };
  return lower.split("\n").map((line) => line.split(" ").flatMap(apart).join(" ")).join("\n");
}

const isTranslation = () => model instanceof TranslationModel;
const source = () => (isTranslation() ? model.source : model.tokenizer);
const isTokenized = () => (isTranslation() ? facts.search.is_tokenized : source().kind === "word");
const prepared = (text) => adapted(text, source(), isTokenized());

// From the text to the page.

async function show() {
  const typed = find("text").value;
  const words = typed.trim() ? typed.trim().split(/\s+/).length : 0;
  if (!words) return clear(isTranslation() ? "Type a sentence, or pick one." : "Type some words, or pick a sentence.");
  if (words > MOST_WORDS || typed.length > MOST_CHARACTERS) {
    return clear(`The text has ${words} words. Shorten it to at most ${MOST_WORDS}.`);
  }
  const [text, pause, began] = [prepared(typed.trim()), pauses(), performance.now()];
  try {
    const beam = isTranslation() ? { beam: Number(find("beam").value) } : {};
    state.reading = await model.reading(text, pause, beam);
  } catch (error) {
    if (error instanceof Overtaken) return undefined;
    throw error;
  }
  state.took = performance.now() - began;
  find("note").textContent = remark(text, typed.trim());
  draw();
  say(isTranslation() ? `Translation: ${state.reading.translation}` : "");
  return undefined;
}

function clear(message) {
  state.turn += 1;
  state.reading = null;
  find("note").textContent = message;
  find("answer").hidden = find("gates").hidden = true;
}

function remark(text, typed) {
  const side = isTranslation() ? "source" : "text";
  const count = state.reading.unknown[side].length;
  const words = count === 1 ? "One word is" : `${count} words are`;
  const lines = [];
  if (text !== typed) lines.push(`Read as “${text}”.`);
  if (count) lines.push(`${words} unknown to the model (dotted); it reads <unk> instead.`);
  if (isTranslation()) lines.push(`Translated in ${Math.max(Math.round(state.took), 1)} ms.`);
  return lines.join(" ");
}

function draw() {
  const { reading } = state;
  if (!reading) return;
  tip.hide(); // its word may be gone
  const value = find("value").value;
  const range = find("stretch").checked ? rangeOf(reading.layers, GATES, value) : [0, 1];
  drawLegend(range);
  const [at, position] = chosen();
  const drawn = reading.layers.flatMap((layer) => {
    const isChosen = keyOf(layer) === at && position < reading.tokens[layer.side].length;
    const list = drawLayer(reading, layer, {
      gates: GATES, value, range, chosen: isChosen ? position : null,
      choose: (word, gate = state.gate) => open(`${keyOf(layer)}:${word}`, gate),
    });
    list.querySelectorAll(".words li").forEach((item, number) => item.style.setProperty("--at", number));
    return isChosen ? [list, units(layer, position)] : [list];
  });
  const had = find("layers").contains(document.activeElement) ? document.activeElement.dataset.position : null;
  find("layers").replaceChildren(...drawn);
  const again = had && find("layers").querySelector(`[data-layer="${at}"] [data-position="${had}"]`);
  again?.focus({ preventScroll: true });
  find("answer").replaceChildren(...drawOutcome(reading, (number) => append(reading.next_ids[number])));
  find("answer").hidden = find("gates").hidden = false;
  for (const panel of find("layers").querySelectorAll(".units")) panel.drawSquares();
}

function chosen() {
  const [, at, position] = /^(.+):(\d+)$/.exec(state.at) ?? [null, null, "0"];
  return [at, Number(position)];
}

function open(at, gate) {
  Object.assign(state, { at: state.at === at && state.gate === gate ? "" : at, gate });
  draw();
}

// The units of one word, gate by gate.
function units(layer, position) {
  const squares = new Squares();
  const summary = make("p", { className: "quiet" });
  const gates = make("fieldset", {}, make("legend", { textContent: "Gate" }), ...GATES.map((gate) => {
    const input = make("input", { type: "radio", name: "units", value: gate, checked: gate === state.gate });
    input.addEventListener("change", () => { state.gate = gate; panel.drawSquares(); });
    return make("label", {}, input, make("span", {}, make("i", { textContent: LETTERS[gate] }), ` ${gate}`));
  }));
  const close = make("button", { type: "button", className: "plain", textContent: "Close" });
  close.addEventListener("click", () => open(state.at, state.gate));
  const name = state.reading.tokens[layer.side][position];
  const title = make("h3", { textContent: `Units of “${name}” in ${layer.title}` });
  const bar = make("div", { className: "line" }, gates, close);
  const panel = make("section", { className: "units" }, title, bar, summary, squares.canvas);
  panel.drawSquares = () => {
    const values = layer.gates[position][state.gate];
    summary.textContent = squares.draw(values, state.gate, { width: panel.clientWidth });
  };
  return panel;
}

// Continuing a text.

function append(...ids) {
  const { tokenizer } = model;
  const before = model.lines(prepared(find("text").value.trim())).ids.slice(1);
  find("text").value = tokenizer.decode([...before, ...ids]);
  show();
}

async function generate() {
  const [wanted, pause] = [12, pauses()];
  const begun = prepared(find("text").value.trim());
  const before = model.lines(begun).ids.slice(1);
  const added = [];
  find("go").disabled = true;
  try {
    for await (const token of model.continuation(begun, { temperature: Number(find("temperature").value) }, pause)) {
      if (added.length === wanted || (added.length > 1 && token === model.tokenizer.eos)) break;
      added.push(token);
      find("text").value = model.tokenizer.decode([...before, ...added]);
    }
  } catch (error) {
    if (!(error instanceof Overtaken)) throw error;
  } finally {
    find("go").disabled = false;
  }
  await show();
}

// The controls.

function fill() {
  const weights = `${(facts.weights / 1e6).toFixed(1)} million weights`;
  const size = `${(state.size / 1e6).toFixed(1)} MB`;
  const what = isTranslation() ? "an LSTM with attention" : "an LSTM language model";
  find("about").textContent = `${what[0].toUpperCase()}${what.slice(1)} with ${weights} in a page of ${size}. ` +
    "It runs on your computer, and nothing that you type leaves it.";
  find("version").textContent = facts.g2lstm;
  find("label").textContent = isTranslation() ? "Sentence to translate" : "Text";
  find("pick").hidden = !facts.examples.length;
  setOptions(find("examples"), [["", "Pick a sentence …"], ...facts.examples.map((text) => [text, text])]);
  if (isTranslation()) {
    const beams = [...new Set([1, facts.search.beam])].map((beam) =>
      make("option", { value: beam, textContent: beam === 1 ? "greedy" : `beam of ${beam}` }));
    find("how").append("Search", make("select", { id: "beam" }, ...beams));
    find("beam").value = facts.search.beam;
    find("beam").addEventListener("change", show);
  } else {
    const range = make("input", { id: "temperature", type: "range", min: 0, max: 1.5, step: 0.1, value: 0.8 });
    find("how").append("Boldness", range);
    Object.assign(find("go"), { hidden: false, textContent: "Continue" });
    find("go").addEventListener("click", generate);
  }
  find("text").disabled = false;
  find("text").value = facts.examples[0] ?? "";
}

let typing = null;

function soon() {
  clearTimeout(typing);
  typing = setTimeout(show, 120);
}

find("text").addEventListener("input", soon);
find("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey) return;
  event.preventDefault();
  clearTimeout(typing);
  show();
});
find("ask").addEventListener("submit", (event) => event.preventDefault());
find("examples").addEventListener("change", ({ target }) => {
  if (target.value) find("text").value = target.value;
  target.value = "";
  show();
});
for (const name of ["value", "stretch"]) find(name).addEventListener("change", draw);
document.addEventListener("themechange", draw);
new ResizeObserver(() => {
  for (const panel of find("layers").querySelectorAll(".units")) panel.drawSquares();
}).observe(find("layers"));

/* Translates something that nobody sees: browsers compile what has run for a while, and the first sentence should be as
   fast as the others. What is typed meanwhile ends it. */
async function warmUp() {
  await model.search([5, 6, 7, 8].filter((id) => id < model.sourceEmbedding.rows), { pause: pauses() }).catch(() => {});
}

/* For scripts in this page: the model and what is known about it, once it is unpacked. */
window.g2lstm = (async () => {
  const payload = await openPayload(find("payload").textContent);
  state.size = find("payload").textContent.length;
  find("payload").remove();
  ({ facts } = payload);
  const Kind = { lm: LanguageModel, mt: TranslationModel }[facts.task];
  model = new Kind(facts, payload.numbers);
  fill();
  await show();
  if (isTranslation() && !facts.examples.length) await warmUp();
  return { facts, model, adapted };
})();
window.g2lstm.catch((error) => {
  const remedy = "A browser from 2023 or later can run it";
  find("failed").textContent = `The model could not be started: ${error.message}. ${remedy}.`;
  find("failed").hidden = false;
});
