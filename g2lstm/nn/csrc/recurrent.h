// What the recurrences of LSTMs and GRUs share: packed weights and their products, gates, and the work of each thread.
//
// The caller multiplies the inputs of all time steps by W_x in one product; what is left is the part that must go step
// by step: h W_hᵀ, the gates, the states. Four ideas make it fast:
//   * W_h is packed once per call, so that the inner loop reads it front to back;
//   * forward, the gates of one unit lie side by side in a panel, so that a block of the product leaves the registers
//     only as finished gates and states;
//   * the threads live as long as the call. Where the weights fit a core's cache, each thread takes some sequences at a
//     time and never waits for another; else they divide the units of every step;
//   * denormal numbers are flushed to zero while the call lasts; the caller's setting is restored.
//
// Rows are addressed by pointers: a step of a packed sequence, whose batch shrinks or grows, needs no copy.
// No header of torch is used: the library is loaded with ctypes and does not depend on torch's binary interface.
#pragma once

#include <limits>
#include <type_traits>
#include <vector>

#include "crew.h"

namespace {

// ---------------------------------------------------------------------------------------------------- products

// A number that products multiply: a Real, or a bfloat16, of which a lane holds a pair, added up in float32.
struct Half { uint16_t bits; };
template <class Real, class Factor> constexpr int kPerLane = sizeof(Real) / sizeof(Factor);

#if defined(__AVX512BF16__)
inline Vector<float> add_product(Vector<float> sum, const Half* pair, const Vector<float>& weights) {
  int32_t both;
  std::memcpy(&both, pair, sizeof both);
  return (Vector<float>)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(both), (__m512bh)weights);
}
inline void store(Half* to, Vector<float> v, int count) {  // rounded
  const __m256bh rounded = _mm512_cvtneps_pbh((__m512)v);
  std::memcpy(to, &rounded, count * sizeof(Half));
}
#endif
template <class Real>
inline Vector<Real> add_product(Vector<Real> sum, const Real* value, const Vector<Real>& weights) {
  return sum + *value * weights;
}

// Rows that are kept as products need them: rounded, with an even number of elements. Nothing where nothing is rounded.
template <class Real, class Factor> struct Rounded {
  static constexpr bool is_needed = !std::is_same_v<Real, Factor>;
  const int64_t width;
  std::vector<Factor> data;
  Rounded(int64_t rows, int64_t columns)
      : width(ceil_div(columns, kPerLane<Real, Factor>) * kPerLane<Real, Factor>), data(is_needed ? rows * width : 0) {}
  void set(int64_t row, int64_t column, Vector<Real> v, int used) {
    if constexpr (is_needed) store(&data[row * width + column], v, used);
  }
  void set(int64_t row, const Real* from, int64_t columns) {
    constexpr int lanes = Simd<Real>::lanes;
    for (int64_t k = 0; is_needed && k < columns; k += lanes) {
      const int used = int(std::min<int64_t>(lanes, columns - k));
      set(row, k, load(from + k, used), used);
    }
  }
  const Factor* row(int64_t row, const Real* exact) const {  // `exact` holds the same, not rounded
    if constexpr (is_needed) return &data[row * width];
    else return exact;
  }
};

