// Rows of packed matrices that are computed together, for one or many vectors: the four gates of a layer, or a softmax.
//
// The threads share the rows, one panel at a time, and meet when all are done (and between the two factors of low-rank
// matrices). One thread alone computes each row, so the number of threads does not change the result. No step
// allocates memory.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "products.h"
#include "team.h"

namespace {

enum Status { kDone, kNoMemory, kWrongDescription, kNotNumbers };
enum Source { kInput, kHidden, kFactors };  // from kFactors on: the factors of the block's low-rank matrices, in order

// How Python describes a block; keep in step with `compression/kernel.py`.
struct ProductSpec { int64_t form, source, target, group; };  // target: the gate, or a factor's rows
struct BlockSpec {
  int64_t inputs, outputs, gates;            // gates: 4 for a layer, 1 for a softmax
  int64_t residual;                          // whether a layer's input is added to its output
  int64_t is_gru;                            // whether a layer is a GRU, with gates r, z, and n from x and from h
  int64_t factors, products;
  const ProductSpec* specs;                  // those of the factors, then the others
  const uint8_t* data;                       // the factors' panels, then those of the gates, each with its biases
  int64_t bytes;
};

constexpr int64_t kMostUnits = 1 << 24;
constexpr int64_t kBytesPerThread = 256 << 10;  // with less to read, a thread waits longer than it works
constexpr int kMostThreads = 64;

inline bool is_possible(const BlockSpec& spec) {
  const int64_t least = std::min(spec.inputs, spec.outputs), most = std::max(spec.inputs, spec.outputs);
  return least >= 1 && most <= kMostUnits && std::min({spec.bytes, spec.factors, spec.products}) >= 0 &&
         (spec.gates == kGates || spec.gates == 1) &&
         (!spec.residual || (spec.gates == kGates && spec.inputs == spec.outputs)) &&
         (!spec.is_gru || spec.gates == kGates);
}

// In huge pages where possible: the weights span more pages than the processor caches translations for.
struct Memory {
  static constexpr size_t page = 2 << 20;
  size_t align, bytes;
  uint8_t* data;
  explicit Memory(int64_t wanted)
      : align(size_t(wanted) < page ? 64 : page), bytes((size_t(wanted) + align - 1) / align * align),
        data(static_cast<uint8_t*>(::operator new(bytes, std::align_val_t(align)))) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (align == page) madvise(data, bytes, MADV_HUGEPAGE);
#endif
  }
  ~Memory() { ::operator delete(data, std::align_val_t(align)); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
};

// Vectors one after the other, `stride` apart; none if there is no data.
struct Vectors {
  const float* data;
  int64_t stride = 0;
  const float* operator[](int64_t number) const { return data + number * stride; }
};

class Block {
  struct Factor {  // the right factor of a low-rank matrix
    Product product;
    int64_t panels;
    const uint8_t* data;
    std::vector<float> result;
  };
  struct Own {     // one per thread
    std::vector<std::vector<Operand>> operands;  // of each vector
    int64_t step;  // the one whose input and h they hold
  };

  std::vector<Factor> factors_;
  std::vector<Product> products_;
  std::vector<Own> own_;
  const uint8_t* data_ = nullptr;
  int64_t panel_bytes_ = 0, factor_panels_ = 0;

 public:
  const int64_t inputs, outputs, gates, panels;
  const int threads;

  Block(const BlockSpec& spec, int wanted) : Block(spec, wanted, spec.bytes) {}
  Block(const BlockSpec& spec, int wanted, int64_t bytes)  // bytes: of all blocks that are computed with this one
      : inputs(spec.inputs), outputs(spec.outputs), gates(spec.gates), panels(ceil_div(outputs, kPanel)),
        threads(int(std::clamp<int64_t>(bytes / kBytesPerThread, 1, wanted))) {}

  int64_t filled() const { return panels * kPanel; }  // outputs, padded

