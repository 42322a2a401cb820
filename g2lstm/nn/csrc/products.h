// Products of packed matrices with one vector, or with a few: each weight is read once, packed, from front to back.
//
// A matrix is cut into panels of kPanel rows, one row to each 32-bit lane of two vectors. A panel lies in memory as
//   dense  for each column: kPanel floats
//   8 bits for each 8 columns: kPanel x 4 bytes for the first four, then the same for the others
//   4 bits for each 8 columns: kPanel x 4 bytes, the first four columns in the low halves, the rest in the high
//   3 bits for each 32 columns: 3 x kPanel x 4 bytes, which hold eight groups of four columns: two groups in the low six
//          bits of each third, the last two in the high two bits of all three
//   2 bits for each 16 columns: kPanel x 4 bytes, four columns in each two bits
// and, unless it is dense, ends with kPanel float32 scales. Grouped forms also have kPanel float16 scales before each
// group of columns. Columns are padded to whole chunks. Codes are stored without a sign: code + 2^(bits - 1), or, where
// all are odd, (code + 2^bits - 1) / 2. What the addition adds to a sum depends only on the vector, and is taken off in
// the end.
//
// The vector is quantised to 16 bits; its largest element becomes 32639. With VNNI, which multiplies bytes, it has two
// parts, 256 high + low, multiplied by the same weights; otherwise there is a sum of even and one of odd columns.
#pragma once

#include "simd.h"

namespace {

using Floats = Vector<float>;
using Ints = Simd<float>::Integer;

constexpr int kLanes = Simd<float>::lanes;
constexpr int kVectors = 2;                  // of rows in a panel: two sums at once hide the latency of each
constexpr int kPanel = kVectors * kLanes;    // rows
constexpr int kChunk = 8;                    // columns that are read at once, at least
constexpr int kAhead = 4096;                 // bytes to prefetch ahead
constexpr int kFill = 64;                    // vectors are padded with zeros to a multiple of this
constexpr int kLargest = 127 * 256 + 127;    // of a quantised element

struct Four { int32_t first, second; };      // the two parts of four neighbouring columns
struct Sum { Ints first, second; };

inline Ints spread(int32_t value) { return value - Ints{}; }
inline Ints load_ints(const void* from) {
  Ints v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
inline Floats load_floats(const uint8_t* from) {
  Floats v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

// ---------------------------------------------------------------------------------------------------- instructions

#if defined(__AVX512VNNI__)
constexpr bool kBytes = true;                // the two parts are bytes
constexpr int kLongest = 1 << 15;            // columns whose sum is certain to fit 32 bits
inline Ints dot(Ints sum, Ints weights, Ints x) {  // of 4 unsigned and 4 signed bytes
  return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, (__m512i)x);
}
#else
constexpr bool kBytes = false;               // the two parts are pairs of 16-bit numbers
constexpr int kLongest = 256;
inline Ints dot(Ints sum, Ints weights, Ints x) {  // of 2 and 2 signed 16-bit numbers
#if defined(__AVX512BW__)
  return sum + (Ints)_mm512_madd_epi16((__m512i)weights, (__m512i)x);
#elif defined(__AVX2__)
  return sum + (Ints)_mm256_madd_epi16((__m256i)weights, (__m256i)x);
#elif defined(__SSE2__)
  return sum + (Ints)_mm_madd_epi16((__m128i)weights, (__m128i)x);
#else
  return sum + ((weights << 16) >> 16) * ((x << 16) >> 16) + (weights >> 16) * (x >> 16);
#endif
}
#endif
constexpr int kLongestGroup = 4096;          // of up to four bits; `compression/encodings/panels.py` has the same
constexpr int32_t kOnes = kBytes ? 0x01010101 : 0x00010001;
constexpr float kFirst = kBytes ? 256.0f : 1.0f;  // the weight of the first part

inline void add(Sum& sum, Ints weights, Four x) {  // weights: four unsigned bytes in each lane
  const Ints even = kBytes ? weights : weights & 0x00ff00ff, odd = kBytes ? weights : (weights >> 8) & 0x00ff00ff;
  sum.first = dot(sum.first, even, spread(x.first));
  sum.second = dot(sum.second, odd, spread(x.second));
}

inline Floats load_halves(const uint8_t* from) {  // float16, finite
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__F16C__)
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#else
  Ints bits;
  for (int lane = 0; lane < kLanes; ++lane) bits[lane] = from[2 * lane] | from[2 * lane + 1] << 8;
  const Ints exponent = bits >> 10 & 31, least = exponent == 0 ? spread(1) : exponent;
  const Ints mantissa = (bits & 0x3ff) + (exponent == 0 ? spread(0) : spread(0x400));
  const Ints power = (least + (127 - 25)) << 23;  // built as a float: denormals, which are flushed here, do not matter
  Floats scale;
  std::memcpy(&scale, &power, sizeof scale);
  return __builtin_convertvector((bits & 0x8000) != 0 ? -mantissa : mantissa, Floats) * scale;
#endif
}

// ---------------------------------------------------------------------------------------------------- the vector

// What is added to the sums over groups of columns, to undo the offset of the codes: -offset times the sum of the elements.
struct Starts {
  int64_t group;
  int32_t offset;
  std::vector<Four> of_group;
};

// A vector in the forms that products read. Each thread makes its own: that is faster than waiting for another's.
struct Operand {
  int64_t count;
  float step = 0;               // of the quantised elements
  std::vector<float> values;    // padded with zeros
  std::vector<Four> fours, sums;
  std::vector<Starts> starts;   // empty if only dense products read it

