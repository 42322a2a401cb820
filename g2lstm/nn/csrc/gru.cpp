// The recurrence of one GRU layer in one direction, forward and backward, for the CPU.
//
//   r, z = gate(from x + W_h h),  n = tanh(from x + r a),  a = W_hn h + b_hn,  h' = n + z (h - n)

#include "recurrent.h"

namespace {

constexpr int kGruGates = 3;  // r, z, n: torch's order

// gates (N, 3 H) turns from W_x x + b into what is stored of r, z, n; inner (N, H) becomes a.
template <class Real, class Factor>
void forward(const Layer& l, Real* gates, const Real* noise, const Factor* w_h, const Real* b_n, const Real* h0,
             Real* out, Real* inner, int mode, int wanted_threads) {
  constexpr int lanes = Simd<Real>::lanes;
  using V = Vector<Real>;
  const int64_t H = l.hidden;
  const Gate<Real> sampled(mode, l.tau);
  Panels<Real, kGruGates, Factor> recurrent(H, kGruGates * ceil_div(H, lanes));
  Rounded<Real, Factor> h_rounded(3 * l.batch, H);  // of two steps, and the first
  const int thread_limit = useful_threads(wanted_threads, l.batch * kGruGates * H * H);
  std::vector<const Real*> h_first(l.batch);
  std::vector<const Factor*> factors_first(l.batch);
  for (int64_t r = 0; r < l.batch; ++r) {
    h_first[r] = h0 + r * H;
    h_rounded.set(2 * l.batch + r, h_first[r], H);
    factors_first[r] = h_rounded.row(2 * l.batch + r, h_first[r]);
  }
  std::vector<std::vector<const Real*>> h_rows(thread_limit, h_first);  // no exception may leave a parallel region
  std::vector<std::vector<const Factor*>> factor_rows(thread_limit, factors_first);

  in_crew(thread_limit, l.steps, [&](Member& member) {
    recurrent.pack_gates(w_h, H, member);
    std::vector<const Real*>& h_before = h_rows[member.thread];
    std::vector<const Factor*>& factors = factor_rows[member.thread];
    l.divide(member, recurrent.bytes(), [&](Range sequences, auto& threads) {
      const int64_t begin = sequences.begin;
      for (int64_t s = 0; s < l.steps; ++s) {
        const int64_t n = std::min(l.rows[s], sequences.end) - begin, at = l.offset[s] + begin;
        if (n <= 0) continue;  // for all threads that share these sequences
        const int64_t now = s % 2 * l.batch + begin;
        multiply<Real>(&factors[begin], n, recurrent, threads, [&](int64_t first, int count, int64_t p, auto& sum) {
          const int64_t unit = p * lanes;
          const int used = int(std::min<int64_t>(lanes, H - unit));
          const V bias = b_n ? load(b_n + unit, used) : V{};
          for (int k = 0; k < count; ++k) {
            const int64_t row = at + first + k;
            Real* gate = gates + row * kGruGates * H + unit;
            V r = sum[k][0] + load(gate, used), z = sum[k][1] + load(gate + H, used);
            const Real* from = noise ? noise + row * 2 * H + unit : nullptr;
            r = from ? sampled.open(r, load(from, used)) : sampled.open(r);
            z = from ? sampled.open(z, load(from + H, used)) : sampled.open(z);
            const V a = sum[k][2] + bias;
            const V candidate = tanh<Real>(load(gate + 2 * H, used) + sampled.value(r) * a);
            const V h = load(h_before[begin + first + k] + unit, used);
            store(gate, r, used);
            store(gate + H, z, used);
            store(gate + 2 * H, candidate, used);
            store(inner + row * H + unit, a, used);
            const V next = candidate + sampled.value(z) * (h - candidate);
            store(out + row * H + unit, next, used);
            h_rounded.set(now + first + k, unit, next, used);
          }
        });
        for (int64_t r = 0; r < n; ++r) {
          h_before[begin + r] = out + (at + r) * H;
          factors[begin + r] = h_rounded.row(now + r, h_before[begin + r]);
        }
      }
    });
  });
}

// On entry d_h (batch, H) holds the gradient of the last state; on return that of the first. d_gates (N, 4 H) becomes
// the gradients of r, z, a and n before their functions: W_h's are the first three, W_x's all but the third.
template <class Real, class Factor>
void backward(const Layer& l, const Real* gates, const Real* inner, const Real* out, const Factor* w_h, const Real* h0,
              const Real* d_out, Real* d_gates, Real* d_h, int mode, int wanted_threads) {
  constexpr int lanes = Simd<Real>::lanes;
  using V = Vector<Real>;
  const int64_t H = l.hidden;
  const Gate<Real> sampled(mode, l.tau);
  Panels<Real, kGates, Factor> recurrent(kGruGates * H, ceil_div(H, lanes));
  Rounded<Real, Factor> d_gates_rounded(l.batch, kGruGates * H);
  const int thread_limit = useful_threads(wanted_threads, l.batch * kGruGates * H * H);
  std::vector<std::vector<const Factor*>> thread_rows(thread_limit, std::vector<const Factor*>(l.batch));

  in_crew(thread_limit, l.steps, [&](Member& member) {
    recurrent.pack_columns(w_h, H, H, 1, member);
    std::vector<const Factor*>& rows = thread_rows[member.thread];
    l.divide(member, recurrent.bytes(), [&](Range sequences, auto& threads) {
      const int64_t begin = sequences.begin;
      for (int64_t s = l.steps - 1; s >= 0; --s) {
        const int64_t n = std::min(l.rows[s], sequences.end) - begin, at = l.offset[s] + begin;
        if (n <= 0) continue;
        const int64_t n_before = s ? l.rows[s - 1] - begin : 0, at_before = s ? l.offset[s - 1] + begin : 0;
        Real* const d_h_here = d_h + begin * H;
        divide_units<Real>(H, threads, [&](Range vectors) {
          for (int64_t r = 0; r < n; ++r) {
            const int64_t row = at + r;
            const Real* h_before = r < n_before ? out + (at_before + r) * H : h0 + (begin + r) * H;
            for (int64_t v = vectors.begin; v < vectors.end; ++v) {
              const int64_t unit = v * lanes;
              const int used = int(std::min<int64_t>(lanes, H - unit));
              const Real* gate = gates + row * kGruGates * H + unit;
              const V r_kept = load(gate, used), z_kept = load(gate + H, used), candidate = load(gate + 2 * H, used);
              const V z = sampled.value(z_kept);
              const V dh = load(d_h_here + r * H + unit, used) + load(d_out + row * H + unit, used);
              const V dn = dh * (Real(1) - z) * (Real(1) - candidate * candidate);
              const V d_gate[] = {sampled.through(dn * load(inner + row * H + unit, used), r_kept),
                                  sampled.through(dh * (load(h_before + unit, used) - candidate), z_kept),
                                  dn * sampled.value(r_kept), dn};
              for (int k = 0; k < kGates; ++k) {
                store(d_gates + (row * kGates + k) * H + unit, d_gate[k], used);
                if (k < kGruGates) d_gates_rounded.set(begin + r, k * H + unit, d_gate[k], used);
              }
              store(d_h_here + r * H + unit, dh * z, used);
            }
          }
        });
        for (int64_t r = 0; r < n; ++r) rows[r] = d_gates_rounded.row(begin + r, d_gates + (at + r) * kGates * H);
        multiply_into<Real, true>(d_h_here, H, rows.data(), n, recurrent, threads);
      }
    });
  });
}

}  // namespace

