// The recurrence of one LSTM layer in one direction, forward and backward, for the CPU.
//
// The caller multiplies the inputs of all time steps by W_x in one product; what is left, and lives here, is the part
// that must go step by step: h W_hᵀ, the gates, the cell. Four ideas make it fast:
//   * W_h is packed once per call, so that the inner loop reads it front to back;
//   * forward, the four gates of one unit lie side by side in a panel, so that a block of the product leaves the
//     registers only as finished gates, cell and output;
//   * the threads live as long as the call. Where the weights fit a core's cache, each thread takes some of the
//     sequences and never waits for another; else each takes some of the units, and they meet at a barrier every step;
//   * denormal numbers are flushed to zero while the call lasts; the caller's setting is restored.
//
// Rows are addressed by pointers: a step of a packed sequence, whose batch shrinks or grows, needs no copy.
// No header of torch is used: the library is loaded with ctypes and does not depend on torch's binary interface.

#include <vector>

#include "simd.h"

namespace {

// ---------------------------------------------------------------------------------------------------- products

// A panel holds, for each k of the inner dimension, the up to four vectors of columns that k contributes to.
template <class Real> struct Panels {
  static constexpr int lanes = Simd<Real>::lanes, stride = kGates * lanes;
  int64_t depth, vectors, count;  // `vectors` of columns in all, spread over the panels as evenly as possible
  Buffer<Real> data;
  Panels(int64_t depth, int64_t vectors)
      : depth(depth), vectors(vectors), count(ceil_div(vectors, kGates)), data(depth * count * stride) {}
  const Real* panel(int64_t index) const { return data.data + index * depth * stride; }
  int64_t bytes() const { return depth * count * stride * int64_t(sizeof(Real)); }
  Range vectors_of(int64_t index) const { return share(vectors, int(index), int(count)); }

  // Columns are gates x units: panel p takes units [p lanes, (p + 1) lanes) of each gate. weight: (4 units, depth).
  void pack_gates(const Real* weight, int64_t units, Range range) {
    for (int64_t p = range.begin; p < range.end; ++p) {
      Real* to = data.data + p * depth * stride;
      for (int64_t k0 = 0; k0 < depth; k0 += 16) {  // in blocks that stay in the cache: this is a transposition
        const int64_t k1 = std::min(k0 + 16, depth);
        for (int gate = 0; gate < kGates; ++gate) {
          for (int lane = 0; lane < lanes; ++lane) {
            const int64_t unit = p * lanes + lane;
            Real* column = to + gate * lanes + lane;
            const Real* from = weight + (gate * units + unit) * depth;
            for (int64_t k = k0; k < k1; ++k) column[k * stride] = unit < units ? from[k] : Real(0);
          }
        }
      }
    }
  }

  // Columns as they are. Element (k, column) of the matrix is weight[k step_k + column step_column].
  void pack_columns(const Real* weight, int64_t columns, int64_t step_k, int64_t step_column, Range range) {
    for (int64_t p = range.begin; p < range.end; ++p) {
      Real* to = data.data + p * depth * stride;
      const Range mine = vectors_of(p);
      const int64_t first = mine.begin * lanes, width = (mine.end - mine.begin) * lanes;
      const int64_t used = std::min(width, columns - first);
      for (int64_t k = 0; k < depth; ++k) {
        const Real* from = weight + k * step_k + first * step_column;
        for (int64_t column = 0; column < used; ++column) to[k * stride + column] = from[column * step_column];
        for (int64_t column = used; column < width; ++column) to[k * stride + column] = 0;
      }
    }
  }
};

template <class Real> using Block = Vector<Real>[kRows][kGates];

template <class Real, int Rows, int Vectors>
inline void product(const Real* const* rows, const Real* panel, int64_t depth, Block<Real>& sum) {
  constexpr int lanes = Simd<Real>::lanes;
  Vector<Real> s[Rows][Vectors] = {};
  for (int64_t k = 0; k < depth; ++k, panel += kGates * lanes) {
    Vector<Real> w[Vectors];
#pragma GCC unroll 4
    for (int q = 0; q < Vectors; ++q) w[q] = load(panel + q * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const Real value = rows[r][k];
#pragma GCC unroll 4
      for (int q = 0; q < Vectors; ++q) s[r][q] += value * w[q];
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int q = 0; q < Vectors; ++q) sum[r][q] = s[r][q];
}

template <class Real, int Vectors>
inline void product(int count, const Real* const* rows, const Real* panel, int64_t depth, Block<Real>& sum) {
  switch (count) {
    case 1: return product<Real, 1, Vectors>(rows, panel, depth, sum);
    case 2: return product<Real, 2, Vectors>(rows, panel, depth, sum);
    case 3: return product<Real, 3, Vectors>(rows, panel, depth, sum);
    default:
      if constexpr (kRows > 3) {
        if (count == 4) return product<Real, 4, Vectors>(rows, panel, depth, sum);
        if (count == 5) return product<Real, 5, Vectors>(rows, panel, depth, sum);
        return product<Real, 6, Vectors>(rows, panel, depth, sum);
      }
  }
}

// One thread's share of a layer: some of its sequences, and some of the columns of each of its products.
struct Part {
  Range sequences;
  int thread, threads;  // those that share the columns
  Range of(int64_t items) const { return share(items, thread, threads); }
  void meet() const {
    if (threads > 1) barrier();
  }
};

// Calls finish(first_row, row_count, panel, sum) for this thread's part of the blocks of rows x panels, where
// sum[r] = rows[first_row + r] (1, depth) x panel (depth, its columns). `rows` are those of the part's sequences.
template <class Real, class Finish>
void multiply(const Real* const* rows, int64_t row_count, const Panels<Real>& panels, const Part& part,
              const Finish& finish) {
  const int64_t blocks = ceil_div(row_count, kRows);  // of nearly equal height: 20 rows are 5 + 5 + 5 + 5
  const Range mine = part.of(panels.count * blocks);
  for (int64_t item = mine.begin; item < mine.end; ++item) {
    const int64_t p = item / blocks, block = item % blocks;
    const Range some = share(row_count, int(block), int(blocks)), vectors = panels.vectors_of(p);
    const int count = int(some.end - some.begin);
    const Real* const* first = rows + some.begin;
    Block<Real> sum;
    switch (vectors.end - vectors.begin) {
      case 1: product<Real, 1>(count, first, panels.panel(p), panels.depth, sum); break;
      case 2: product<Real, 2>(count, first, panels.panel(p), panels.depth, sum); break;
      case 3: product<Real, 3>(count, first, panels.panel(p), panels.depth, sum); break;
      default: product<Real, 4>(count, first, panels.panel(p), panels.depth, sum);
    }
    finish(some.begin, count, p, sum);
  }
}

// to (row_count, columns) = rows x panels, this thread's part.
template <class Real>
void multiply_into(Real* to, int64_t columns, const Real* const* rows, int64_t row_count, const Panels<Real>& panels,
                   const Part& part) {
  constexpr int lanes = Simd<Real>::lanes;
  multiply<Real>(rows, row_count, panels, part, [&](int64_t first, int count, int64_t p, auto& sum) {
    const Range vectors = panels.vectors_of(p);
    for (int k = 0; k < count; ++k)
      for (int64_t v = vectors.begin; v < vectors.end; ++v) {
        const int used = int(std::min<int64_t>(lanes, columns - v * lanes));
        store(to + (first + k) * columns + v * lanes, sum[k][v - vectors.begin], used);
      }
  });
}

// ---------------------------------------------------------------------------------------------------- layer

// What both passes know about a layer. Step s of the recurrence has `rows[s]` sequences, whose values are the rows from
// `offset[s]` on in every (N, ...) matrix; a backward direction lists its steps last to first.
struct Layer {
  int64_t steps, batch, hidden, projected;  // projected: the width of h if W_hr is there, else 0
  const int64_t *rows, *offset;
  double tau;
  int noisy_gates;  // 2: temperature and noise on i, f; 3: on i, f, o
  int64_t width() const { return projected ? projected : hidden; }

  // The sequences of one of `threads` threads, so that all threads have about the same number of steps to do.
  Range sequences_of(int thread, int threads) const {
    int64_t total = 0, before = 0, r = 0;
    for (int64_t s = 0; s < steps; ++s) total += rows[s];
    const auto boundary = [&](int t) {
      for (; r < batch && before * threads < total * t; ++r)
        for (int64_t s = 0; s < steps; ++s) before += rows[s] > r;
      return t == threads ? batch : r;
    };
    const int64_t begin = boundary(thread);
    return {begin, boundary(thread + 1)};
  }

  // Sequences are independent: a thread that owns some never waits for others, but has to read all weights.
  Part part(int thread, int threads, int64_t weight_bytes) const {
    if (weight_bytes <= cache_bytes() * 3 / 4 && batch >= 2 * threads)
      return {sequences_of(thread, threads), 0, 1};
    return {{0, batch}, thread, threads};
  }
};

template <class Real>
void forward(const Layer& l, Real* gates, const Real* noise, const Real* w_h, const Real* w_r, const Real* h0,
             const Real* c0, Real* out, Real* cells, bool hard, int wanted_threads) {
  constexpr int lanes = Simd<Real>::lanes;
  using V = Vector<Real>;
  const int64_t H = l.hidden, R = l.width();
  const Real sharpness = Real(1 / l.tau);
  Panels<Real> recurrent(R, kGates * ceil_div(H, lanes));
  Panels<Real> projection(w_r ? H : 0, w_r ? ceil_div(R, lanes) : 0);
  Buffer<Real> unprojected(w_r ? l.batch * H : 0);  // o tanh(c), before W_hr makes it h
  const int thread_limit = useful_threads(wanted_threads, l.batch * 4 * H * R);
  std::vector<const Real*> h_first(l.batch), c_first(l.batch), m_now(w_r ? l.batch : 0);
  for (int64_t r = 0; r < l.batch; ++r) {
    h_first[r] = h0 + r * R;
    c_first[r] = c0 + r * H;
    if (w_r) m_now[r] = unprojected.data + r * H;
  }

  // One for each thread, made here because no exception may leave a parallel region.
  std::vector<std::vector<const Real*>> h_rows(thread_limit, h_first), c_rows(thread_limit, c_first);

  in_parallel(thread_limit, [&](int thread, int threads) {
    recurrent.pack_gates(w_h, H, share(recurrent.count, thread, threads));
    if (w_r) projection.pack_columns(w_r, R, 1, H, share(projection.count, thread, threads));
    barrier();

    const Part part = l.part(thread, threads, recurrent.bytes() + projection.bytes());
    const int64_t begin = part.sequences.begin;
    std::vector<const Real*>&h_before = h_rows[thread], &c_before = c_rows[thread];
    for (int64_t s = 0; s < l.steps; ++s) {
      const int64_t n = std::min(l.rows[s], part.sequences.end) - begin, at = l.offset[s] + begin;
      if (n <= 0) continue;  // so do all threads that share the columns, since they have the same sequences
      multiply<Real>(&h_before[begin], n, recurrent, part, [&](int64_t first, int count, int64_t p, auto& sum) {
        const int64_t unit = p * lanes;
        const int used = int(std::min<int64_t>(lanes, H - unit));
        for (int k = 0; k < count; ++k) {
          const int64_t r = first + k, row = at + r;
          Real* gate = gates + row * kGates * H + unit;
          V i = sum[k][0] + load(gate, used), f = sum[k][1] + load(gate + H, used);
          V g = sum[k][2] + load(gate + 2 * H, used), o = sum[k][3] + load(gate + 3 * H, used);
          if (noise) {
            const Real* from = noise + row * l.noisy_gates * H + unit;
            i += load(from, used);
            f += load(from + H, used);
            if (l.noisy_gates == 3) o += load(from + 2 * H, used);
          }
          const V zero{}, one = broadcast<Real>(1);
          const auto open = [&](V a) {  // keeps a NaN
            return hard ? (a >= Real(0) ? one : (a < Real(0) ? zero : a)) : sigmoid<Real>(a * sharpness);
          };
          i = open(i);
          f = open(f);
          o = l.noisy_gates == 3 ? open(o) : sigmoid<Real>(o);
          g = tanh<Real>(g);
          const V c = f * load(c_before[begin + r] + unit, used) + i * g, m = o * tanh<Real>(c);
          store(gate, i, used);
          store(gate + H, f, used);
          store(gate + 2 * H, g, used);
          store(gate + 3 * H, o, used);
          store(cells + row * H + unit, c, used);
          store(w_r ? unprojected.data + (begin + r) * H + unit : out + row * H + unit, m, used);
        }
      });
      part.meet();
      if (w_r) {
        multiply_into<Real>(out + at * R, R, &m_now[begin], n, projection, part);
        part.meet();
      }
      for (int64_t r = 0; r < n; ++r) {
        h_before[begin + r] = out + (at + r) * R;
        c_before[begin + r] = cells + (at + r) * H;
      }
    }
  });
}

// On entry d_h (batch, R) and d_c (batch, H) hold the gradients of the last states; on return those of the first.
// d_gates (N, 4 H) becomes the gradient of the pre-activations W_x x + W_h h + b. With a projection, d_out (N, R) grows
// from the gradient of the output alone to that of h, which W_hr's own gradient needs.
template <class Real>
void backward(const Layer& l, const Real* gates, const Real* cells, const Real* c0, const Real* w_h, const Real* w_r,
              Real* d_out, Real* d_gates, Real* d_h, Real* d_c, bool hard, int wanted_threads) {
  constexpr int lanes = Simd<Real>::lanes;
  using V = Vector<Real>;
  const int64_t H = l.hidden, R = l.width();
  const Real sharpness = hard ? Real(0) : Real(1 / l.tau);  // a hard gate passes no gradient to its pre-activation
  Panels<Real> recurrent(4 * H, ceil_div(R, lanes));
  Panels<Real> projection(w_r ? R : 0, w_r ? ceil_div(H, lanes) : 0);
  Buffer<Real> d_m_data(w_r ? l.batch * H : 0);  // gradient of o tanh(c)
  const int thread_limit = useful_threads(wanted_threads, l.batch * 4 * H * R);
  std::vector<std::vector<const Real*>> thread_rows(thread_limit, std::vector<const Real*>(l.batch));

  in_parallel(thread_limit, [&](int thread, int threads) {
    recurrent.pack_columns(w_h, R, R, 1, share(recurrent.count, thread, threads));
    if (w_r) projection.pack_columns(w_r, H, H, 1, share(projection.count, thread, threads));
    barrier();

    const Part part = l.part(thread, threads, recurrent.bytes() + projection.bytes());
    const Range mine = part.of(ceil_div(H, lanes)), mine_wide = part.of(ceil_div(R, lanes));
    const int64_t begin = part.sequences.begin;
    std::vector<const Real*>& rows = thread_rows[thread];
    for (int64_t s = l.steps - 1; s >= 0; --s) {
      const int64_t n = std::min(l.rows[s], part.sequences.end) - begin, at = l.offset[s] + begin;
      if (n <= 0) continue;
      const int64_t n_before = s ? l.rows[s - 1] - begin : 0, at_before = s ? l.offset[s - 1] + begin : 0;
      Real *const d_h_here = d_h + begin * R, *const d_c_here = d_c + begin * H;

      // The output's gradient joins the one that came back through time.
      for (int64_t r = 0; r < n; ++r)
        for (int64_t v = mine_wide.begin; v < mine_wide.end; ++v) {
          const int64_t unit = v * lanes;
          const int used = int(std::min<int64_t>(lanes, R - unit));
          Real *to = d_h_here + r * R + unit, *from = d_out + (at + r) * R + unit;
          const V sum = load(to, used) + load(from, used);
          store(to, sum, used);
          if (w_r) store(from, sum, used);
        }
      if (w_r) {
        part.meet();
        for (int64_t r = 0; r < n; ++r) rows[r] = d_h_here + r * R;
        multiply_into<Real>(d_m_data.data + begin * H, H, rows.data(), n, projection, part);
        part.meet();
      }
      const Real* d_m = w_r ? d_m_data.data + begin * H : d_h_here;
      for (int64_t r = 0; r < n; ++r) {
        const int64_t row = at + r;
        const Real* c_before = r < n_before ? cells + (at_before + r) * H : c0 + (begin + r) * H;
        for (int64_t v = mine.begin; v < mine.end; ++v) {
          const int64_t unit = v * lanes;
          const int used = int(std::min<int64_t>(lanes, H - unit));
          const Real* gate = gates + row * kGates * H + unit;
          const V i = load(gate, used), f = load(gate + H, used), g = load(gate + 2 * H, used),
                  o = load(gate + 3 * H, used);
          const V tanh_c = tanh<Real>(load(cells + row * H + unit, used));
          const V dm = load(d_m + r * H + unit, used);
          const V dc = load(d_c_here + r * H + unit, used) + dm * o * (Real(1) - tanh_c * tanh_c);
          Real* to = d_gates + row * kGates * H + unit;
          store(to, dc * g * i * (Real(1) - i) * sharpness, used);
          store(to + H, dc * load(c_before + unit, used) * f * (Real(1) - f) * sharpness, used);
          store(to + 2 * H, dc * i * (Real(1) - g * g), used);
          store(to + 3 * H, dm * tanh_c * o * (Real(1) - o) * (l.noisy_gates == 3 ? sharpness : Real(1)), used);
          store(d_c_here + r * H + unit, dc * f, used);
        }
      }
      part.meet();
      for (int64_t r = 0; r < n; ++r) rows[r] = d_gates + (at + r) * kGates * H;
      multiply_into<Real>(d_h_here, R, rows.data(), n, recurrent, part);
      part.meet();
    }
  });
}

}  // namespace

#define DEFINE_FOR(Real, suffix)                                                                                    \
  EXPORT int g2lstm_forward_##suffix(int64_t steps, int64_t batch, int64_t hidden, int64_t projected,              \
                                      const int64_t* rows, const int64_t* offset, double tau, int noisy_gates,      \
                                      Real* gates, const Real* noise, const Real* w_h, const Real* w_r,             \
                                      const Real* h0, const Real* c0, Real* out, Real* cells, int hard,             \
                                     int threads) {                                                                 \
    return within_memory([&] {                                                                                      \
      forward<Real>({steps, batch, hidden, projected, rows, offset, tau, noisy_gates}, gates, noise, w_h, w_r, h0,  \
                    c0, out, cells, hard != 0, threads);                                                            \
    });                                                                                                             \
  }                                                                                                                 \
  EXPORT int g2lstm_backward_##suffix(int64_t steps, int64_t batch, int64_t hidden, int64_t projected,             \
                                       const int64_t* rows, const int64_t* offset, double tau, int noisy_gates,     \
                                       const Real* gates, const Real* cells, const Real* c0, const Real* w_h,       \
                                       const Real* w_r, Real* d_out, Real* d_gates, Real* d_h, Real* d_c,           \
                                       int hard, int threads) {                                                     \
    return within_memory([&] {                                                                                      \
      backward<Real>({steps, batch, hidden, projected, rows, offset, tau, noisy_gates}, gates, cells, c0, w_h, w_r, \
                     d_out, d_gates, d_h, d_c, hard != 0, threads);                                                 \
    });                                                                                                             \
  }

DEFINE_FOR(float, float32)
DEFINE_FOR(double, float64)

// Whether this processor has the instructions that this library was compiled for (see setup.py).
EXPORT int g2lstm_runs_here() {
#if defined(__AVX512VNNI__)
  if (!__builtin_cpu_supports("avx512vnni")) return 0;
#endif
#if defined(__AVX512F__)
  for (int has : {__builtin_cpu_supports("avx512f"), __builtin_cpu_supports("avx512bw"),
                  __builtin_cpu_supports("avx512dq"), __builtin_cpu_supports("avx512vl")})
    if (!has) return 0;
#endif
#if defined(__AVX2__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
#endif
  return 1;
}
