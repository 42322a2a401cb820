// A translation model on packed weights, for the CPU: encoder, attention, decoder, softmax and beam search in one call.
//
// Sentences are translated side by side. Every weight is read once per step for all their hypotheses, and in the encoder
// the weights of the input once per layer for all tokens. `tasks/mt/model.py` describes the model.

#include <functional>
#include <memory>

#include "search.h"

namespace {

// How Python describes a model; keep in step with `runtime/session.py`. The blocks: for both directions of the encoder's
// first layer and for its other layers one of the input and one of h; the attention's key; the bridge; the layers of the
// decoder; the output; the parts of the softmax.
struct ModelSpec {
  int64_t above, decoder, softmax;  // how many
  int64_t residual, hard, threads;  // hard: 0 for no gate, 1 for the input and forget gates, 2 for the output gate too
  const float* target;              // (vocabulary, embedding), which the caller keeps
  int64_t vocabulary, embedding;
};

using Buffer2 = std::vector<float>;

class Translation {
  const ModelSpec spec_;
  Memory memory_;
  std::vector<Block> blocks_;
  Items items_;
  int64_t number_ = 0;  // of the last computation
  int most_threads_ = 1;
  int64_t hidden_ = 0, filled_ = 0, context_ = 0;  // H; H and C, the width of the encoder's output, in whole vectors

  // The sources, one after the other.
  int64_t count_ = 0;
  std::vector<int64_t> lengths_, begins_;
  Buffer2 values_, keys_;  // (tokens, context_), (tokens, filled_)

  // The hypotheses of all sentences that are not done.
  std::vector<int64_t> sentence_;                // of each
  std::vector<Buffer2> h_, c_, h_next_, c_next_; // of each layer, (hypotheses, filled_)
  Buffer2 x_, features_, logits_, attention_;
  std::vector<Prediction> predictions_;
  std::vector<uint8_t> missing_;  // bytes of the last character

 public:
  std::vector<Search> searches;

  Translation(const BlockSpec* specs, const ModelSpec& spec, int64_t blocks, int64_t bytes)
      : spec_(spec), memory_(bytes), items_(int(spec.threads)) {
    int64_t top = 0;
    for (int64_t k = blocks - spec.softmax; k < blocks; ++k) top += specs[k].bytes;
    blocks_.reserve(blocks);
    for (int64_t k = 0; k < blocks; ++k) {
      const bool is_top = k >= blocks - spec.softmax;
      blocks_.emplace_back(specs[k], int(spec.threads), is_top ? top : specs[k].bytes);
      most_threads_ = std::max(most_threads_, blocks_.back().threads);
    }
  }

  bool build(const BlockSpec* specs) {
    uint8_t* at = memory_.data;
    for (Block& block : blocks_) {
      std::memcpy(at, specs->data, specs->bytes);
      if (!block.build(*specs, at)) return false;
      at += specs++->bytes;
    }
    hidden_ = blocks_[1].outputs;
    filled_ = blocks_[1].filled();
    context_ = in_vectors(context());
    return fits();
  }

  int threads() const { return most_threads_; }

  // Translates sentences, the longest first, from their embedded tokens x (tokens, embedding), with the end each.
  // longest: of their translations. False if the model computes something that is no number.
  bool run(const float* x, const int64_t* lengths, const int64_t* longest, int64_t count, const SearchSpec& how) {
    FlushDenormals flush;
    Team& team = Team::of_process();
    const bool shared = most_threads_ > 1 && team.take(most_threads_);
    struct Leave {
      Team* team;
      ~Leave() { if (team) team->leave(); }
    } leave{shared ? &team : nullptr};
    const auto together = [&](int threads, const auto& work) {
      shared && threads > 1 ? team.together(threads, work) : work(0);
    };
    count_ = count;
    lengths_.assign(lengths, lengths + count);
    begins_.assign(1, 0);
    for (int64_t length : lengths_) begins_.push_back(begins_.back() + length);
    encode(x, together);
    start(together);
    searches.clear();
    for (int64_t k = 0; k < count; ++k) searches.emplace_back(how, longest[k], lengths[k]);
    while (!sentence_.empty()) {
      if (!decode(how, together)) return false;
      choose();
    }
    return true;
  }