  explicit Operand(int64_t count) : count(count), values(ceil_div(count, kFill) * kFill) {}

  int64_t columns() const { return ceil_div(count, kChunk) * kChunk; }

  int starts_of(int64_t group, int32_t offset) {  // the index of its table, made on first use
    for (size_t k = 0; k < starts.size(); ++k)
      if (starts[k].group == group && starts[k].offset == offset) return int(k);
    fours.resize(values.size() / 4);
    sums.resize(values.size() / 4);
    starts.push_back({group, offset, std::vector<Four>(ceil_div(columns(), group))});
    return int(starts.size()) - 1;
  }

  void set(const float* from) {
    std::memcpy(values.data(), from, count * sizeof(float));
    if (!starts.empty()) quantise();
  }

 private:
  void quantise() {
    const int64_t filled = int64_t(values.size());
    Floats most{}, zero_or_nan{};
    for (int64_t k = 0; k < filled; k += kLanes) {
      const Floats v = load(&values[k]), size = v < 0.0f ? -v : v;
      most = size > most ? size : most;
      zero_or_nan += v * 0.0f;  // an infinite element makes it NaN, too, and with it every product
    }
    float largest = 0, trouble = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      largest = std::max(largest, most[lane]);
      trouble += zero_or_nan[lane];
    }
    step = largest / kLargest + trouble;
    const float inverse = largest > 1e-30f ? kLargest / largest : 0.0f;  // below, 1 / step could overflow
    for (int64_t k = 0; k < filled; k += kLanes) {
      const Floats shifted = load(&values[k]) * inverse + 12582912.0f;  // 1.5 x 2^23: the last bit counts ones
      split(load_ints(&shifted) - 0x4b400000, &fours[k / 4]);
    }
    constexpr int in_vector = kLanes / 2;
    for (size_t k = 0; k < fours.size(); k += in_vector) {
      const Ints totals = dot(Ints{}, spread(kOnes), load_ints(&fours[k]));
      std::memcpy(&sums[k], &totals, sizeof totals);
    }
    for (Starts& s : starts)
      for (size_t g = 0; g < s.of_group.size(); ++g) {
        const int64_t begin = int64_t(g) * s.group / 4, end = std::min(begin + s.group / 4, columns() / 4);
        int32_t first = 0, second = 0;
        for (int64_t k = begin; k < end; ++k) {
          first += sums[k].first;
          second += sums[k].second;
        }
        s.of_group[g] = {-s.offset * first, -s.offset * second};
      }
  }

