// A stack of LSTM or GRU layers that reads one sequence step by step, for the CPU: packed weights, states and threads.
//
// A session owns a copy of its weights, in reading order. A panel of pre-activations goes from the registers through the
// gates straight to c and h. There may be a softmax on top; without layers below, it is a linear map instead.

#include <memory>
#include <optional>

#include "block.h"

namespace {

struct Layer {
  Block block;
  const bool is_gru;
  std::vector<float> h[2], c;  // read from one and written to the other, alternately; a GRU leaves c alone
  std::vector<float> sum;      // h + x, if the layer is residual

  Layer(const BlockSpec& spec, int wanted)
      : block(spec, wanted), is_gru(spec.is_gru), c(block.filled()), sum(spec.residual ? block.outputs : 0) {
    h[0].resize(block.filled());
    h[1].resize(block.filled());
  }

  // One step; returns the output (outputs).
  template <class Together>
  const float* advance(const float* x, int64_t step, int hard, Items& items, const Together& together) {
    float* const h_next = h[~step & 1].data();
    const float* const h_last = h[step & 1].data();
    block.compute(1, {x}, {h_last}, step, items, together, [&](const Sums& sums, int64_t, int64_t row) {
      for (int v = 0; v < kVectors; ++v) finish(sums, v, row + v * kLanes, h_last, h_next, hard);
    });
    if (sum.empty()) return h_next;
    for (size_t unit = 0; unit < sum.size(); ++unit) sum[unit] = h_next[unit] + x[unit];
    return sum.data();
  }

  void finish(const Sums& sums, int v, int64_t unit, const float* h_last, float* h_next, int hard) {
    if (!is_gru) return lstm_cell(sums, v, hard, &c[unit], h_next + unit);
    const Floats r = open_gate(sums[0][v], hard >= 1), z = open_gate(sums[1][v], hard >= 1);
    const Floats n = tanh<float>(sums[2][v] + r * sums[3][v]);
    store(h_next + unit, n + z * (load(h_last + unit) - n));
  }
};

struct Softmax {
  std::vector<Block> blocks;  // of rows one after the other, each with as many bits as its codes need
  std::vector<float> logits;
  int64_t outputs = 0;

  void add(const BlockSpec& spec, int wanted, int64_t bytes) {
    blocks.emplace_back(spec, wanted, bytes);
    logits.resize(outputs + blocks.back().filled());
    outputs += spec.outputs;
  }

  // Writes the log probabilities, or the logits themselves, to `to` (outputs).
  template <class Together>
  void compute(const float* x, int64_t step, float* to, bool is_linear, Items& items, const Together& together) {
    float* at = logits.data();
    for (Block& block : blocks) {
      block.compute(1, {x}, {nullptr}, step, items, together, [&](const Sums& sums, int64_t, int64_t row) {
        std::memcpy(at + row, &sums[0], sizeof sums[0]);
      });
      at += block.outputs;
    }
    if (is_linear) std::memcpy(to, logits.data(), outputs * sizeof(float));
    if (is_linear) return;
    std::fill(logits.begin() + outputs, logits.end(), kNothing);
    const float whole = float(log_total(logits.data(), int64_t(logits.size())));
    for (int64_t k = 0; k < outputs; ++k) to[k] = logits[k] - whole;
  }
};

struct Session {
  Memory memory;
  std::vector<Layer> layers;
  std::optional<Softmax> softmax;
  int hard;
  Items items;
  int64_t step = 0;

  Session(const BlockSpec* specs, int64_t count, int64_t bytes, int hard, int wanted)
      : memory(bytes), hard(hard), items(wanted) {
    int64_t at_top = 0;
    for (int64_t k = 0; k < count; ++k)
      if (specs[k].gates == kGates) layers.emplace_back(specs[k], wanted);
      else at_top += specs[k].bytes;
    if (int64_t(layers.size()) < count) softmax.emplace();
    for (int64_t k = int64_t(layers.size()); k < count; ++k) softmax->add(specs[k], wanted, at_top);
  }

