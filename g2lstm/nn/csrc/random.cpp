// Random numbers where they are used: the noise of the gates and the mask of DropConnect, each in one pass over memory.
//
// Word k of a stream is SplitMix64's mix(seed + (k + 1) gamma): any thread can compute any part of it. `random.py`
// has the same in torch operations.

#include <cmath>
#include <limits>

#include "simd.h"

namespace {

typedef uint64_t Words64 __attribute__((vector_size(kVectorBytes)));
typedef uint32_t Words32 __attribute__((vector_size(kVectorBytes)));
constexpr int kWords64 = kVectorBytes / 8, kWords32 = kVectorBytes / 4;

template <class Word> inline Word mix(Word z) {  // Stafford's variant 13, the output function of SplitMix64
  z = (z ^ (z >> 30)) * uint64_t(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * uint64_t(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

struct Stream {
  uint64_t seed, gamma;

  uint64_t word(int64_t k) const { return mix<uint64_t>(seed + uint64_t(k + 1) * gamma); }

  Words64 words(int64_t first) const {  // enough to fill a vector
    Words64 counter;
    for (int lane = 0; lane < kWords64; ++lane) counter[lane] = uint64_t(lane) * gamma;
    return mix<Words64>(counter + (seed + uint64_t(first + 1) * gamma));
  }
};

}  // namespace

// Logistic noise: if an element's 32 bits are above `finite` it gets infinite noise; else if they are at most `last`,
// logistic noise; else 0. last and finite may be -1.
EXPORT int g2lstm_noise_float32(int64_t seed, int64_t gamma, float* noise, int64_t count, int64_t last, int64_t finite,
                                int threads) {
  const Stream stream{uint64_t(seed), uint64_t(gamma)};
  const Words32 last_words = uint32_t(last) - Words32{}, finite_words = uint32_t(finite) - Words32{};
  const Vector<float> infinite = broadcast(std::numeric_limits<float>::infinity());
  in_parallel(useful_threads(threads, count), [&](int thread, int thread_count) {
    const Range mine = share(ceil_div(count, kWords32), thread, thread_count);
    for (int64_t v = mine.begin; v < mine.end; ++v) {
      const Words64 pairs = stream.words(v * kWords64);
      Words32 w;
      std::memcpy(&w, &pairs, sizeof w);
      const Vector<float> below = __builtin_convertvector(w, Vector<float>) + 0.5f;
      const Vector<float> above = __builtin_convertvector(last_words - w, Vector<float>) + 0.5f;
      const Vector<float> value = log(below * reciprocal<float>(above));
      const int used = int(std::min<int64_t>(kWords32, count - v * kWords32));
      Vector<float> drawn = w <= last_words ? value : Vector<float>{};
      if (last < 0) drawn = Vector<float>{};
      drawn = w > finite_words ? infinite : drawn;
      store(noise + v * kWords32, finite < 0 ? infinite : drawn, used);
    }
  });
  return 0;
}

// The same with 62 bits per element, so that no integer overflows.
EXPORT int g2lstm_noise_float64(int64_t seed, int64_t gamma, double* noise, int64_t count, int64_t last, int64_t finite,
                                int threads) {
  const Stream stream{uint64_t(seed), uint64_t(gamma)};
  in_parallel(useful_threads(threads, count), [&](int thread, int thread_count) {
    const Range mine = share(count, thread, thread_count);
    for (int64_t k = mine.begin; k < mine.end; ++k) {
      const int64_t w = int64_t(stream.word(k) & ((uint64_t(1) << 62) - 1));
      noise[k] = w > finite ? std::numeric_limits<double>::infinity()
                 : w > last ? 0.0
                            : std::log((double(w) + 0.5) / (double(last - w) + 0.5));
    }
  });
  return 0;
}

namespace {

// DropConnect: an element whose 32 bits are below `dropped` becomes 0; the others are multiplied by `scale`.
template <class Real>
int drop(int64_t seed, int64_t gamma, const Real* from, Real* to, int64_t count, int64_t dropped, double scale,
         int threads) {
  constexpr int lanes = Simd<Real>::lanes;
  typedef uint32_t Words __attribute__((vector_size(lanes * 4)));
  const Stream stream{uint64_t(seed), uint64_t(gamma)};
  in_parallel(useful_threads(threads, count), [&](int thread, int thread_count) {
    const Range mine = share(ceil_div(count, kWords32), thread, thread_count);
    for (int64_t v = mine.begin; v < mine.end; ++v) {
      const Words64 pairs = stream.words(v * kWords64);
      for (int part = 0; part < kWords32; part += lanes) {
        Words w;
        std::memcpy(&w, (const uint32_t*)&pairs + part, sizeof w);
        const auto is_dropped = __builtin_convertvector(w < uint32_t(dropped), typename Simd<Real>::Integer);
        const int64_t first = v * kWords32 + part;
        const int used = int(std::clamp<int64_t>(count - first, 0, lanes));
        store(to + first, is_dropped != 0 ? Vector<Real>{} : load(from + first, used) * Real(scale), used);
      }
    }
  });
  return 0;
}

}  // namespace

EXPORT int g2lstm_drop_float32(int64_t seed, int64_t gamma, const float* from, float* to, int64_t count,
                               int64_t dropped, double scale, int threads) {
  return drop<float>(seed, gamma, from, to, count, dropped, scale, threads);
}
EXPORT int g2lstm_drop_float64(int64_t seed, int64_t gamma, const double* from, double* to, int64_t count,
                               int64_t dropped, double scale, int threads) {
  return drop<double>(seed, gamma, from, to, count, dropped, scale, threads);
}
