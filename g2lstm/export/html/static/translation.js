// A translation model: encoder, attention, decoder, and the search for the best translation.

import { encoded, unknown } from "./language.js";
import { Layer, summary } from "./lstm.js";
import { decode, joined, logSum, products, rowOf } from "./matrix.js";
import { Tokenizer } from "./tokenizer.js";

const BLANK = /^[\t-\r\u001c-\u001f\u0085\p{Z}]+|[\t-\r\u001c-\u001f\u0085\p{Z}]+$/gu;

export class TranslationModel {
  constructor(facts, numbers) {
    const { model, search } = facts;
    this.how = search;
    [this.source, this.target] = facts.tokenizers.map((one) => new Tokenizer(one, numbers));
    const linear = ({ weight, bias }) => ({ weight: decode(weight, numbers), bias: numbers(bias) });
    this.targetEmbedding = decode(model.target, numbers);
    this.sourceEmbedding = model.source ? decode(model.source, numbers) : this.targetEmbedding;
    this.softmax = model.softmax ? decode(model.softmax, numbers) : this.targetEmbedding;
    this.bias = numbers(model.bias);
    this.key = decode(model.key, numbers);
    [this.bridge, this.output] = [linear(model.bridge), linear(model.output)];
    const layers = (described) => described.map((one) => new Layer(one, numbers));
    [this.directions, this.above, this.decoder] = [model.directions, model.above, model.decoder].map(layers);
    this.residual = model.residual;
  }

  /* A line as the tokenizer cleans it, or as older ones need it: trimmed, tokenised text with single spaces. */
  cleaned(line) {
    if (this.source.replaced.length) return this.source.clean(line);
    return (this.how.is_tokenized ? line.replace(/[ \t\r\n\v\f]+/g, " ") : line).replace(BLANK, "");
  }

  /* What the decoder looks at, an output of the encoder and a key for each token; and the states of each layer. */
  encode(ids) {
    const xs = ids.map((id) => rowOf(this.sourceEmbedding, id));
    const [forward, backward] = this.directions;
    const states = [forward.sequence(xs), backward.sequence(xs.toReversed()).reverse()];
    let values = states[0].map(({ h }, at) => joined(h, states[1][at].h));
    this.above.forEach((layer, number) => {
      const [below, after] = [values, layer.sequence(values)];
      states.push(after);
      values = after.map(({ h }, at) => (this.residual && number ? sum(h, below[at]) : h));
    });
    return { values, keys: products(this.key, values), states };
  }

  /* The decoder's state before the first word. */
  start(memory) {
    const mean = memory.values[0].map((_, unit) =>
      memory.values.reduce((total, value) => total + value[unit], 0) / memory.values.length);
    const [h] = products(this.bridge.weight, [mean], this.bridge.bias);
    const H = h.length / this.decoder.length;
    return this.decoder.map((_, at) => ({ h: h.slice(at * H, (at + 1) * H).map(Math.tanh), c: new Float32Array(H) }));
  }

  /* Reads a token of each hypothesis in its state. Returns features for the softmax, attention and new states. */
  decode(tokens, states, memory) {
    const [first, ...above] = this.decoder;
    const layers = [first.steps(tokens.map((token) => rowOf(this.targetEmbedding, token)), states.map(([one]) => one))];
    let xs = layers[0].map(({ h }) => h);
    const attention = xs.map((query) => look(query, memory.keys));
    const contexts = attention.map((weights) => memory.values[0].map((_, unit) =>
      weights.reduce((total, weight, at) => total + weight * memory.values[at][unit], 0)));
    above.forEach((layer, number) => {
      const below = xs;
      layers.push(layer.steps(xs.map((x, k) => joined(x, contexts[k])), states.map((one) => one[number + 1])));
      xs = layers.at(-1).map(({ h }, k) => (this.residual ? sum(h, below[k]) : h));
    });
    const features = products(this.output.weight, xs.map((x, k) => joined(x, contexts[k])), this.output.bias)
      .map((one) => one.map(Math.tanh));
    return { features, attention, states: states.map((_, k) => layers.map((after) => after[k])) };
  }

