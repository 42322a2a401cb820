// Recurrent layers: one step for one or several sequences, and what their gates did.

import { beside, decode, joined, products, stacked } from "./matrix.js";

const sigmoid = (a) => 1 / (1 + Math.exp(-a));
const step = (a) => (a >= 0 ? 1 : 0);

export class Layer {
  constructor(described, numbers) {
    const gates = (matrices) => stacked(matrices.map((one, gate) => decode(one, numbers, described.factors[gate])));
    this.hidden = described.hidden;
    this.weights = beside(gates(described.x), gates(described.h));
    this.bias = numbers(described.bias).map((value, row) => value * described.factors[Math.floor(row / this.hidden)]);
    this.open = Array.from("ifgo", (letter) => (described.hard.includes(letter) ? step : sigmoid));
  }

  start() {
    return { h: new Float32Array(this.hidden), c: new Float32Array(this.hidden) };
  }

  /* Reads a vector in each state; returns the new states, each with its gates. */
  steps(xs, states) {
    const H = this.hidden;
    const before = xs.map((x, k) => joined(x, states[k].h));
    return products(this.weights, before, this.bias).map((a, k) => {
      const [h, c] = [new Float32Array(H), new Float32Array(H)];
      for (let unit = 0; unit < H; unit += 1) {
        a[unit] = this.open[0](a[unit]);
        a[H + unit] = this.open[1](a[H + unit]);
        a[3 * H + unit] = this.open[3](a[3 * H + unit]);
        c[unit] = a[H + unit] * states[k].c[unit] + a[unit] * Math.tanh(a[2 * H + unit]);
        h[unit] = a[3 * H + unit] * Math.tanh(c[unit]);
      }
      const [input, forget, , output] = [0, 1, 2, 3].map((gate) => a.subarray(gate * H, (gate + 1) * H));
      return { h, c, gates: { input, forget, output } };
    });
  }

  /* Reads vectors one after the other from the start; returns the state after each. */
  sequence(xs) {
    let state = this.start();
    return xs.map((x) => {
      [state] = this.steps([x], [state]);
      return state;
    });
  }
}

const [LOW, HIGH] = [0.1, 0.9]; // a gate beyond is decided

/* A layer of a reading, as the heat map takes it: for each token the mean of each gate, and the share that is decided.
   place: its name and so on; states: after each token. */
export function summary(place, states) {
  const [means, decided, gates] = [{}, {}, states.map((state) => state.gates)];
  for (const name of ["input", "forget", "output"]) {
    means[name] = gates.map((one) => one[name].reduce((sum, value) => sum + value, 0) / one[name].length);
    const count = (values) => values.reduce((sum, value) => sum + (value < LOW || value > HIGH), 0);
    decided[name] = gates.map((one) => count(one[name]) / one[name].length);
  }
  return { ...place, units: gates[0].input.length, means, decided, gates };
}