// A panel holds, for each k of the inner dimension, the up to `Width` vectors of columns that k contributes to.
template <class Real, int Width = kGates, class Factor = Real> struct Panels {
  static constexpr int lanes = Simd<Real>::lanes, per_lane = kPerLane<Real, Factor>, stride = Width * lanes * per_lane;
  int64_t inner, depth, vectors, count;  // depth: `inner` in lanes. `vectors` of columns, spread evenly over the panels
  Buffer<Factor> data;
  Panels(int64_t inner, int64_t vectors)
      : inner(inner), depth(ceil_div(inner, per_lane)), vectors(vectors), count(ceil_div(vectors, Width)),
        data(depth * count * stride) {}
  const Factor* panel(int64_t index) const { return data.data + index * depth * stride; }
  int64_t bytes() const { return depth * count * stride * int64_t(sizeof(Factor)); }
  Range vectors_of(int64_t index) const { return share(vectors, int(index), int(count)); }

  // Columns are gates x units: panel p takes units [p lanes, (p + 1) lanes) of each gate. weight: (Width units, inner).
  template <class Threads> void pack_gates(const Factor* weight, int64_t units, Threads& threads) {
    threads.divide(count, [&](int64_t p) {
      Factor* to = data.data + p * depth * stride;
      for (int64_t k0 = 0; k0 < depth; k0 += 16) {  // in blocks that stay in the cache: this is a transposition
        const int64_t k1 = std::min(k0 + 16, depth);
        for (int gate = 0; gate < Width; ++gate) {
          for (int lane = 0; lane < lanes; ++lane) {
            const int64_t unit = p * lanes + lane;
            Factor* column = to + (gate * lanes + lane) * per_lane;
            const Factor* from = weight + (gate * units + unit) * inner;
            __builtin_prefetch(from + (k0 + 32) * per_lane);  // no pattern that the processor would see
            for (int64_t k = k0; k < k1; ++k)
              for (int one = 0; one < per_lane; ++one) {
                const int64_t at = k * per_lane + one;
                column[k * stride + one] = unit < units && at < inner ? from[at] : Factor{};
              }
          }
        }
      }
    });
  }

  // Columns as they are. Element (k, column) of the matrix is weight[k step_k + column step_column].
  template <class Threads>
  void pack_columns(const Factor* weight, int64_t columns, int64_t step_k, int64_t step_column, Threads& threads) {
    threads.divide(count, [&](int64_t p) {
      const Range mine = vectors_of(p);
      const int64_t first = mine.begin * lanes, width = (mine.end - mine.begin) * lanes;
      const int64_t used = std::min(width, columns - first);
      for (int64_t k = 0; k < depth * per_lane; ++k) {
        const Factor* from = weight + k * step_k + first * step_column;
        Factor* to = data.data + (p * depth + k / per_lane) * stride + k % per_lane;
        const int64_t there = k < inner ? used : 0;
        for (int64_t column = 0; column < there; ++column) to[column * per_lane] = from[column * step_column];
        for (int64_t column = there; column < width; ++column) to[column * per_lane] = Factor{};
      }
    });
  }
};

template <class Real> using Block = Vector<Real>[kRows][kGates];

template <class Real, int Width, int Rows, int Vectors, class Factor>
inline void product(const Factor* const* rows, const Factor* panel, int64_t depth, Block<Real>& sum) {
  constexpr int per_lane = kPerLane<Real, Factor>, in_vector = Simd<Real>::lanes * per_lane;
  Vector<Real> s[Rows][Vectors] = {};
  for (int64_t k = 0; k < depth; ++k, panel += Width * in_vector) {
    Vector<Real> w[Vectors];
#pragma GCC unroll 4
    for (int q = 0; q < Vectors; ++q) std::memcpy(&w[q], panel + q * in_vector, sizeof w[q]);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int q = 0; q < Vectors; ++q) s[r][q] = add_product(s[r][q], rows[r] + k * per_lane, w[q]);
  }
  for (int r = 0; r < Rows; ++r)
    for (int q = 0; q < Vectors; ++q) sum[r][q] = s[r][q];
}

template <class Real, int Width, int Vectors, class Factor>
inline void product(int count, const Factor* const* rows, const Factor* panel, int64_t depth, Block<Real>& sum) {
  switch (count) {
    case 1: return product<Real, Width, 1, Vectors>(rows, panel, depth, sum);
    case 2: return product<Real, Width, 2, Vectors>(rows, panel, depth, sum);
    case 3: return product<Real, Width, 3, Vectors>(rows, panel, depth, sum);
    default:
      if constexpr (kRows > 3) {
        if (count == 4) return product<Real, Width, 4, Vectors>(rows, panel, depth, sum);
        if (count == 5) return product<Real, Width, 5, Vectors>(rows, panel, depth, sum);
        return product<Real, Width, 6, Vectors>(rows, panel, depth, sum);
      }
  }
}