  template <class Visit> void each_block(const Visit& visit) {
    for (Layer& layer : layers) visit(layer.block);
    if (softmax)
      for (Block& block : softmax->blocks) visit(block);
  }

  bool build(const BlockSpec* spec) {
    uint8_t* at = memory.data;
    int64_t width = spec->inputs;
    bool fits = true;
    each_block([&](Block& block) {
      std::memcpy(at, spec->data, spec->bytes);
      fits = fits && block.inputs == width && block.build(*spec, at);
      if (block.gates == kGates) width = block.outputs;
      at += spec++->bytes;
    });
    return fits;
  }

  int threads() {
    int most = 1;
    each_block([&](Block& block) { most = std::max(most, block.threads); });
    return most;
  }

  void run(const float* x, int64_t steps, float* out) {
    FlushDenormals flush;
    Team& team = Team::of_process();
    const int most = threads();
    const bool shared = most > 1 && team.take(most);
    const auto together = [&](int count, const auto& work) {
      shared && count > 1 ? team.together(count, work) : work(0);
    };
    const bool is_linear = layers.empty();
    const int64_t inputs = is_linear ? softmax->blocks.front().inputs : layers.front().block.inputs;
    const int64_t width = softmax ? softmax->outputs : layers.back().block.outputs;
    for (int64_t s = 0; s < steps; ++s, ++step, x += inputs, out += width) {
      const float* input = x;
      for (Layer& layer : layers) input = layer.advance(input, step, hard, items, together);
      if (softmax) softmax->compute(input, step, out, is_linear, items, together);
      else std::memcpy(out, input, width * sizeof(float));
    }
    if (shared) team.leave();
  }

  template <class Copy> void each_state(const Copy& copy) {  // h and c of the first layer, of the second ...
    for (Layer& layer : layers) {
      copy(layer.h[step & 1], layer.block.outputs);
      copy(layer.c, layer.block.outputs);
    }
  }
};

}  // namespace

// The number of rows in a panel, which Python needs to pack the weights.
EXPORT int g2lstm_stack_panel() { return kPanel; }

// specs: of the layers, then of the parts of the softmax, of which all but the last have whole panels of rows; there may be
// none of either. hard: 0 for no gate, 1 for the input and forget gates, 2 for the output gate too. wanted: the most
// threads to use.
EXPORT int g2lstm_stack_create(const BlockSpec* specs, int64_t count, int hard, int wanted, Session** result) {
  int64_t bytes = 0;
  if (count < 1) return kWrongDescription;
  for (int64_t k = 0; k < count; ++k) {
    const bool is_last = k == count - 1, is_on_top = is_last || specs[k + 1].gates == 1;
    if (!is_possible(specs[k]) || (specs[k].gates == 1 && !is_on_top)) return kWrongDescription;
    if (specs[k].gates == 1 && !is_last && specs[k].outputs % kPanel) return kWrongDescription;
    bytes += specs[k].bytes;
  }
  bool fits = false;
  const int failed = within_memory([&] {
    auto session = std::make_unique<Session>(specs, count, bytes, hard, std::clamp(wanted, 1, kMostThreads));
    fits = session->build(specs);
    if (fits) *result = session.release();
  });
  return failed ? kNoMemory : fits ? kDone : kWrongDescription;
}

EXPORT void g2lstm_stack_destroy(Session* session) { delete session; }

EXPORT int g2lstm_stack_threads(Session* session) { return session->threads(); }

// x: (steps, inputs); out: (steps, outputs of the last layer or of the softmax). One call at a time.
EXPORT void g2lstm_stack_run(Session* session, const float* x, int64_t steps, float* out) {
  session->run(x, steps, out);
}

EXPORT void g2lstm_stack_get(Session* session, float* to) {
  session->each_state([&](const std::vector<float>& state, int64_t count) {
    std::memcpy(to, state.data(), count * sizeof(float));
    to += count;
  });
}

EXPORT void g2lstm_stack_set(Session* session, const float* from) {
  session->each_state([&](std::vector<float>& state, int64_t count) {
    std::memcpy(state.data(), from, count * sizeof(float));
    from += count;
  });
}