  static void split(Ints codes, Four* to) {
#if defined(__AVX512VNNI__)
    const Ints high = (codes + 128) >> 8, low = codes - (high << 8);
    const __m128i first = _mm512_cvtepi32_epi8((__m512i)high), second = _mm512_cvtepi32_epi8((__m512i)low);
    _mm_storeu_si128((__m128i*)to, _mm_unpacklo_epi32(first, second));
    _mm_storeu_si128((__m128i*)to + 1, _mm_unpackhi_epi32(first, second));
#else
    const Ints low = codes & 0xffff, high = codes << 16;
    for (int k = 0; k < kLanes; k += 4) to[k / 4] = {low[k] | high[k + 2], low[k + 1] | high[k + 3]};
#endif
  }
};

// ---------------------------------------------------------------------------------------------------- products

// As in `compression/encodings/panels.py`.
enum Form : int64_t {
  kDense, kInt8, kInt4, kInt3, kGroupedInt4, kInt2, kOdd3, kOdd2,
  kGroupedInt3, kGroupedInt2, kGroupedOdd3, kGroupedOdd2, kForms
};

struct Coding { int bits; bool odd, grouped; };
constexpr Coding kCodings[kForms] = {
  {32, false, false}, {8, false, false}, {4, false, false}, {3, false, false}, {4, false, true}, {2, false, false},
  {3, true, false}, {2, true, false}, {3, false, true}, {2, false, true}, {3, true, true}, {2, true, true},
};

constexpr int chunk_of(int bits) { return bits == 3 ? 32 : bits == 2 ? 16 : kChunk; }  // columns

struct Product {
  Form form;
  int source, target;  // which operand it reads, and what it adds to
  int64_t columns;     // padded to kChunk
  int64_t group = 0;   // columns whose sum is kept in integers
  int starts = 0;      // of the operand

  Coding coding() const { return kCodings[form]; }
  int32_t offset() const { return coding().odd ? (1 << coding().bits) - 1 : 1 << (coding().bits - 1); }

  int64_t panel_bytes() const {
    if (form == kDense) return columns * kPanel * 4;
    const int chunk = chunk_of(coding().bits);
    const int64_t codes = ceil_div(columns, chunk) * chunk * kPanel * coding().bits / 8;
    return codes + (coding().grouped ? ceil_div(columns, group) * kPanel * 2 : 0) + kPanel * 4;
  }
};

using Panel = Floats[kVectors];

constexpr int kMostVectors = kVectorBytes == 64 ? 6 : 3;  // that are multiplied at once: their sums fill the registers

// What a few vectors add up to, each for all its gates.
using Sums = Panel[kGates];

template <int N>
inline void dense_product(const Product& p, const Operand* const* x, const uint8_t* at, Sums* result, int gate) {
  constexpr int sets = N == 1 ? 4 : N <= 3 ? 2 : 1;  // of sums: too few would wait for themselves
  Floats sums[N][sets][kVectors] = {};
  const float* values[N];
  for (int n = 0; n < N; ++n) values[n] = x[n]->values.data();
  for (int64_t column = 0; column < p.columns; column += sets)
    for (int s = 0; s < sets; ++s)
      for (int v = 0; v < kVectors; ++v, at += kVectorBytes) {
        const Floats weights = load_floats(at);
        for (int n = 0; n < N; ++n) sums[n][s][v] += values[n][column + s] * weights;
      }
  for (int n = 0; n < N; ++n)
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (sets == 4) sums[n][0][v] = (sums[n][0][v] + sums[n][1][v]) + (sums[n][2][v] + sums[n][3][v]);
      if constexpr (sets == 2) sums[n][0][v] += sums[n][1][v];
      result[n][gate][v] += sums[n][0][v];
    }
}