 private:
  int64_t context() const { return blocks_[key()].inputs; }
  int64_t key() const { return 4 + 2 * spec_.above; }
  Block& decoder(int64_t layer) { return blocks_[key() + 2 + layer]; }
  Block& output() { return blocks_[key() + 2 + spec_.decoder]; }
  Block& softmax(int64_t part) { return blocks_[key() + 3 + spec_.decoder + part]; }
  static int64_t in_vectors(int64_t width) { return ceil_div(width, kLanes) * kLanes; }

  bool fits() {
    const auto is = [](const Block& block, int64_t inputs, int64_t outputs, int64_t gates) {
      return block.inputs == inputs && block.outputs == outputs && block.gates == gates;
    };
    const int64_t H = hidden_, E = spec_.embedding, C = spec_.above ? H : 2 * H;
    bool all = true;
    for (int64_t k = 0; k < key(); k += 2) {
      all = all && is(blocks_[k], k < 4 ? E : k == 4 ? 2 * H : H, H, kGates) && is(blocks_[k + 1], H, H, kGates);
    }
    all = all && is(blocks_[key()], C, H, 1) && is(blocks_[key() + 1], C, spec_.decoder * H, 1);
    for (int64_t k = 0; k < spec_.decoder; ++k) all = all && is(decoder(k), k ? H + C : E, H, kGates);
    all = all && is(output(), H + C, E, 1);
    int64_t words = 0;
    for (int64_t k = 0; k < spec_.softmax; ++k) {
      all = all && is(softmax(k), E, softmax(k).outputs, 1) && words % kPanel == 0;
      words += softmax(k).outputs;
    }
    return all && words == spec_.vocabulary;
  }

  // A linear map of many vectors; each row of `to` has whole panels.
  template <class Together> void map(Block& block, int64_t count, Vectors x, float* to, int64_t stride, const Together& together) {
    block.reserve(count);
    block.compute<true>(count, x, {nullptr}, ++number_, items_, together, [&](const Sums& sums, int64_t n, int64_t row) {
      std::memcpy(to + n * stride + row, &sums[0], sizeof sums[0]);
    });
  }

  // Tokens x to h of each token, written to `out`; number: of the pair of blocks.
  template <class Together>
  void recur(int64_t number, Vectors x, float* out, int64_t stride, bool is_backward, const Together& together) {
    Block &input = blocks_[number], &hidden = blocks_[number + 1];
    const int64_t tokens = begins_.back(), width = kGates * filled_;
    Buffer2 before(tokens * width), h(count_ * filled_), next(count_ * filled_), c(count_ * filled_);
    input.reserve(tokens);
    input.compute<true>(tokens, x, {nullptr}, ++number_, items_, together, [&](const Sums& sums, int64_t n, int64_t row) {
      for (int gate = 0; gate < kGates; ++gate)
        std::memcpy(&before[n * width + gate * filled_ + row], &sums[gate], sizeof sums[gate]);
    });
    hidden.reserve(count_);
    for (int64_t t = 0, alive = count_; t < lengths_.front(); ++t) {
      while (lengths_[alive - 1] <= t) --alive;
      const auto place = [&](int64_t n) { return begins_[n] + (is_backward ? lengths_[n] - 1 - t : t); };
      const auto finish = [&](const Sums& from_h, int64_t n, int64_t row) {
        Sums sums;
        for (int gate = 0; gate < kGates; ++gate)
          for (int v = 0; v < kVectors; ++v)
            sums[gate][v] = from_h[gate][v] + load(&before[place(n) * width + gate * filled_ + row + v * kLanes]);
        for (int v = 0; v < kVectors; ++v) {
          const int64_t unit = n * filled_ + row + v * kLanes;
          lstm_cell(sums, v, int(spec_.hard), &c[unit], &next[unit]);
        }
      };
      hidden.compute<true>(alive, {nullptr}, {h.data(), filled_}, ++number_, items_, together, finish);
      h.swap(next);
      for (int64_t n = 0; n < alive; ++n) std::copy_n(&h[n * filled_], hidden_, out + place(n) * stride);
    }
  }