// Calls finish(first_row, row_count, panel, sum) for the blocks of rows x panels, which the threads divide, where
// sum[r] = rows[first_row + r] (1, depth) x panel (depth, its columns). Before, ahead(first_row, row_count, panel) may
// fetch what finish will read.
struct Nothing { template <class... Any> void operator()(const Any&...) const {} };
template <class Real, int Width, class Factor, class Threads, class Finish, class Ahead = Nothing>
void multiply(const Factor* const* rows, int64_t row_count, const Panels<Real, Width, Factor>& panels,
              Threads& threads, const Finish& finish, const Ahead& ahead = {}) {
  const int64_t blocks = ceil_div(row_count, kRows);  // of nearly equal height: 20 rows are 5 + 5 + 5 + 5
  threads.divide(panels.count * blocks, [&](int64_t item) {
    const int64_t p = item / blocks, block = item % blocks;
    const Range some = share(row_count, int(block), int(blocks)), vectors = panels.vectors_of(p);
    const int count = int(some.end - some.begin);
    const Factor* const* first = rows + some.begin;
    ahead(some.begin, count, p);
    Block<Real> sum;
    switch (vectors.end - vectors.begin) {
      case 1: product<Real, Width, 1>(count, first, panels.panel(p), panels.depth, sum); break;
      case 2: product<Real, Width, 2>(count, first, panels.panel(p), panels.depth, sum); break;
      case 3: product<Real, Width, 3>(count, first, panels.panel(p), panels.depth, sum); break;
      default: product<Real, Width, 4>(count, first, panels.panel(p), panels.depth, sum);
    }
    finish(some.begin, count, p, sum);
  });
}

// to (row_count, columns) = rows x panels, or more by it. Calls also(row, column, vector, lanes used) for what it stores.
template <class Real, bool Add = false, class Factor, class Threads, class Also = Nothing>
void multiply_into(Real* to, int64_t columns, const Factor* const* rows, int64_t row_count,
                   const Panels<Real, kGates, Factor>& panels, Threads& threads, const Also& also = {}) {
  constexpr int lanes = Simd<Real>::lanes;
  multiply(rows, row_count, panels, threads, [&](int64_t first, int count, int64_t p, auto& sum) {
    const Range vectors = panels.vectors_of(p);
    for (int k = 0; k < count; ++k)
      for (int64_t v = vectors.begin; v < vectors.end; ++v) {
        const int used = int(std::min<int64_t>(lanes, columns - v * lanes));
        Real* const here = to + (first + k) * columns + v * lanes;
        const Vector<Real> result = Add ? load(here, used) + sum[k][v - vectors.begin] : sum[k][v - vectors.begin];
        store(here, result, used);
        also(first + k, v * lanes, result, used);
      }
  });
}

// ---------------------------------------------------------------------------------------------------- gates

// How gates with a temperature open. What is stored of one tells both its value and its gradient.
enum Mode : int {
  kSoft,    // sigmoid(a / tau)
  kHard,    // 1[a >= 0], with no gradient
  kBinary,  // 1[a >= 0], with the gradient of the soft gate: stored is sigmoid(a / tau), its sign is that of a;
            // but sigmoid(a) where the noise is infinite: stored is 2 + sigmoid(a)
};