// Adds the products of one chunk and one vector of rows. Two sets of sums need not wait for each other.
template <int Bits, int N, int Sets>
inline void add_chunk(Sum (&sums)[N][Sets][kVectors], int v, const uint8_t* at, const Four* const (&x)[N], int64_t four) {
  const auto word = [&](int k) { return load_ints(at + (k * kVectors + v) * kVectorBytes); };
  const auto add_to = [&](int set, Ints weights, int k) {
    for (int n = 0; n < N; ++n) add(sums[n][set][v], weights, x[n][four + k]);
  };
  constexpr int even = 0, odd = Sets - 1;
  if constexpr (Bits == 8) {
    add_to(even, word(0), 0);
    add_to(odd, word(1), 1);
  } else if constexpr (Bits == 4) {
    add_to(even, word(0) & 0x0f0f0f0f, 0);
    add_to(odd, word(0) >> 4 & 0x0f0f0f0f, 1);
  } else if constexpr (Bits == 2) {
    for (int k = 0; k < 4; ++k) add_to(k % 2 ? odd : even, word(0) >> 2 * k & 0x03030303, k);
  } else {
    for (int k = 0; k < 3; ++k) {
      add_to(even, word(k) & 0x07070707, 2 * k);
      add_to(odd, word(k) >> 3 & 0x07070707, 2 * k + 1);
    }
    add_to(even, (word(0) >> 6 & 0x03030303) | (word(2) >> 4 & 0x04040404), 6);
    add_to(odd, (word(1) >> 6 & 0x03030303) | (word(2) >> 5 & 0x04040404), 7);
  }
}

template <int Bits, bool Grouped, int N>
inline void coded_product(const Product& p, const Operand* const* x, const uint8_t* at, Sums* result, int gate) {
  constexpr int chunk = chunk_of(Bits), bytes = chunk * kPanel * Bits / 8;
  constexpr int sets = Grouped || N > 1 ? 1 : 2;  // groups are short, and their sums do not wait for each other
  const int shift = p.coding().odd;               // odd codes are two apart
  const Four *fours[N], *starts[N];
  for (int n = 0; n < N; ++n) {
    fours[n] = x[n]->fours.data();
    starts[n] = x[n]->starts[p.starts].of_group.data();
  }
  Floats first[N][kVectors] = {}, second[N][kVectors] = {};
  int64_t four = 0;
  for (int64_t left = p.columns, number = 0; left > 0; left -= p.group, ++number) {
    Floats scales[kVectors];
    if (Grouped)
      for (int v = 0; v < kVectors; ++v, at += kVectorBytes / 2) scales[v] = load_halves(at);
    Sum sums[N][sets][kVectors] = {};
    for (int64_t column = 0; column < std::min(left, p.group); column += chunk, four += chunk / 4, at += bytes) {
      for (int v = 0; v < kVectors; ++v) add_chunk<Bits, N, sets>(sums, v, at, fours, four);
      for (int k = 0; k < bytes; k += 64) __builtin_prefetch(at + kAhead + k);
    }
    for (int n = 0; n < N; ++n)
      for (int v = 0; v < kVectors; ++v) {
        for (int s = 1; s < sets; ++s) {
          sums[n][0][v].first += sums[n][s][v].first;
          sums[n][0][v].second += sums[n][s][v].second;
        }
        const Floats a = __builtin_convertvector((sums[n][0][v].first << shift) + starts[n][number].first, Floats);
        const Floats b = __builtin_convertvector((sums[n][0][v].second << shift) + starts[n][number].second, Floats);
        first[n][v] += Grouped ? a * scales[v] : a;
        second[n][v] += Grouped ? b * scales[v] : b;
      }
  }
  for (int n = 0; n < N; ++n)
    for (int v = 0; v < kVectors; ++v)
      result[n][gate][v] += (kFirst * first[n][v] + second[n][v]) * (x[n]->step * load_floats(at + v * kVectorBytes));
}

// Adds the products of one panel and N vectors to a gate of `result`.
template <int N>
inline void multiply(const Product& p, const Operand* const* x, const uint8_t* at, Sums* result, int gate) {
  switch (p.form) {
    case kDense: return dense_product<N>(p, x, at, result, gate);
    case kInt8: return coded_product<8, false, N>(p, x, at, result, gate);
    case kInt4: return coded_product<4, false, N>(p, x, at, result, gate);
    case kInt3: case kOdd3: return coded_product<3, false, N>(p, x, at, result, gate);
    case kInt2: case kOdd2: return coded_product<2, false, N>(p, x, at, result, gate);
    case kGroupedInt3: case kGroupedOdd3: return coded_product<3, true, N>(p, x, at, result, gate);
    case kGroupedInt2: case kGroupedOdd2: return coded_product<2, true, N>(p, x, at, result, gate);
    default: return coded_product<4, true, N>(p, x, at, result, gate);
  }
}

}  // namespace