  /* The best translation of token ids: its tokens, score, log-probability, attention, and the states of both sides. */
  async search(ids, { beam = this.how.beam, penalty = this.how.length_penalty, pause = () => {} } = {}) {
    if (!ids.length) return { tokens: [], score: 0, logProbability: 0, attention: [], memory: null, states: [] };
    const { eos } = this.target;
    const notWords = new Set([eos, ...this.how.forbidden]);
    const most = this.how.limit[0] * ids.length + this.how.limit[1];
    await pause();
    const memory = this.encode([...ids, this.source.eos]);
    const start = { total: 0, missing: 0, tokens: [], looks: [], states: [this.start(memory)] };
    let [unfinished, finished] = [[start], []];
    for (let length = 1; ; length += 1) {
      await pause();
      const last = unfinished.map(({ tokens }) => tokens.at(-1) ?? eos);
      const out = this.decode(last, unfinished.map(({ states }) => states.at(-1)), memory);
      const offers = products(this.softmax, out.features, this.bias).flatMap((logits, parent) =>
        this.offers(logits, length <= most ? beam : 0, notWords, unfinished[parent].missing, Math.max(most - length, 0))
          .map(({ value, ...one }) => ({ ...one, parent, total: unfinished[parent].total + value })));
      offers.sort((one, other) => other.total - one.total);
      const before = unfinished;
      const grown = ({ parent, token, total, missing }) => ({
        total, missing, tokens: [...before[parent].tokens, token], looks: [...before[parent].looks, out.attention[parent]],
        states: [...before[parent].states, out.states[parent]],
      });
      for (const one of offers.slice(0, beam).filter(({ token }) => token === eos)) {
        finished.push({ ...grown(one), score: one.total / length ** penalty });
      }
      finished.sort((one, other) => other.score - one.score);
      unfinished = offers.slice(0, 2 * beam).filter(({ token }) => token !== eos).slice(0, beam).map(grown);
      const hope = unfinished.length ? unfinished[0].total / (most + 1) ** penalty : -Infinity;
      if (finished.length >= beam || !(hope > (finished[0]?.score ?? -Infinity))) break;
    }
    const [{ tokens, score, total, looks, states }] = finished;
    const found = { tokens: tokens.slice(0, -1), score, logProbability: total, attention: looks };
    return { ...found, memory, states: states.slice(1) };
  }

  // <eos>, and the `count` likeliest words, with their log-probabilities and the bytes that the last character then
  // lacks: none of them breaks a character, or leaves one that lacks more than there is room for.
  offers(logits, count, notWords, before, room) {
    const whole = logSum(logits);
    const best = []; // highest first
    for (let token = 0; count && token < logits.length; token += 1) {
      if (best.length === count && !(logits[token] > logits[best[count - 1].token])) continue;
      const missing = notWords.has(token) ? -1 : this.target.missing(before, token);
      if (missing < 0 || missing > room) continue;
      let at = Math.min(best.length, count - 1);
      for (; at > 0 && logits[token] > logits[best[at - 1].token]; at -= 1) best[at] = best[at - 1];
      best[at] = { token, missing };
    }
    const ends = before ? [] : [{ token: this.target.eos, missing: 0 }];
    return [...ends, ...best].map((one) => ({ ...one, value: logits[one.token] - whole }));
  }

  /* The text of a translation; an unknown word is copied from the source where the model looked. */
  text(found, line) {
    const { target, source } = this;
    if (target.kind !== "word") return target.decode(found.tokens);
    const words = source.words(line);
    return found.tokens.map((token, at) => {
      if (token !== target.unk || !words.length) return target.tokens[token];
      const weights = found.attention[at].slice(0, words.length);
      return words[weights.indexOf(Math.max(...weights))];
    }).join(" ");
  }

  async translate(line, options = {}) {
    const clean = this.cleaned(line);
    const found = await this.search(this.source.encode(clean), options);
    return { ...found, text: this.text(found, clean) };
  }

  /* A line with its translation, the attention and the gates of each token on both sides. */
  async reading(line, pause, options = {}) {
    const clean = this.cleaned(line);
    const { ids, names } = encoded(this.source, clean);
    const found = await this.search(ids, { ...options, pause });
    const places = [
      { name: "encoder.0", title: "encoder 1, forward", direction: "forward" },
      { name: "encoder.0", title: "encoder 1, backward", direction: "backward" },
      ...this.above.map((_, at) => ({ name: `encoder.${at + 1}`, title: `encoder ${at + 2}`, direction: "forward" })),
    ].map((place) => ({ ...place, side: "source" }));
    const decoders = this.decoder.map((_, at) =>
      ({ name: `decoder.${at}`, title: `decoder ${at + 1}`, direction: "forward", side: "target" }));
    const layers = [...places.map((place, at) => summary(place, found.memory.states[at])),
      ...decoders.map((place, at) => summary(place, found.states.map((one) => one[at])))];
    const words = this.target.readable(found.tokens);
    const [sourceEnd, targetEnd] = [this.source, this.target].map((one) => one.tokens[one.eos]);
    return {
      ids, layers, translation: this.text(found, clean), produced: [...words, targetEnd], attention: found.attention,
      tokens: { source: [...names, sourceEnd], target: [targetEnd, ...words] },
      unknown: { source: unknown(this.source, ids), target: unknown(this.target, [this.target.eos, ...found.tokens]) },
      score: found.score, logProbability: found.logProbability,
    };
  }
}

const sum = (one, other) => one.map((value, unit) => value + other[unit]);

// Attention: a softmax over the scaled products of a query with all keys.
function look(query, keys) {
  const dots = keys.map((key) => key.reduce((total, value, unit) => total + value * query[unit], 0));
  const scores = dots.map((dot) => dot / Math.sqrt(query.length));
  const whole = logSum(scores);
  return scores.map((score) => Math.exp(score - whole));
}