  template <class Together> void encode(const float* x, const Together& together) {
    const int64_t tokens = begins_.back(), both = in_vectors(2 * hidden_);
    values_.assign(tokens * both, 0);
    recur(0, {x, spec_.embedding}, values_.data(), both, false, together);
    recur(2, {x, spec_.embedding}, values_.data() + hidden_, both, true, together);
    int64_t stride = both;
    for (int64_t layer = 0; layer < spec_.above; ++layer, stride = context_) {
      Buffer2 out(tokens * context_);
      recur(4 + 2 * layer, {values_.data(), stride}, out.data(), context_, false, together);
      if (spec_.residual && layer)
        for (size_t k = 0; k < out.size(); ++k) out[k] += values_[k];
      values_.swap(out);
    }
    keys_.resize(tokens * filled_);
    map(blocks_[key()], tokens, {values_.data(), context_}, keys_.data(), filled_, together);
  }

  // One hypothesis per sentence: h from the mean of the encoder's output, c zero.
  template <class Together> void start(const Together& together) {
    Buffer2 means(count_ * context_);
    for (int64_t n = 0; n < count_; ++n) {
      for (int64_t t = begins_[n]; t < begins_[n + 1]; ++t)
        for (int64_t k = 0; k < context_; ++k) means[n * context_ + k] += values_[t * context_ + k];
      for (int64_t k = 0; k < context_; ++k) means[n * context_ + k] /= float(lengths_[n]);
    }
    Block& bridge = blocks_[key() + 1];
    Buffer2 made(count_ * bridge.filled());
    map(bridge, count_, {means.data(), context_}, made.data(), bridge.filled(), together);
    tanh_of(made);
    for (auto* states : {&h_, &c_, &h_next_, &c_next_}) states->assign(spec_.decoder, Buffer2(count_ * filled_));
    for (int64_t layer = 0; layer < spec_.decoder; ++layer)
      for (int64_t n = 0; n < count_; ++n)
        std::copy_n(&made[n * bridge.filled() + layer * hidden_], hidden_, &h_[layer][n * filled_]);
    sentence_.resize(count_);
    for (int64_t n = 0; n < count_; ++n) sentence_[n] = n;
  }

  static void tanh_of(Buffer2& values) {  // in whole vectors
    for (size_t k = 0; k < values.size(); k += kLanes) store(&values[k], tanh<float>(load(&values[k])));
  }