  // Reads its weights from `at` on. False if the description contradicts itself or the number of bytes.
  bool build(const BlockSpec& spec, const uint8_t* at) {
    std::vector<Operand> operands;
    operands.emplace_back(inputs);
    operands.emplace_back(gates == kGates ? outputs : 0);
    const uint8_t* const end = at + spec.bytes;
    for (int64_t k = 0; k < spec.factors + spec.products; ++k) {
      const ProductSpec& s = spec.specs[k];
      const bool is_factor = k < spec.factors;
      const int64_t sources = is_factor ? int64_t(kFactors) : int64_t(operands.size());
      if (s.form < 0 || s.form >= kForms || s.source < 0 || s.source >= sources) return false;
      if (s.target < (is_factor ? 1 : 0) || s.target >= (is_factor ? kMostUnits : gates)) return false;
      Operand& operand = operands[s.source];
      if (operand.count == 0) return false;  // a softmax has no h of its own
      Product p{Form(s.form), int(s.source), int(s.target), operand.columns()};
      p.group = p.coding().grouped ? s.group : kLongest;
      if (p.group <= 0 || p.group % chunk_of(p.coding().bits) || p.group > std::max(kLongest, kLongestGroup)) return false;
      if (p.form != kDense) p.starts = operand.starts_of(p.group, p.offset());
      if (is_factor) {
        const int64_t count = ceil_div(s.target, kPanel), bytes = count * p.panel_bytes();
        if (end - at < bytes) return false;
        factors_.push_back({p, count, at, std::vector<float>(count * kPanel)});
        factor_panels_ += count;
        at += bytes;
        operands.emplace_back(s.target);
      } else {
        products_.push_back(p);
        panel_bytes_ += p.panel_bytes();
      }
    }
    data_ = at;
    panel_bytes_ += gates * kPanel * int64_t(sizeof(float));
    own_.assign(threads, {{operands}, -1});
    return end - at == panels * panel_bytes_;
  }

  // Makes room for so many vectors.
  void reserve(int64_t count) {
    for (Own& own : own_)
      if (int64_t(own.operands.size()) < count) own.operands.resize(count, own.operands.front());
    for (Factor& f : factors_)
      if (int64_t(f.result.size()) < count * f.panels * kPanel) f.result.resize(count * f.panels * kPanel);
  }

  // Calls finish(sums, vector, row) in some thread for each vector and panel, with the panel's first row; `together` runs
  // work on many threads. Each step has a number of its own. Many: whether there may be more than one vector.
  template <bool Many = false, class Together, class Finish>
  void compute(int64_t count, Vectors x, Vectors h, int64_t step, Items& items, const Together& together,
               const Finish& finish) {
    const auto prepared = [&](int thread) -> Own& {
      Own& own = own_[thread];
      if (own.step != step)
        for (int64_t k = 0; k < count; ++k) {
          if (x.data) own.operands[k][kInput].set(x[k]);
          if (h.data) own.operands[k][kHidden].set(h[k]);
        }
      own.step = step;
      return own;
    };
    if (factor_panels_) {
      items.deal(factor_panels_, threads);
      together(threads, [&](int thread) {
        for (int64_t item; (item = items.claim(thread)) >= 0;) multiply_factor<Many>(item, count, prepared(thread));
      });
    }
    items.deal(panels, threads);
    together(threads, [&](int thread) {
      int64_t item = items.claim(thread);
      if (item < 0) return;
      Own& own = prepared(thread);
      for (size_t f = 0; f < factors_.size(); ++f)
        for (int64_t k = 0; k < count; ++k) own.operands[k][kFactors + f].set(&factors_[f].result[k * factors_[f].panels * kPanel]);
      for (; item >= 0; item = items.claim(thread))
        each_few<Many>(count, [&](auto few, int64_t first) { multiply_panel<few.value>(own, item, first, finish); });
    });
  }

 private:
  template <int N> using Few = std::integral_constant<int, N>;

