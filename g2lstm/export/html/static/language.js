// A language model: what comes next, and how its gates read the text before it.

import { Layer, summary } from "./lstm.js";
import { decode, logSum, products, rowOf } from "./matrix.js";
import { printable, Tokenizer } from "./tokenizer.js";

const NEXT_WORDS = 10;

export class LanguageModel {
  constructor(facts, numbers) {
    const { model } = facts;
    this.tokenizer = new Tokenizer(facts.tokenizers[0], numbers);
    this.embedding = decode(model.embedding, numbers);
    this.layers = model.layers.map((one) => new Layer(one, numbers));
    this.residual = model.layers.map((one) => one.residual);
    this.softmax = model.softmax ? decode(model.softmax, numbers) : this.embedding;
    this.bias = numbers(model.bias);
  }

  start() {
    return this.layers.map((layer) => layer.start());
  }

  /* Reads a token in a state, which it changes. Returns what the softmax sees. */
  read(token, state) {
    let x = rowOf(this.embedding, token);
    this.layers.forEach((layer, at) => {
      [state[at]] = layer.steps([x], [state[at]]);
      x = this.residual[at] ? state[at].h.map((value, unit) => value + x[unit]) : state[at].h;
    });
    return x;
  }

  /* The log-probabilities of the next token, from what the softmax sees. */
  logProbabilities(features) {
    const [logits] = products(this.softmax, [features], this.bias);
    const sum = logSum(logits);
    return logits.map((value) => value - sum);
  }

  /* The lines of a text as token ids and as tokens; each begins with the <eos> before it. */
  lines(text) {
    const { tokenizer } = this;
    const lines = text.split("\n").map((line) => encoded(tokenizer, line));
    return {
      ids: lines.flatMap(({ ids }) => [tokenizer.eos, ...ids]),
      names: lines.flatMap(({ names }) => [tokenizer.tokens[tokenizer.eos], ...names]),
    };
  }

  /* A text with the gates of each token, and the words that may come next. */
  async reading(text, pause) {
    const { tokenizer } = this;
    const { ids, names: tokens } = this.lines(text);
    const [state, states] = [this.start(), []];
    let features = null;
    for (const id of ids) {
      await pause();
      features = this.read(id, state);
      states.push([...state]);
    }
    const likely = this.logProbabilities(features);
    const order = Array.from(likely.keys()).sort((a, b) => likely[b] - likely[a]).slice(0, NEXT_WORDS);
    const names = tokenizer.readable(order);
    const places = this.layers.map((_, at) =>
      ({ name: `layers.${at}`, title: `layer ${at + 1}`, side: "text", direction: "forward" }));
    const layers = places.map((place, at) => summary(place, states.map((one) => one[at])));
    return {
      ids, layers, tokens: { text: tokens }, unknown: { text: unknown(tokenizer, ids) },
      next_words: order.map((id, at) => [names[at], Math.exp(likely[id])]), next_ids: order,
    };
  }

  /* Yields token ids that continue a text; <unk> is never drawn, nor what would break a character. */
  async* continuation(text, { temperature = 1, random = Math.random }, pause) {
    const state = this.start();
    let features = null;
    for (const id of this.lines(text).ids) {
      await pause();
      features = this.read(id, state);
    }
    const { tokenizer } = this;
    for (let missing = 0; ;) {
      await pause();
      const isAllowed = (token) => token !== tokenizer.unk && tokenizer.missing(missing, token) >= 0;
      const token = draw(this.logProbabilities(features), temperature, isAllowed, random);
      missing = tokenizer.missing(missing, token);
      yield token;
      features = this.read(token, state);
    }
  }
}

/* Draws a token from log-probabilities; a temperature of 0 takes the likeliest. */
export function draw(likely, temperature, isAllowed, random) {
  const allowed = Array.from(likely.keys(), isAllowed);
  let best = allowed.indexOf(true);
  likely.forEach((value, token) => { if (allowed[token] && value > likely[best]) best = token; });
  if (temperature === 0) return best;
  const weights = Float64Array.from(likely, (value, token) =>
    (allowed[token] ? Math.exp((value - likely[best]) / temperature) : 0));
  let rest = random() * weights.reduce((sum, value) => sum + value, 0);
  for (let token = 0; token < weights.length; token += 1) {
    rest -= weights[token];
    if (rest < 0) return token;
  }
  return best;
}

/* A line as token ids and as tokens for people; unknown words as they were written. */
export function encoded(tokenizer, line) {
  const ids = tokenizer.encode(line);
  const words = tokenizer.kind === "bpe" ? [] : tokenizer.words(line).map(printable);
  const names = tokenizer.readable(ids);
  return { ids, names: names.map((name, place) => (ids[place] === tokenizer.unk ? words[place] ?? name : name)) };
}

export const unknown = (tokenizer, ids) => ids.flatMap((id, place) => (id === tokenizer.unk ? [place] : []));