  // One step of all hypotheses; false if its predictions are not numbers.
  template <class Together> bool decode(const SearchSpec& how, const Together& together) {
    const int64_t rows = int64_t(sentence_.size()), C = context(), wide = hidden_ + C, longest = in_vectors(lengths_.front());
    Buffer2 embedded(rows * spec_.embedding);
    missing_.resize(rows);
    for (int64_t row = 0, n = -1, k = 0; row < rows; ++row, ++k) {
      if (sentence_[row] != n) k = 0;
      n = sentence_[row];
      missing_[row] = searches[n].missing[k];
      std::copy_n(spec_.target + searches[n].tokens[k] * spec_.embedding, spec_.embedding, &embedded[row * spec_.embedding]);
    }
    x_.resize(rows * wide);  // the layer below, and the context
    attention_.resize(rows * longest);
    for (int64_t layer = 0; layer < spec_.decoder; ++layer) {
      Block& block = decoder(layer);
      block.reserve(rows);
      h_next_[layer].resize(rows * filled_);
      c_next_[layer] = c_[layer];
      float *const h = h_next_[layer].data(), *const c = c_next_[layer].data();
      const Vectors x = layer ? Vectors{x_.data(), wide} : Vectors{embedded.data(), spec_.embedding};
      block.compute<true>(rows, x, {h_[layer].data(), filled_}, ++number_, items_, together,
                          [&](const Sums& sums, int64_t n, int64_t row) {
        for (int v = 0; v < kVectors; ++v) {
          const int64_t unit = n * filled_ + row + v * kLanes;
          lstm_cell(sums, v, int(spec_.hard), c + unit, h + unit);
        }
      });
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t k = 0; k < hidden_; ++k)
          x_[row * wide + k] = h[row * filled_ + k] + (spec_.residual && layer ? x_[row * wide + k] : 0);
      if (layer == 0)
        each_row(rows, together, [&](int64_t row) { attend(row, h + row * filled_, &attention_[row * longest], &x_[row * wide + hidden_]); });
    }
    const int64_t width = output().filled();
    features_.resize(rows * width);
    map(output(), rows, {x_.data(), wide}, features_.data(), width, together);
    tanh_of(features_);
    return predict(rows, width, how, together);
  }

  template <class Together, class Body> void each_row(int64_t rows, const Together& together, const Body& body) {
    const int threads = rows * hidden_ > 512 ? most_threads_ : 1;
    items_.deal(rows, threads);
    together(threads, [&](int thread) {
      for (int64_t row; (row = items_.claim(thread)) >= 0;) body(row);
    });
  }

  // Bilinear attention, scaled: the weights of the tokens, which sum to 1, and the weighted mean of the encoder's output.
  void attend(int64_t row, const float* query, float* weights, float* context_out) const {
    const int64_t begin = begins_[sentence_[row]], size = lengths_[sentence_[row]], filled = in_vectors(size), C = context();
    const float scale = 1.0f / std::sqrt(float(hidden_));
    for (int64_t t = 0; t < size; ++t) {
      Floats sum{};
      for (int64_t k = 0; k < filled_; k += kLanes) sum += load(query + k) * load(&keys_[(begin + t) * filled_ + k]);
      float total = 0;
      for (int lane = 0; lane < kLanes; ++lane) total += sum[lane];
      weights[t] = total * scale;
    }
    std::fill(weights + size, weights + filled, kNothing);
    const float whole = float(log_total(weights, filled));
    for (int64_t t = 0; t < filled; t += kLanes) store(weights + t, exp<float>(load(weights + t) - whole));
    for (int64_t k = 0; k < context_; k += kLanes) {
      Floats sum{};
      for (int64_t t = 0; t < size; ++t) sum += weights[t] * load(&values_[(begin + t) * context_ + k]);
      store(context_out + k, sum, int(std::min<int64_t>(kLanes, C - k)));
    }
  }

  template <class Together> bool predict(int64_t rows, int64_t width, const SearchSpec& how, const Together& together) {
    const int64_t filled = ceil_div(spec_.vocabulary, kPanel) * kPanel;
    logits_.resize(rows * filled);
    predictions_.resize(rows);
    float* at = logits_.data();
    for (int64_t part = 0; part < spec_.softmax; ++part) {
      map(softmax(part), rows, {features_.data(), width}, at, filled, together);
      at += softmax(part).outputs;
    }
    each_row(rows, together, [&](int64_t row) {
      float* const logits = &logits_[row * filled];
      Prediction& made = predictions_[row];
      std::fill(logits + spec_.vocabulary, logits + filled, kNothing);
      made.whole = log_total(logits, filled);
      if (how.after) {
        const uint8_t room = uint8_t(std::min<int64_t>(searches[sentence_[row]].room(), 3));
        const uint8_t* const after = how.after + missing_[row] * spec_.vocabulary;  // 255 where it would be broken
        for (int64_t token = 0; token < spec_.vocabulary; ++token)
          logits[token] = after[token] > room ? kNothing : logits[token];
      }
      made.end = logits[how.end];
      for (int64_t k = 0; k < how.not_words; ++k) logits[how.not_word[k]] = kNothing;
      find_best(logits, filled, size_t(how.beam), made.offers);
    });
    return std::none_of(predictions_.begin(), predictions_.end(), [](const Prediction& one) { return std::isnan(one.whole); });
  }