  // Calls body(Few<n>, first) for vectors first to first + n, of which there are `count` in all.
  template <bool Many, class Body> static void each_few(int64_t count, const Body& body) {
    if constexpr (!Many) return body(Few<1>(), 0);
    const int64_t times = ceil_div(count, kMostVectors);
    for (int64_t k = 0; k < times; ++k) {
      const int64_t first = count * k / times;
      switch (count * (k + 1) / times - first) {
        case 1: body(Few<1>(), first); break;
        case 2: body(Few<2>(), first); break;
        case 3: body(Few<3>(), first); break;
        case 4: body(Few<std::min(4, kMostVectors)>(), first); break;
        case 5: body(Few<std::min(5, kMostVectors)>(), first); break;
        default: body(Few<kMostVectors>(), first);
      }
    }
  }

  template <int N> static void find(const Own& own, int64_t first, int source, const Operand* (&to)[N]) {
    for (int n = 0; n < N; ++n) to[n] = &own.operands[first + n][source];
  }

  template <int N, class Finish> void multiply_panel(const Own& own, int64_t item, int64_t first, const Finish& finish) {
    const uint8_t* at = data_ + item * panel_bytes_;
    Sums sums[N] = {};
    const Operand* x[N];
    for (const Product& product : products_) {
      find<N>(own, first, product.source, x);
      multiply<N>(product, x, at, sums, product.target);
      at += product.panel_bytes();
    }
    for (int n = 0; n < N; ++n) {
      const uint8_t* bias = at;
      for (int gate = 0; gate < gates; ++gate)
        for (int v = 0; v < kVectors; ++v, bias += kVectorBytes) sums[n][gate][v] += load_floats(bias);
      finish(sums[n], first + n, item * kPanel);
    }
  }

  template <bool Many> void multiply_factor(int64_t item, int64_t count, const Own& own) {  // item: a panel of one of them
    for (Factor& f : factors_) {
      if (item < f.panels)
        return each_few<Many>(count, [&](auto few, int64_t first) {
          constexpr int N = few.value;
          Sums sums[N] = {};
          const Operand* x[N];
          find<N>(own, first, f.product.source, x);
          multiply<N>(f.product, x, f.data + item * f.product.panel_bytes(), sums, 0);
          for (int n = 0; n < N; ++n)
            std::memcpy(&f.result[((first + n) * f.panels + item) * kPanel], &sums[n][0], sizeof sums[n][0]);
        });
      item -= f.panels;
    }
  }
};

// ---------------------------------------------------------------------------------------------------- what follows them

// The new c and h of a vector of units of an LSTM. hard: how many kinds of gates are 1[a >= 0]: none, i and f, or o too.
inline Floats open_gate(Floats a, bool is_hard) {  // keeps a NaN
  const Floats zero{}, one = broadcast<float>(1);
  return is_hard ? (a >= 0.0f ? one : (a < 0.0f ? zero : a)) : sigmoid<float>(a);
}
inline void lstm_cell(const Sums& sums, int v, int hard, float* c, float* h) {
  const Floats i = open_gate(sums[0][v], hard >= 1), f = open_gate(sums[1][v], hard >= 1);
  const Floats o = open_gate(sums[3][v], hard >= 2);
  const Floats cell = f * load(c) + i * tanh<float>(sums[2][v]);
  store(c, cell);
  store(h, o * tanh<float>(cell));
}

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// The logarithm of the sum of exponentials of `filled` logits, of which there are whole vectors; NaN if one of them is.
inline double log_total(const float* logits, int64_t filled) {
  constexpr int64_t stretch = 64 * kLanes;  // summed in float32; the stretches in float64
  Floats most = broadcast(kNothing);
  for (int64_t k = 0; k < filled; k += kLanes) {
    const Floats v = load(logits + k);
    most = v > most ? v : most;
  }
  float top = kNothing;
  for (int lane = 0; lane < kLanes; ++lane) top = std::max(top, most[lane]);
  double total = 0;
  for (int64_t begin = 0; begin < filled; begin += stretch) {
    Floats sum{};
    for (int64_t k = begin; k < std::min(begin + stretch, filled); k += kLanes) sum += exp<float>(load(logits + k) - top);
    for (int lane = 0; lane < kLanes; ++lane) total += sum[lane];
  }
  return double(top) + std::log(total);
}

}  // namespace
