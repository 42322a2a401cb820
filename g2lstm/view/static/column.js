// A column of the page: one run, one gate mode, and everything drawn about it.

import { make, setOptions } from "./dom.js";
import { drawLayer, GATES, keyOf } from "./heat.js";
import { drawOutcome } from "./more.js";
import * as server from "./server.js";
import { SplitPanel } from "./split.js";
import { UnitsPanel } from "./units.js";

export const MODES = { soft: "soft gates", tempered: "tempered gates", hard: "hard gates" };

export class Column {
  /* id: "a" or "b", the key of its run in the state. page: the state, what the server said (known), and functions to
     call: change with new values of the state, gone if the server doesn't answer, retry if it was busy. */
  constructor(id, page) {
    this.id = id;
    this.page = page;
    this.root = document.querySelector(`[data-column="${id}"]`);
    this.run = make("select", { "aria-label": id === "a" ? "Run" : "Run to compare with" });
    this.mode = make("select", { "aria-label": "Gate mode" },
      ...Object.entries(MODES).map(([value, textContent]) => make("option", { value, textContent })));
    this.facts = make("p", { className: "quiet facts" });
    this.status = make("p", { className: "status", role: "status" });
    this.layers = make("div", { className: "layers" });
    this.below = make("div", { className: "below" }); // layers below the one whose units are shown
    this.outcome = make("div", { className: "outcomes" });
    this.units = new UnitsPanel(page.change);
    this.split = new SplitPanel(page.gone);
    this.root.append(make("div", { className: "line" }, this.run, this.mode), this.facts, this.status, this.layers,
      this.units.element, this.below, this.outcome, this.split.element);
    [...this.root.children].forEach((child, row) => { child.style.gridRow = row + 1; }); // hidden ones keep their place
    this.run.addEventListener("change", () => page.change({ [id]: this.run.value }));
    this.mode.addEventListener("change", () => page.change({ [`${id}gate`]: this.mode.value }));
  }

  question() {
    const { known, state } = this.page;
    const own = known.runs.find((run) => run.name === state[this.id])?.gate;
    return { run: state[this.id], text: state.text, gate: state[`${this.id}gate`] || own };
  }

  // The runs to choose from.
  fill() {
    const names = this.page.known.runs.map(({ name }) => [name, name]);
    setOptions(this.run, this.id === "b" ? [["", "compare with …"], ...names] : names);
  }

  say(text, kind = "") {
    if (this.status.textContent !== text) this.status.textContent = text;
    this.status.className = `status ${kind}`;
  }

  clear(text, kind) {
    this.aborter?.abort();
    this.reading = this.asked = null;
    this.layers.replaceChildren();
    this.below.replaceChildren();
    this.outcome.replaceChildren();
    this.units.hide();
    this.say(text, kind);
  }

  forget() { this.asked = null; }

  // Asks for the sentence if it has changed; afterwards there is a reading or a message.
  async load() {
    const { known, state } = this.page;
    const { run: name, text, gate } = this.question();
    this.run.value = name;
    this.mode.value = gate;
    this.mode.hidden = !name;
    this.root.classList.toggle("empty", !name);
    const run = known.runs.find((each) => each.name === name);
    this.facts.textContent = run ? [run.title, run.method, run.data, run.compression].filter(Boolean).join(" · ") : "";
    this.split.setRun(run);
    const words = text.trim() ? text.trim().split(/\s+/).length : 0;
    if (!name) return this.clear("");
    if (!run) return this.clear(`The link is for the run “${name}”, which isn’t shown here. Choose another.`, "bad");
    if (run.state === "failed") return this.clear(`${run.name} cannot be shown: ${run.message}`, "bad");
    if (run.state === "loading") return this.clear(`${run.name} is loading …`, "busy");
    if (!words) return this.clear("Type a sentence, or pick one, to see its gates.");
    if (words > known.limits.words) {
      const most = known.limits.words;
      return this.clear(`The sentence has ${words} words. Shorten it to at most ${most}.`, "bad");
    }
    const asked = JSON.stringify([state.text, name, gate]);
    if (this.asked === asked) return this.arriving;
    this.asked = asked;
    this.arriving = this.ask();
    return this.arriving;
  }

  async ask() {
    this.aborter?.abort();
    const aborter = this.aborter = new AbortController();
    const late = setTimeout(() => this.say("Reading …", "busy"), 150);
    try {
      this.reading = await server.read(this.question(), aborter.signal);
      this.say(remark(this.reading));
    } catch (error) {
      if (error.name === "AbortError") return;
      this.clear(sentence(error.message), error.status === 503 ? "busy" : "bad");
      if (error instanceof server.Gone) this.page.gone();
      else if (error.status === 503) this.page.retry();
    } finally {
      clearTimeout(late);
    }
  }

