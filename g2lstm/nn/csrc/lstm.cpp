// The recurrence of one LSTM layer in one direction, forward and backward, for the CPU.

#include "recurrent.h"

namespace {

// Factor: the type of what the products multiply; what they add up, and everything else, is a Real.
template <class Real, class Factor>
void forward(const Layer& l, Real* gates, const Real* noise, const Factor* w_h, const Factor* w_r, const Real* h0,
             const Real* c0, Real* out, Real* cells, int mode, int wanted_threads) {
  constexpr int lanes = Simd<Real>::lanes;
  using V = Vector<Real>;
  const int64_t H = l.hidden, R = l.width();
  const Gate<Real> sampled(mode, l.tau);
  Panels<Real, kGates, Factor> recurrent(R, kGates * ceil_div(H, lanes));
  Panels<Real, kGates, Factor> projection(w_r ? H : 0, w_r ? ceil_div(R, lanes) : 0);
  Buffer<Real> unprojected(w_r ? l.batch * H : 0);  // o tanh(c), before W_hr makes it h
  Rounded<Real, Factor> h_rounded(3 * l.batch, R), m_rounded(w_r ? l.batch : 0, H);  // h: of two steps, and the first
  const int thread_limit = useful_threads(wanted_threads, l.batch * 4 * H * R);
  std::vector<const Real*> c_first(l.batch);
  std::vector<const Factor*> h_first(l.batch), m_now(w_r ? l.batch : 0);
  for (int64_t r = 0; r < l.batch; ++r) {
    h_rounded.set(2 * l.batch + r, h0 + r * R, R);
    h_first[r] = h_rounded.row(2 * l.batch + r, h0 + r * R);
    c_first[r] = c0 + r * H;
    if (w_r) m_now[r] = m_rounded.row(r, unprojected.data + r * H);
  }

  // One for each thread, made here because no exception may leave a parallel region.
  std::vector<std::vector<const Factor*>> h_rows(thread_limit, h_first);
  std::vector<std::vector<const Real*>> c_rows(thread_limit, c_first);

  in_crew(thread_limit, l.steps, [&](Member& member) {
    recurrent.pack_gates(w_h, H, member);
    if (w_r) projection.pack_columns(w_r, R, 1, H, member);
    std::vector<const Factor*>& h_before = h_rows[member.thread];
    std::vector<const Real*>& c_before = c_rows[member.thread];
    l.divide(member, recurrent.bytes() + projection.bytes(), [&](Range sequences, auto& threads) {
      const int64_t begin = sequences.begin;
      for (int64_t s = 0; s < l.steps; ++s) {
        const int64_t n = std::min(l.rows[s], sequences.end) - begin, at = l.offset[s] + begin;
        if (n <= 0) continue;  // for all threads that share these sequences
        const int64_t now = s % 2 * l.batch + begin;
        // The last elements: the first ones lie in the cache lines of the panel before.
        const auto fetch = [&](int64_t first, int count, int64_t p) {
          const int64_t unit = (p + 1) * lanes - 1;
          for (int64_t r = first; r < first + count; ++r) {
            for (int k = 0; k < kGates; ++k) __builtin_prefetch(gates + ((at + r) * kGates + k) * H + unit, 1);
            for (int k = 0; noise && k < l.noisy_gates; ++k)
              __builtin_prefetch(noise + ((at + r) * l.noisy_gates + k) * H + unit);
            __builtin_prefetch(c_before[begin + r] + unit);
            __builtin_prefetch(cells + (at + r) * H + unit, 1);
            __builtin_prefetch(out + (at + r) * R + unit, 1);
          }
        };
        const auto finish = [&](int64_t first, int count, int64_t p, auto& sum) {
          const int64_t unit = p * lanes;
          const int used = int(std::min<int64_t>(lanes, H - unit));
          for (int k = 0; k < count; ++k) {
            const int64_t r = first + k, row = at + r;
            Real* gate = gates + row * kGates * H + unit;
            V i = sum[k][0] + load(gate, used), f = sum[k][1] + load(gate + H, used);
            V g = sum[k][2] + load(gate + 2 * H, used), o = sum[k][3] + load(gate + 3 * H, used);
            const Real* from = noise ? noise + row * l.noisy_gates * H + unit : nullptr;
            i = from ? sampled.open(i, load(from, used)) : sampled.open(i);
            f = from ? sampled.open(f, load(from + H, used)) : sampled.open(f);
            if (l.noisy_gates < 3) o = sigmoid<Real>(o);
            else o = from ? sampled.open(o, load(from + 2 * H, used)) : sampled.open(o);
            g = tanh<Real>(g);
            const V c = sampled.value(f) * load(c_before[begin + r] + unit, used) + sampled.value(i) * g;
            const V m = (l.noisy_gates == 3 ? sampled.value(o) : o) * tanh<Real>(c);
            store(gate, i, used);
            store(gate + H, f, used);
            store(gate + 2 * H, g, used);
            store(gate + 3 * H, o, used);
            store(cells + row * H + unit, c, used);
            store(w_r ? unprojected.data + (begin + r) * H + unit : out + row * H + unit, m, used);
            if (w_r) m_rounded.set(begin + r, unit, m, used);
            else h_rounded.set(now + r, unit, m, used);
          }
        };
        multiply<Real>(&h_before[begin], n, recurrent, threads, finish, fetch);
        if (w_r)
          multiply_into<Real>(out + at * R, R, &m_now[begin], n, projection, threads,
                              [&](int64_t r, int64_t unit, V h, int used) { h_rounded.set(now + r, unit, h, used); });
        for (int64_t r = 0; r < n; ++r) {
          h_before[begin + r] = h_rounded.row(now + r, out + (at + r) * R);
          c_before[begin + r] = cells + (at + r) * H;
        }
      }
    });
  });
}

// On entry d_h (batch, R) and d_c (batch, H) hold the gradients of the last states; on return those of the first.
// d_gates (N, 4 H) becomes the gradient of the pre-activations W_x x + W_h h + b. With a projection, d_out (N, R) grows
// from the gradient of the output alone to that of h, which W_hr's own gradient needs.
template <class Real, class Factor>
void backward(const Layer& l, const Real* gates, const Real* cells, const Real* c0, const Factor* w_h,
              const Factor* w_r, Real* d_out, Real* d_gates, Real* d_h, Real* d_c, int mode, int wanted_threads) {
  constexpr int lanes = Simd<Real>::lanes;
  using V = Vector<Real>;
  const int64_t H = l.hidden, R = l.width();
  const Gate<Real> sampled(mode, l.tau), plain(kSoft, 1), &output = l.noisy_gates == 3 ? sampled : plain;
  Panels<Real, kGates, Factor> recurrent(4 * H, ceil_div(R, lanes));
  Panels<Real, kGates, Factor> projection(w_r ? R : 0, w_r ? ceil_div(H, lanes) : 0);
  Buffer<Real> d_m_data(w_r ? l.batch * H : 0);  // gradient of o tanh(c)
  Rounded<Real, Factor> d_gates_rounded(l.batch, 4 * H), d_h_rounded(w_r ? l.batch : 0, R);
  const int thread_limit = useful_threads(wanted_threads, l.batch * 4 * H * R);
  std::vector<std::vector<const Factor*>> thread_rows(thread_limit, std::vector<const Factor*>(l.batch));

  in_crew(thread_limit, l.steps, [&](Member& member) {
    recurrent.pack_columns(w_h, R, R, 1, member);
    if (w_r) projection.pack_columns(w_r, H, H, 1, member);
    std::vector<const Factor*>& rows = thread_rows[member.thread];
    l.divide(member, recurrent.bytes() + projection.bytes(), [&](Range sequences, auto& threads) {
      const int64_t begin = sequences.begin;
      for (int64_t s = l.steps - 1; s >= 0; --s) {
        const int64_t n = std::min(l.rows[s], sequences.end) - begin, at = l.offset[s] + begin;
        if (n <= 0) continue;
        const int64_t n_before = s ? l.rows[s - 1] - begin : 0, at_before = s ? l.offset[s - 1] + begin : 0;
        Real *const d_h_here = d_h + begin * R, *const d_c_here = d_c + begin * H;

        // The output's gradient joins the one that came back through time.
        const auto join = [&](Range vectors) {
          for (int64_t r = 0; r < n; ++r)
            for (int64_t v = vectors.begin; v < vectors.end; ++v) {
              const int64_t unit = v * lanes;
              const int used = int(std::min<int64_t>(lanes, R - unit));
              Real *to = d_h_here + r * R + unit, *from = d_out + (at + r) * R + unit;
              const V sum = load(to, used) + load(from, used);
              store(to, sum, used);
              if (w_r) store(from, sum, used);
              if (w_r) d_h_rounded.set(begin + r, unit, sum, used);
            }
        };
        if (w_r) {
          divide_units<Real>(R, threads, join);
          for (int64_t r = 0; r < n; ++r) rows[r] = d_h_rounded.row(begin + r, d_h_here + r * R);
          multiply_into<Real>(d_m_data.data + begin * H, H, rows.data(), n, projection, threads);
        }
        const Real* d_m = w_r ? d_m_data.data + begin * H : d_h_here;
        divide_units<Real>(H, threads, [&](Range vectors) {
          if (!w_r) join(vectors);
          for (int64_t r = 0; r < n; ++r) {
            const int64_t row = at + r;
            const Real* c_before = r < n_before ? cells + (at_before + r) * H : c0 + (begin + r) * H;
            for (int64_t v = vectors.begin; v < vectors.end; ++v) {
              const int64_t unit = v * lanes;
              const int used = int(std::min<int64_t>(lanes, H - unit));
              const Real* gate = gates + row * kGates * H + unit;
              const V i_kept = load(gate, used), f_kept = load(gate + H, used), o_kept = load(gate + 3 * H, used);
              const V i = sampled.value(i_kept), f = sampled.value(f_kept), o = output.value(o_kept);
              const V g = load(gate + 2 * H, used);
              const V tanh_c = tanh<Real>(load(cells + row * H + unit, used));
              const V dm = load(d_m + r * H + unit, used);
              const V dc = load(d_c_here + r * H + unit, used) + dm * o * (Real(1) - tanh_c * tanh_c);
              const V d_gate[] = {sampled.through(dc * g, i_kept),
                                  sampled.through(dc * load(c_before + unit, used), f_kept),
                                  dc * i * (Real(1) - g * g), output.through(dm * tanh_c, o_kept)};
              for (int k = 0; k < kGates; ++k) {
                store(d_gates + (row * kGates + k) * H + unit, d_gate[k], used);
                d_gates_rounded.set(begin + r, k * H + unit, d_gate[k], used);
              }
              store(d_c_here + r * H + unit, dc * f, used);
            }
          }
        });
        for (int64_t r = 0; r < n; ++r) rows[r] = d_gates_rounded.row(begin + r, d_gates + (at + r) * kGates * H);
        multiply_into<Real>(d_h_here, R, rows.data(), n, recurrent, threads);
      }
    });
  });
}

}  // namespace

