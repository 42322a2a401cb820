// Vectors of the processor's width, the functions an LSTM needs on them, and threads: shared by the kernels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include <unistd.h>

#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__SSE2__)
#include <immintrin.h>
#endif

// Functions that Python calls.
#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// ---------------------------------------------------------------------------------------------------- vectors

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kRows = 6;   // 32 registers: 6 rows x 4 vectors of sums
#elif defined(__AVX__)
constexpr int kVectorBytes = 32, kRows = 3;   // 16 registers: 3 rows x 4 vectors of sums
#else
constexpr int kVectorBytes = 16, kRows = 6;   // NEON has 32 registers
#endif
constexpr int kGates = 4;                     // i, f, g, o: torch's order

template <class Real> struct Simd;
template <> struct Simd<float> {
  typedef float Vector __attribute__((vector_size(kVectorBytes)));
  typedef int32_t Integer __attribute__((vector_size(kVectorBytes)));
  static constexpr int lanes = kVectorBytes / 4;
  static constexpr int exponent_shift = 23, exponent_bias = 127;
  static constexpr float largest_exponent = 88.0f;       // exp of it is finite
};
template <> struct Simd<double> {
  typedef double Vector __attribute__((vector_size(kVectorBytes)));
  typedef int64_t Integer __attribute__((vector_size(kVectorBytes)));
  static constexpr int lanes = kVectorBytes / 8;
  static constexpr int exponent_shift = 52, exponent_bias = 1023;
  static constexpr double largest_exponent = 708.0;
};
template <class Real> using Vector = typename Simd<Real>::Vector;

template <class Real> inline Vector<Real> broadcast(Real value) { return value - Vector<Real>{}; }