  // Lets each sentence choose its next hypotheses, and moves their states to their places.
  void choose() {
    const int64_t rows = int64_t(sentence_.size()), longest = in_vectors(lengths_.front());
    std::vector<int64_t> parents, sentences;
    for (int64_t row = 0; row < rows;) {
      const int64_t n = sentence_[row], first = row;
      while (row < rows && sentence_[row] == n) ++row;
      searches[n].advance(&predictions_[first], {&attention_[first * longest], longest});
      for (int32_t parent : searches[n].parents) {
        parents.push_back(first + parent);
        sentences.push_back(n);
      }
    }
    sentence_.swap(sentences);
    for (int64_t layer = 0; layer < spec_.decoder; ++layer)
      for (auto [from, to] : {std::pair(&h_next_[layer], &h_[layer]), std::pair(&c_next_[layer], &c_[layer])}) {
        to->resize(parents.size() * filled_);
        for (size_t k = 0; k < parents.size(); ++k)
          std::copy_n(from->data() + parents[k] * filled_, filled_, to->data() + k * filled_);
      }
  }
};

}  // namespace

EXPORT int g2lstm_translation_create(const BlockSpec* specs, const ModelSpec* model, Translation** result) {
  ModelSpec own = *model;
  if (std::min({own.above, own.decoder - 1, own.softmax - 1}) < 0) return kWrongDescription;
  own.threads = std::clamp<int64_t>(own.threads, 1, kMostThreads);
  const int64_t count = 4 + 2 * own.above + 2 + own.decoder + 1 + own.softmax;
  int64_t bytes = 0;
  for (int64_t k = 0; k < count; ++k) {
    if (!is_possible(specs[k])) return kWrongDescription;
    bytes += specs[k].bytes;
  }
  bool fits = false;
  const int failed = within_memory([&] {
    auto made = std::make_unique<Translation>(specs, own, count, bytes);
    fits = made->build(specs);
    if (fits) *result = made.release();
  });
  return failed ? kNoMemory : fits ? kDone : kWrongDescription;
}

EXPORT void g2lstm_translation_destroy(Translation* translation) { delete translation; }

EXPORT int g2lstm_translation_threads(Translation* translation) { return translation->threads(); }

// sizes: (sentences, n_best), the number of tokens of each translation, best first; -1 where there are no more. One call at
// a time.
EXPORT int g2lstm_translation_run(Translation* translation, const float* x, const int64_t* lengths, const int64_t* longest,
                                  int64_t count, const SearchSpec* how, int64_t* sizes) {
  bool is_well = true;
  const int failed = within_memory([&] { is_well = translation->run(x, lengths, longest, count, *how); });
  if (failed || !is_well) return failed ? kNoMemory : kNotNumbers;
  for (const Search& search : translation->searches)
    for (int64_t k = 0; k < how->n_best; ++k)
      *sizes++ = k < int64_t(search.found.size()) ? int64_t(search.found[k].tokens.size()) : -1;
  return kDone;
}

// The translations of the last run one after the other: tokens, log-probability and score, and attention if it was kept.
EXPORT void g2lstm_translation_take(Translation* translation, int64_t* tokens, double* numbers, float* attention) {
  for (const Search& search : translation->searches)
    for (const Found& one : search.found) {
      tokens = std::copy(one.tokens.begin(), one.tokens.end(), tokens);
      *numbers++ = one.total;
      *numbers++ = one.score;
      attention = std::copy(one.attention.begin(), one.attention.end(), attention);
    }
}
