// Rows of packed matrices that are computed together: the four gates of a layer, or a softmax.
//
// The threads share the rows, one panel at a time, and meet when all are done (and between the two factors of low-rank
// matrices). One thread alone computes each row, so the number of threads does not change the result. No step
// allocates memory.
#pragma once

#include "products.h"
#include "team.h"

namespace {

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

class Block {
  struct Factor {  // the right factor of a low-rank matrix
    Product product;
    int64_t panels;
    const uint8_t* data;
    std::vector<float> result;
  };
  struct Own {     // one per thread
    std::vector<Operand> operands;
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
    own_.assign(threads, {operands, -1});
    return end - at == panels * panel_bytes_;
  }

  // Calls finish(sums, row) in some thread for each panel, with its first row; `together` runs work on many threads.
  template <class Together, class Finish>
  void compute(const float* x, const float* h, int64_t step, Items& items, const Together& together,
               const Finish& finish) {
    const auto prepared = [&](int thread) -> std::vector<Operand>& {
      Own& own = own_[thread];
      if (own.step != step) {
        own.operands[kInput].set(x);
        if (h) own.operands[kHidden].set(h);
        own.step = step;
      }
      return own.operands;
    };
    if (factor_panels_) {
      items.deal(factor_panels_, threads);
      together(threads, [&](int thread) {
        for (int64_t item; (item = items.claim(thread)) >= 0;) multiply_factor(item, prepared(thread));
      });
    }
    items.deal(panels, threads);
    together(threads, [&](int thread) {
      int64_t item = items.claim(thread);
      if (item < 0) return;
      std::vector<Operand>& operands = prepared(thread);
      for (size_t k = 0; k < factors_.size(); ++k) operands[kFactors + k].set(factors_[k].result.data());
      for (; item >= 0; item = items.claim(thread)) {
        const uint8_t* at = data_ + item * panel_bytes_;
        Panel sums[kGates] = {};
        for (const Product& product : products_) {
          multiply(product, operands[product.source], at, sums[product.target]);
          at += product.panel_bytes();
        }
        for (int gate = 0; gate < gates; ++gate)
          for (int v = 0; v < kVectors; ++v, at += kVectorBytes) sums[gate][v] += load_floats(at);
        finish(sums, item * kPanel);
      }
    });
  }

 private:
  void multiply_factor(int64_t item, const std::vector<Operand>& operands) {  // item: a panel of one of the factors
    for (Factor& f : factors_) {
      if (item < f.panels) {
        Panel sum = {};
        multiply(f.product, operands[f.product.source], f.data + item * f.product.panel_bytes(), sum);
        std::memcpy(&f.result[item * kPanel], &sum, sizeof sum);
        return;
      }
      item -= f.panels;
    }
  }
};

}  // namespace