template <class Real> inline Vector<Real> load(const Real* from) {
  Vector<Real> v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
template <class Real> inline void store(Real* to, Vector<Real> v) { std::memcpy(to, &v, sizeof v); }

// The first `count` lanes only, for the last panel of a width that is not a multiple of the vector's.
template <class Real> inline Vector<Real> load(const Real* from, int count) {
  if (count == Simd<Real>::lanes) return load(from);
  Vector<Real> v{};
  std::memcpy(&v, from, count * sizeof(Real));
  return v;
}
template <class Real> inline void store(Real* to, Vector<Real> v, int count) {
  if (count == Simd<Real>::lanes) return store(to, v);
  std::memcpy(to, &v, count * sizeof(Real));
}

// With masks where there are some: a copy of unknown length is a call, and the vector then waits for all its parts.
#if defined(__AVX512F__)
inline Vector<float> load(const float* from, int count) {
  return (Vector<float>)_mm512_maskz_loadu_ps(__mmask16((1u << count) - 1), from);
}
inline void store(float* to, Vector<float> v, int count) {
  if (count == Simd<float>::lanes) return store(to, v);
  _mm512_mask_storeu_ps(to, __mmask16((1u << count) - 1), (__m512)v);
}
#elif defined(__AVX__)
inline __m256i first_lanes(int count) {
  const Simd<float>::Integer lane = {0, 1, 2, 3, 4, 5, 6, 7};
  return (__m256i)(lane < count);
}
inline Vector<float> load(const float* from, int count) {
  if (count == Simd<float>::lanes) return load(from);
  return (Vector<float>)_mm256_maskload_ps(from, first_lanes(count));
}
inline void store(float* to, Vector<float> v, int count) {
  if (count == Simd<float>::lanes) return store(to, v);
  _mm256_maskstore_ps(to, first_lanes(count), (__m256)v);
}
#endif

// 1 / x. A division takes longer than an exponential, so an approximation by the processor is refined where it exists.
template <class Real> inline Vector<Real> reciprocal(Vector<Real> x) { return Real(1) / x; }
#if defined(__AVX512F__)
template <> inline Vector<float> reciprocal<float>(Vector<float> x) {
  const Vector<float> y = (Vector<float>)_mm512_rcp14_ps((__m512)x);
  return y * (2.0f - x * y);  // one Newton step doubles the 14 bits
}
#endif

// exp(x) - 1 = 2^n (exp(r) - 1) + (2^n - 1) with x = n ln 2 + r: accurate also next to zero. A NaN stays a NaN.
template <class Real> inline void expm1_parts(Vector<Real> x, Vector<Real>& power, Vector<Real>& exp_r_minus_1) {
  using V = Vector<Real>;
  constexpr Real limit = Simd<Real>::largest_exponent;
  x = x > limit ? broadcast<Real>(limit) : x;
  x = x < -limit ? broadcast<Real>(-limit) : x;
  const V half = x < Real(0) ? broadcast<Real>(Real(-0.5)) : broadcast<Real>(Real(0.5));
  const auto n = __builtin_convertvector(x * Real(1.44269504088896340736) + half, typename Simd<Real>::Integer);
  const V whole = __builtin_convertvector(n, V);
  V r = x - whole * Real(sizeof(Real) == 4 ? 0.693359375 : 6.93147180369123816490e-01);
  r = r - whole * Real(sizeof(Real) == 4 ? -2.12194440054690582e-4 : 1.90821492927058770002e-10);
  // Taylor's series; |r| <= ln 2 / 2, so the first term left out is below half a unit in the last place.
  constexpr int degree = sizeof(Real) == 4 ? 7 : 13;
  Real coefficient[degree + 1] = {1, 1};
  for (int k = 2; k <= degree; ++k) coefficient[k] = coefficient[k - 1] / Real(k);
  V p = broadcast<Real>(coefficient[degree]);
  for (int k = degree - 1; k >= 1; --k) p = p * r + coefficient[k];
  exp_r_minus_1 = p * r;
  const auto bits = (n + Simd<Real>::exponent_bias) << Simd<Real>::exponent_shift;
  std::memcpy(&power, &bits, sizeof power);
}

template <class Real> inline Vector<Real> exp(Vector<Real> x) {
  Vector<Real> power, p;
  expm1_parts<Real>(x, power, p);
  return power + power * p;
}

template <class Real> inline Vector<Real> sigmoid(Vector<Real> x) {  // 1 / (1 + exp(-x))
  return reciprocal<Real>(Real(1) + exp<Real>(-x));
}

template <class Real> inline Vector<Real> tanh(Vector<Real> x) {  // (exp(2x) - 1) / (exp(2x) + 1)
  constexpr Real limit = sizeof(Real) == 4 ? 10 : 20;  // beyond it tanh rounds to 1
  x = x > limit ? broadcast<Real>(limit) : x;
  x = x < -limit ? broadcast<Real>(-limit) : x;
  Vector<Real> power, p;
  expm1_parts<Real>(x + x, power, p);
  const Vector<Real> minus_1 = power * p + (power - Real(1));
  return minus_1 * reciprocal<Real>(minus_1 + Real(2));
}

// log(x) for normal positive x; the value of other lanes is undefined.
inline Vector<float> log(Vector<float> x) {
  using V = Vector<float>;
  using I = Simd<float>::Integer;
  I bits;
  std::memcpy(&bits, &x, sizeof bits);
  const I exponent = ((bits - 0x3f3504f3) >> 23);  // of x / sqrt(1/2), so that the mantissa lies around 1
  bits -= exponent << 23;
  V m;
  std::memcpy(&m, &bits, sizeof m);
  const V f = m - 1.0f, e = __builtin_convertvector(exponent, V);
  // log(1 + f) = f - f^2/2 + f^3 P(f), sqrt(1/2) - 1 <= f <= sqrt(2) - 1; P is the minimax polynomial of Cephes.
  constexpr float coefficient[] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                                   -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                                   2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
  V p = broadcast<float>(coefficient[0]);
  for (int k = 1; k < 9; ++k) p = p * f + coefficient[k];
  const V square = f * f;
  return (e * -2.12194440e-4f + (f * square * p - 0.5f * square)) + f + e * 0.693359375f;
}

// ---------------------------------------------------------------------------------------------------- threads

// Denormals cost a hundred cycles each and carry no information, and an LSTM's backward pass is full of them.
class FlushDenormals {
#if defined(__SSE2__)
  unsigned saved_ = _mm_getcsr();
 public:
  FlushDenormals() { _mm_setcsr(saved_ | 0x8040); }  // flush-to-zero, denormals-are-zero
  ~FlushDenormals() { _mm_setcsr(saved_); }
#elif defined(__aarch64__)
  uint64_t saved_;
 public:
  FlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" ::"r"(saved_ | (uint64_t(1) << 24)));
  }
  ~FlushDenormals() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }
#else
 public:
  FlushDenormals() {}
#endif
};

template <class Body> void in_parallel(int threads, const Body& body) {
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
  {
    FlushDenormals flush;
    body(omp_get_thread_num(), omp_get_num_threads());
  }
#else
  (void)threads;
  FlushDenormals flush;
  body(0, 1);
#endif
}

struct Range { int64_t begin, end; };
inline Range share(int64_t items, int thread, int threads) {
  return {items * thread / threads, items * (thread + 1) / threads};
}

// Waking a thread and waiting for it at each step only pays if a step has enough to do.
inline int useful_threads(int wanted, int64_t multiplications_per_step) {
  return int(std::clamp<int64_t>(multiplications_per_step / 50000, 1, std::max(wanted, 1)));
}

// No exception may cross the C interface: 0 when done, 1 when memory ran out.
template <class Body> int within_memory(const Body& body) {
  try {
    body();
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

// The size of a core's second-level cache; a common one where the system does not report it.
inline int64_t cache_bytes() {
#ifdef _SC_LEVEL2_CACHE_SIZE
  static const int64_t bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (bytes > 0) return bytes;
#endif
  return 1 << 20;
}

template <class Real> struct Buffer {  // aligned to a cache line, not initialised
  Real* data;
  explicit Buffer(int64_t count)
      : data(static_cast<Real*>(::operator new(size_t(count) * sizeof(Real), std::align_val_t(64)))) {}
  ~Buffer() { ::operator delete(data, std::align_val_t(64)); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace
