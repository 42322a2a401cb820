// Counts gate values in one pass over memory: bins of a hundredth, and for each unit the sums that the numbers come of.
//
// The plain version in torch operations stands in counting.py; both give the same counts.

#include <cmath>

#include "../../nn/csrc/simd.h"

namespace {

using V = Vector<float>;
typedef uint32_t Bits __attribute__((vector_size(kVectorBytes)));
constexpr uint32_t kBitsOfOne = 0x3f800000;
constexpr int kLanes = Simd<float>::lanes;
constexpr int kBins = 100;
constexpr int kTables = 8;             // neighbours are often alike; each counts in a table of its own, so none waits
constexpr int kFactors = 4;            // rows of forget gates that are multiplied before a logarithm is taken
constexpr int kBlock = 32 * kFactors;  // rows that are added up in float32
constexpr float kNearest = 1e-6f;      // see GateHistogram.half_lives

// What one thread finds.
class Counter {
 public:
  Counter(int64_t units, bool is_memory)
      : sums(units), open(units), halvings(units), units_(units), is_memory_(is_memory),
        sum_(padded(units)), open_(padded(units)), product_(padded(units), 1.0f), log_(padded(units)), bins_(padded(units)) {}

  std::vector<double> sums, open, halvings;  // (H,): of values, how many were 0.5 or more, sums of -log2
  double upper = 0;                          // the sum of those that were 0.5 or more
  int64_t steps = 0;                         // rows that were counted
  bool is_outside = false;                   // whether a value was no gate's: below 0 or above 1
  uint32_t tables[kTables][kBins + 1] = {};

  void add(const float* values, Range rows) {
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const float* row = values + r * units_;
      if (!is_counted(row)) continue;
      add_row(row);
      if (++steps % kFactors == 0) take_logarithms();
      if (steps % kBlock == 0) flush();
    }
    take_logarithms();
    flush();
  }

 private:
  const int64_t units_;
  const bool is_memory_;
  std::vector<float> sum_, open_, product_, log_;  // over some rows
  std::vector<int32_t> bins_;                      // of one row
  V upper_{};

  static size_t padded(int64_t units) { return size_t(ceil_div(units, kLanes)) * kLanes; }
  int used(int64_t j) const { return int(std::min<int64_t>(kLanes, units_ - j)); }

  // Whether a row is to be counted. The bits of 0 to 1 are integers up to those of 1; all else is above.
  bool is_counted(const float* row) {
    Bits top{};
    for (int64_t j = 0; j < units_; j += kLanes) {
      const V v = load(row + j, used(j));
      Bits bits;
      std::memcpy(&bits, &v, sizeof bits);
      top = bits > top ? bits : top;
    }
    uint32_t highest = 0;
    for (int lane = 0; lane < kLanes; ++lane) highest = std::max(highest, top[lane]);
    if (highest <= kBitsOfOne) return true;
    if (!std::all_of(row, row + units_, [](float value) { return std::isfinite(value); })) return false;
    const bool is_gates = std::all_of(row, row + units_, [](float value) { return 0 <= value && value <= 1; });
    is_outside |= !is_gates;
    return is_gates;
  }

  void add_row(const float* row) {
    const V one = broadcast(1.0f);
    V upper = upper_;
    float *sum = sum_.data(), *open = open_.data(), *product = is_memory_ ? product_.data() : nullptr;
    int32_t* bins = bins_.data();
    for (int64_t j = 0; j < units_; j += kLanes) {
      V v = load(row + j, used(j));
      const auto codes = __builtin_convertvector(v * float(kBins), Simd<float>::Integer);
      std::memcpy(bins + j, &codes, sizeof codes);
      const V is_open = v >= 0.5f ? one : V{};
      upper += v * is_open;
      store(sum + j, load(sum + j) + v);
      store(open + j, load(open + j) + is_open);
      if (product) {
        v = v > kNearest ? v : broadcast(kNearest);
        v = v < 1 - kNearest ? v : broadcast(1 - kNearest);
        store(product + j, load(product + j) * v);
      }
    }
    upper_ = upper;
    int64_t k = 0;
    for (; k + kTables <= units_; k += kTables)
      for (int table = 0; table < kTables; ++table) ++tables[table][bins[k + table]];
    for (; k < units_; ++k) ++tables[0][bins[k]];
  }

  void take_logarithms() {
    if (!is_memory_) return;
    for (size_t j = 0; j < product_.size(); j += kLanes) {
      store(&log_[j], load(&log_[j]) - log(load(&product_[j])));
      store(&product_[j], broadcast(1.0f));
    }
  }

  void flush() {
    for (int64_t j = 0; j < units_; ++j) {
      sums[j] += double(sum_[j]);
      open[j] += double(open_[j]);
      halvings[j] += double(log_[j]) * 1.44269504088896340736;
      sum_[j] = open_[j] = log_[j] = 0;
    }
    for (int lane = 0; lane < kLanes; ++lane) upper += double(upper_[lane]);
    upper_ = V{};
  }
};

}  // namespace

// Adds to counts (100,), sums, open and halvings (H,), upper (1,) and steps (1,) what is in values (rows, H); rows that
// are not finite are left out. 0 when done, 1 when memory ran out, 2 where a value is no gate's.
EXPORT int g2lstm_count(const float* values, int64_t rows, int64_t units, int is_memory, int64_t* counts, double* sums,
                        double* open, double* halvings, double* upper, int64_t* steps, int threads) {
  bool is_outside = false;
  const int no_memory = within_memory([&] {
    threads = useful_threads(threads, rows * units);
    std::vector<Counter> counters(threads, Counter(units, is_memory));
    in_parallel(threads, [&](int thread, int count) { counters[thread].add(values, share(rows, thread, count)); });
    for (const Counter& each : counters) {
      for (const auto& table : each.tables)
        for (int bin = 0; bin <= kBins; ++bin) counts[std::min(bin, kBins - 1)] += table[bin];
      for (int64_t j = 0; j < units; ++j) {
        sums[j] += each.sums[j];
        open[j] += each.open[j];
        halvings[j] += each.halvings[j];
      }
      *upper += each.upper;
      *steps += each.steps;
      is_outside |= each.is_outside;
    }
  });
  return no_memory ? 1 : is_outside ? 2 : 0;
}