  // The layers that the state asks for; all if this run has no such layer.
  visible() {
    const layers = this.reading?.layers ?? [];
    const found = layers.filter((layer) => keyOf(layer) === this.page.state.layer);
    return found.length ? found : layers;
  }

  /* range: of the colours; most: the probability that the longest bar stands for; bits: what a full strip stands for. */
  draw(range, most, bits) {
    if (!this.reading) return;
    const { state, change } = this.page;
    const gates = state.rows === "all" ? GATES : [state.rows];
    const [at, position] = chosen(state);
    const active = this.root.contains(document.activeElement) ? document.activeElement : null;
    const focused = active?.closest(".word");
    const place = focused && [focused.closest(".words").dataset.layer, focused.dataset.position];
    const layers = this.visible();
    const isFirst = (layer) => layer === layers.find(({ side }) => side === layer.side);
    const drawn = layers.map((layer) => drawLayer(this.reading, layer, {
      bits: isFirst(layer) ? bits : 0,
      gates, value: state.value, range, chosen: keyOf(layer) === at ? position : null,
      choose: (word, gate = gates.length === 1 ? gates[0] : state.gate) => change({ at: `${keyOf(layer)}:${word}`, gate }),
    }));
    const above = layers.findIndex((layer) => keyOf(layer) === at) + 1 || layers.length;
    this.layers.replaceChildren(...drawn.slice(0, above));
    this.below.replaceChildren(...drawn.slice(above));
    const step = active?.dataset.step; // read before its button is replaced
    const texts = this.reading.next_texts ?? [];
    const add = (number) => { if (texts[number].trim()) this.page.add(texts[number]); };
    this.outcome.replaceChildren(...drawOutcome(this.reading, add, most, this.steps(add)));
    const again = place ? `[data-layer="${place[0]}"] [data-position="${place[1]}"]` : `[data-step="${step}"]`;
    if (active) this.root.querySelector(again)?.focus({ preventScroll: true });
  }

  // Generation step by step: the sentence grows by a word, and both columns read it again.
  steps(add) {
    const words = this.reading.next_words ?? [];
    const usable = words.map((word, number) => number).filter((number) => this.reading.next_texts[number].trim());
    const random = () => {
      let left = Math.random() * usable.reduce((sum, number) => sum + words[number][1], 0);
      return usable.find((number) => (left -= words[number][1]) <= 0) ?? usable[0];
    };
    const button = (textContent, title, act, disabled) => {
      const made = make("button", { type: "button", className: "plain", textContent, title, disabled });
      made.dataset.step = textContent;
      made.addEventListener("click", act);
      return made;
    };
    return [make("div", { className: "line" },
      button("Add the likeliest", "the first of these words that is one", () => add(usable[0]), !usable.length),
      button("Draw one", "one of these words at random, by their probabilities", () => add(random()), !usable.length),
      button("Back", "without the word that was added last", () => this.page.back(), !this.page.added.length))];
  }

  async drawUnits() {
    const { state } = this.page;
    const [at, position] = chosen(state);
    const index = this.reading?.layers.findIndex((layer) => keyOf(layer) === at) ?? -1;
    const layer = this.reading?.layers[index];
    this.unitsAborter?.abort();
    if (!layer || position >= this.reading.tokens[layer.side].length) return this.units.hide();
    const { signal } = this.unitsAborter = new AbortController();
    const unit = /^\d+$/.test(state.unit) && Number(state.unit) < layer.units ? Number(state.unit) : null;
    try {
      await this.units.show({ ...this.question(), layer: index }, layer, position, state.gate, unit, signal);
    } catch (error) {
      if (error instanceof server.Gone) this.page.gone();
      else if (error.name !== "AbortError") this.say(sentence(error.message), "bad");
    }
    return undefined;
  }
}

// The word whose units are shown: the key of its layer, and its position.
function chosen(state) {
  const [, at, position] = /^(.+):(\d+)$/.exec(state.at) ?? [null, null, "0"];
  return [at, Number(position)];
}

function remark(reading) {
  const side = "source" in reading.tokens ? "source" : "text";
  const words = reading.tokens[side].length - 1; // and <eos>
  const unknown = reading.unknown[side].length;
  if (!unknown) return "";
  if (unknown === words) return "None of these words is in the model’s vocabulary; it reads each as <unk>.";
  return `${unknown} of ${words} words ${unknown === 1 ? "is" : "are"} unknown to the model (dotted); it reads <unk> instead.`;
}

export const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