#define DEFINE_FOR(Real, Factor, suffix)                                                                            \
  EXPORT int g2lstm_gru_forward_##suffix(int64_t steps, int64_t batch, int64_t hidden, int64_t,                     \
                                         const int64_t* rows, const int64_t* offset, double tau, int noisy_gates,   \
                                         Real* gates, const Real* noise, const Factor* w_h, const Real* b_n,        \
                                         const Real* h0, Real* out, Real* inner, int mode, int threads) {           \
    return run({steps, batch, hidden, 0, rows, offset, tau, noisy_gates}, [&](const Layer& l) {                     \
      forward<Real, Factor>(l, gates, noise, w_h, b_n, h0, out, inner, mode, threads);                              \
    });                                                                                                             \
  }                                                                                                                 \
  EXPORT int g2lstm_gru_backward_##suffix(int64_t steps, int64_t batch, int64_t hidden, int64_t,                    \
                                          const int64_t* rows, const int64_t* offset, double tau, int noisy_gates,  \
                                          const Real* gates, const Real* inner, const Real* out, const Factor* w_h, \
                                          const Real* h0, const Real* d_out, Real* d_gates, Real* d_h, int mode,    \
                                          int threads) {                                                            \
    return run({steps, batch, hidden, 0, rows, offset, tau, noisy_gates}, [&](const Layer& l) {                     \
      backward<Real, Factor>(l, gates, inner, out, w_h, h0, d_out, d_gates, d_h, mode, threads);                    \
    });                                                                                                             \
  }

DEFINE_FOR(float, float, float32)
DEFINE_FOR(double, double, float64)
#if defined(__AVX512BF16__)
DEFINE_FOR(float, Half, bfloat16)
#endif