#define DEFINE_FOR(Real, Factor, suffix)                                                                            \
  EXPORT int g2lstm_forward_##suffix(int64_t steps, int64_t batch, int64_t hidden, int64_t projected,               \
                                      const int64_t* rows, const int64_t* offset, double tau, int noisy_gates,      \
                                      Real* gates, const Real* noise, const Factor* w_h, const Factor* w_r,         \
                                      const Real* h0, const Real* c0, Real* out, Real* cells, int mode,             \
                                     int threads) {                                                                 \
    return run({steps, batch, hidden, projected, rows, offset, tau, noisy_gates}, [&](const Layer& l) {             \
      forward<Real, Factor>(l, gates, noise, w_h, w_r, h0, c0, out, cells, mode, threads);                          \
    });                                                                                                             \
  }                                                                                                                 \
  EXPORT int g2lstm_backward_##suffix(int64_t steps, int64_t batch, int64_t hidden, int64_t projected,              \
                                       const int64_t* rows, const int64_t* offset, double tau, int noisy_gates,     \
                                       const Real* gates, const Real* cells, const Real* c0, const Factor* w_h,     \
                                       const Factor* w_r, Real* d_out, Real* d_gates, Real* d_h, Real* d_c,         \
                                       int mode, int threads) {                                                     \
    return run({steps, batch, hidden, projected, rows, offset, tau, noisy_gates}, [&](const Layer& l) {             \
      backward<Real, Factor>(l, gates, cells, c0, w_h, w_r, d_out, d_gates, d_h, d_c, mode, threads);               \
    });                                                                                                             \
  }

DEFINE_FOR(float, float, float32)
DEFINE_FOR(double, double, float64)
#if defined(__AVX512BF16__)
DEFINE_FOR(float, Half, bfloat16)
#endif

// Whether this processor has the instructions that this library was compiled for (see setup.py).
EXPORT int g2lstm_runs_here() {
#if defined(__AVX512BF16__)
  if (!__builtin_cpu_supports("avx512bf16")) return 0;
#endif
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
