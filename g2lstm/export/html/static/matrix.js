// Matrices of the model: decoded once, then multiplied by one vector or by several at a time.

/* A matrix as { rows, columns, values }, from its description; `numbers` gives the arrays that it names. */
export function decode(described, numbers, factor = 1) {
  const [rows, columns] = described.shape;
  if (described.factors) return multiplied(described.factors.map((one) => decode(one, numbers)), factor);
  const values = new Float32Array(rows * columns);
  if (described.values) {
    numbers(described.values).forEach((value, at) => { values[at] = value * factor; });
    return { rows, columns, values };
  }
  const [codes, scales, { group }] = [numbers(described.codes), numbers(described.scales), described];
  const groups = Math.ceil(columns / group);
  for (let row = 0, at = 0; row < rows; row += 1) {
    for (let column = 0; column < columns; column += 1, at += 1) {
      values[at] = codes[at] * (scales[row * groups + Math.floor(column / group)] * factor);
    }
  }
  return { rows, columns, values };
}

// The right factor of a low-rank matrix comes first.
function multiplied([right, left], factor) {
  const values = new Float32Array(left.rows * right.columns);
  const sums = new Float64Array(right.columns);
  for (let row = 0; row < left.rows; row += 1) {
    sums.fill(0);
    for (let k = 0; k < left.columns; k += 1) {
      const weight = left.values[row * left.columns + k] * factor;
      for (let column = 0; column < right.columns; column += 1) {
        sums[column] += weight * right.values[k * right.columns + column];
      }
    }
    values.set(sums, row * right.columns);
  }
  return { rows: left.rows, columns: right.columns, values };
}

/* Matrices of the same height side by side, or of the same width on top of each other. */
export function beside(left, right) {
  const columns = left.columns + right.columns;
  const values = new Float32Array(left.rows * columns);
  for (let row = 0; row < left.rows; row += 1) {
    values.set(left.values.subarray(row * left.columns, (row + 1) * left.columns), row * columns);
    values.set(right.values.subarray(row * right.columns, (row + 1) * right.columns), row * columns + left.columns);
  }
  return { rows: left.rows, columns, values };
}

export function stacked(matrices) {
  const values = new Float32Array(matrices.reduce((sum, one) => sum + one.values.length, 0));
  let at = 0;
  for (const one of matrices) {
    values.set(one.values, at);
    at += one.values.length;
  }
  return { rows: matrices.reduce((sum, one) => sum + one.rows, 0), columns: matrices[0].columns, values };
}

export const rowOf = ({ columns, values }, row) => values.subarray(row * columns, (row + 1) * columns);

/* The products of a matrix with some vectors, plus a bias. Up to five vectors share each pass over the weights. */
export function products({ rows, columns, values }, vectors, bias = null) {
  const start = bias ?? new Float32Array(rows);
  if (vectors.length === 1) return [oneProduct(values, rows, columns, vectors[0], start)];
  const outs = vectors.map(() => new Float32Array(rows));
  for (let first = 0; first < vectors.length; first += 5) {
    const x = new Float64Array(5 * columns); // element by element; missing vectors are zero
    vectors.slice(first, first + 5).forEach((one, k) => one.forEach((value, column) => { x[5 * column + k] = value; }));
    const sums = fiveProducts(values, rows, columns, x);
    outs.slice(first, first + 5).forEach((out, k) => {
      for (let row = 0; row < rows; row += 1) out[row] = sums[5 * row + k] + start[row];
    });
  }
  return outs;
}

// These two take nearly all of the time, and plain loops over plain variables are what engines make fast.

function oneProduct(values, rows, columns, x, bias) {
  const [out, whole] = [new Float32Array(rows), columns - (columns % 4)];
  for (let row = 0, at = 0; row < rows; row += 1) {
    let a = bias[row];
    let b = 0;
    let c = 0;
    let d = 0;
    let column = 0;
    for (; column < whole; column += 4, at += 4) {
      a += values[at] * x[column];
      b += values[at + 1] * x[column + 1];
      c += values[at + 2] * x[column + 2];
      d += values[at + 3] * x[column + 3];
    }
    for (; column < columns; column += 1, at += 1) a += values[at] * x[column];
    out[row] = a + b + c + d;
  }
  return out;
}

function fiveProducts(values, rows, columns, x) {
  const sums = new Float64Array(5 * rows);
  for (let row = 0, at = 0, to = 0; row < rows; row += 1, to += 5) {
    let a = 0;
    let b = 0;
    let c = 0;
    let d = 0;
    let e = 0;
    for (let column = 0, place = 0; column < columns; column += 1, at += 1, place += 5) {
      const weight = values[at];
      a += weight * x[place];
      b += weight * x[place + 1];
      c += weight * x[place + 2];
      d += weight * x[place + 3];
      e += weight * x[place + 4];
    }
    sums[to] = a;
    sums[to + 1] = b;
    sums[to + 2] = c;
    sums[to + 3] = d;
    sums[to + 4] = e;
  }
  return sums;
}

export function joined(...vectors) {
  const out = new Float32Array(vectors.reduce((sum, one) => sum + one.length, 0));
  let at = 0;
  for (const one of vectors) {
    out.set(one, at);
    at += one.length;
  }
  return out;
}

/* The logarithm of the sum of the powers of e. */
export function logSum(logits) {
  let top = -Infinity;
  for (let at = 0; at < logits.length; at += 1) top = Math.max(top, logits[at]);
  let sum = 0;
  for (let at = 0; at < logits.length; at += 1) sum += Math.exp(logits[at] - top);
  return top + Math.log(sum);
}