template <class Real> struct Gate {
  using V = Vector<Real>;
  Mode mode;
  Real sharpness;  // 1 / tau

  Gate(int mode, double tau) : mode(Mode(mode)), sharpness(Real(1 / tau)) {}

  V open(V a) const {  // what is stored; keeps a NaN
    if (mode == kHard) return step(a, a >= Real(0));
    const V soft = sigmoid<Real>(a * sharpness);
    return mode == kSoft ? soft : (a >= Real(0) ? soft : -soft);
  }
  V open(V a, V noise) const {
    if (mode != kBinary) return open(a + noise);
    const auto stays_soft = noise == broadcast<Real>(std::numeric_limits<Real>::infinity());
    const V marked = sigmoid<Real>(a) + Real(2), binary = open(a + (stays_soft ? V{} : noise));
    return stays_soft ? marked : binary;
  }
  V value(V stored) const {
    if (mode != kBinary) return stored;
    const V soft = stored - Real(2), binary = step(stored, stored > Real(0));
    return is_marked(stored) ? soft : binary;
  }
  V through(V gradient, V stored) const {  // from the gate's value back to its pre-activation
    if (mode == kHard) return V{};
    if (mode == kSoft) return gradient * stored * (Real(1) - stored) * sharpness;
    const V size = stored < Real(0) ? -stored : stored, one = broadcast<Real>(1), sharp = broadcast<Real>(sharpness);
    const V soft = is_marked(stored) ? stored - Real(2) : size;
    return gradient * soft * (Real(1) - soft) * (is_marked(stored) ? one : sharp);
  }

 private:
  static auto is_marked(V stored) { return stored > broadcast<Real>(1.5); }
  template <class Mask> static V step(V a, Mask is_open) {
    const V one = broadcast<Real>(1), closed = a == a ? V{} : a;
    return is_open ? one : closed;
  }
};

// ---------------------------------------------------------------------------------------------------- layer

// What both passes know about a layer. Step s of the recurrence has `rows[s]` sequences, whose values are the rows from
// `offset[s]` on in every (N, ...) matrix; a backward direction lists its steps last to first.
struct Layer {
  int64_t steps, batch, hidden, projected;  // projected: the width of h if W_hr is there, else 0
  const int64_t *rows, *offset;
  double tau;
  int noisy_gates;  // with temperature and noise, which have their rows first; 3: on i, f, o of an LSTM
  int64_t width() const { return projected ? projected : hidden; }

  // Whether all that is addressed lies in matrices of as many rows as the steps have, and in states of `batch` rows.
  bool is_possible() const {
    if (std::min({steps, batch, projected}) < 0 || hidden < 1) return false;
    int64_t total = 0;
    for (int64_t s = 0; s < steps; ++s) {
      if (rows[s] < 0 || rows[s] > batch) return false;
      total += rows[s];
    }
    for (int64_t s = 0; s < steps; ++s)
      if (offset[s] < 0 || offset[s] > total - rows[s]) return false;
    return true;
  }

  // Calls work(sequences, threads) for all sequences. They are independent: where all weights fit its cache, a thread
  // takes a block of them and goes through all steps alone.
  template <class Work> void divide(Member& member, int64_t weight_bytes, const Work& work) const {
    Alone alone;
    const int64_t groups = ceil_div(ceil_div(batch, kRows), member.threads) * member.threads;
    if (member.threads == 1)
      work({0, batch}, alone);
    else if (weight_bytes <= cache_bytes() * 3 / 4 && batch >= groups)
      member.divide(groups, [&](int64_t group) { work(share(batch, int(group), int(groups)), alone); });
    else
      work({0, batch}, member);
  }
};

// Calls body(member) in up to as many threads, for a layer of so many steps.
template <class Body> void in_crew(int threads, int64_t steps, const Body& body) {
  Crew crew(threads, 3 + 4 * steps);
  in_parallel(threads, [&](int thread, int count) {
    Member member(crew, thread, count);
    body(member);
  });
}

// Calls work(range) for all `units`, a few vectors at a time.
template <class Real, class Threads, class Work> void divide_units(int64_t units, Threads& threads, const Work& work) {
  const int64_t vectors = ceil_div(units, Simd<Real>::lanes), parts = ceil_div(vectors, 4);
  threads.divide(parts, [&](int64_t part) { work(share(vectors, int(part), int(parts))); });
}

// Calls pass(layer) and returns 0; or 1 if memory runs out, 2 if the steps are impossible.
template <class Pass> int run(const Layer& layer, const Pass& pass) {
  return layer.is_possible() ? within_memory([&] { pass(layer); }) : 2;
}

}  // namespace
