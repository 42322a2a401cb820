// Beam search for one sentence: the same as `runtime/beam.py`, which describes it.
#pragma once

#include "block.h"

namespace {

// How Python describes a search; keep in step with `runtime/session.py`.
struct SearchSpec {
  int64_t end, beam, n_best, min_length, keep_attention, not_words, words;
  const int64_t* not_word;  // tokens that are no words, the end among them
  const uint8_t* after;     // (4, words) or null: the bytes that the last character lacks after each, if it lacked 0 to 3
  double length_penalty;
};

struct Offer {
  float value;
  int32_t token;
};

inline bool any_above(Floats v, float limit) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)v, _mm512_set1_ps(limit), _CMP_GT_OQ);
#elif defined(__AVX__)
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)v, _mm256_set1_ps(limit), _CMP_GT_OQ));
#else
  bool any = false;
  for (int lane = 0; lane < kLanes; ++lane) any |= v[lane] > limit;
  return any;
#endif
}

// The highest logits, at most so many, in order; of equal ones the first.
inline void find_best(const float* logits, int64_t filled, size_t most, std::vector<Offer>& best) {
  const auto is_before = [](Offer a, Offer b) { return a.value > b.value || (a.value == b.value && a.token < b.token); };
  const size_t enough = std::max<size_t>(2 * most, 32);
  float limit = kNothing;
  best.clear();
  for (int64_t k = 0; k < filled; k += kLanes) {
    if (!any_above(load(logits + k), limit)) continue;
    for (int lane = 0; lane < kLanes; ++lane)
      if (logits[k + lane] > limit) best.push_back({logits[k + lane], int32_t(k + lane)});
    if (best.size() < enough) continue;
    std::nth_element(best.begin(), best.begin() + (most - 1), best.end(), is_before);
    best.resize(most);
    limit = best.back().value;
  }
  std::sort(best.begin(), best.end(), is_before);
  if (best.size() > most) best.resize(most);
}

// A finished sentence.
struct Found {
  std::vector<int64_t> tokens;
  double total, score;
  std::vector<float> attention;
};

// What the model says after one step of one hypothesis.
struct Prediction {
  std::vector<Offer> offers;  // of words, the likeliest first, as logits
  float end;                  // the logit of the end
  double whole;               // what to take off logits
};

class Search {
  struct Continuation {
    double total;
    int32_t parent, token;  // token: -1 for the end
    int32_t order;
  };
  struct Step {
    std::vector<int32_t> tokens, parents;  // that were chosen
    std::vector<float> attention;          // of the hypotheses before that
  };

  const SearchSpec* spec_;
  int64_t longest_, source_, finished_ = 0;
  std::vector<double> totals_{0.0}, best_;
  std::vector<Step> steps_;
  std::vector<Continuation> list_;

 public:
  std::vector<Found> found;
  std::vector<int32_t> tokens, parents;  // to go on with; none when the search is over
  std::vector<uint8_t> missing{0};       // how many bytes the last character of each lacks

  Search(const SearchSpec& spec, int64_t longest, int64_t source)  // longest: in tokens without the end
      : spec_(&spec), longest_(std::max(longest, spec.min_length)), source_(source),
        best_(spec.n_best, -std::numeric_limits<double>::infinity()), tokens{int32_t(spec.end)} {}

  // How many tokens there may be after the next.
  int64_t room() const { return std::max<int64_t>(longest_ - int64_t(steps_.size()) - 1, 0); }

  // Chooses how to go on from the predictions of all hypotheses; attention: (hypotheses, stride).
  void advance(const Prediction* predictions, Vectors attention) {
    const int64_t length = int64_t(steps_.size()) + 1;  // of a hypothesis that finishes now, with its end
    const size_t beam = size_t(spec_->beam), alive = totals_.size();
    steps_.emplace_back();
    Step& step = steps_.back();
    if (spec_->keep_attention)
      for (size_t k = 0; k < alive; ++k)
        step.attention.insert(step.attention.end(), attention[k], attention[k] + source_);
    list_.clear();
    for (size_t k = 0; k < alive; ++k) {
      const auto offer = [&](float logit, int32_t token) {
        const double total = totals_[k] + (double(logit) - predictions[k].whole);
        list_.push_back({total, int32_t(k), token, int32_t(list_.size())});
      };
      if (length > spec_->min_length && predictions[k].end > kNothing) offer(predictions[k].end, -1);
      if (length > longest_) continue;
      for (const Offer& one : predictions[k].offers) offer(one.value, one.token);
    }
    const size_t listed = std::min(list_.size(), 2 * beam);
    std::partial_sort(list_.begin(), list_.begin() + listed, list_.end(), [](const Continuation& a, const Continuation& b) {
      return a.total > b.total || (a.total == b.total && a.order < b.order);
    });
    totals_.clear();
    std::vector<uint8_t> after;
    for (size_t place = 0; place < listed; ++place) {
      const Continuation& one = list_[place];
      if (one.token < 0) {
        if (place < beam) finish(one, length);
      } else if (totals_.size() < beam) {
        totals_.push_back(one.total);
        after.push_back(spec_->after ? spec_->after[missing[one.parent] * spec_->words + one.token] : 0);
        step.tokens.push_back(one.token);
        step.parents.push_back(one.parent);
      }
    }
    missing.swap(after);
    // Log-probabilities only fall, and the longest sentence divides them most.
    const bool is_over = finished_ >= spec_->beam || totals_.empty() ||
                         !(totals_[0] / std::pow(double(longest_ + 1), spec_->length_penalty) > best_.back());
    tokens = is_over ? std::vector<int32_t>() : step.tokens;
    parents = is_over ? std::vector<int32_t>() : step.parents;
    if (!is_over) return;
    std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.score > b.score; });
    if (int64_t(found.size()) > spec_->n_best) found.resize(spec_->n_best);
    steps_ = {};
  }

 private:
  void finish(const Continuation& one, int64_t length) {
    const double score = one.total / std::pow(double(length), spec_->length_penalty);
    ++finished_;
    const auto place = std::upper_bound(best_.begin(), best_.end(), score, std::greater<double>());
    best_.insert(place, score);
    best_.pop_back();
    Found made{std::vector<int64_t>(length - 1), one.total, score, {}};
    if (spec_->keep_attention) made.attention.resize(length * source_);
    int32_t parent = one.parent;
    for (int64_t t = length - 1; t >= 0; --t) {
      if (spec_->keep_attention)
        std::copy_n(&steps_[t].attention[parent * source_], source_, &made.attention[t * source_]);
      if (t == 0) break;
      made.tokens[t - 1] = steps_[t - 1].tokens[parent];
      parent = steps_[t - 1].parents[parent];
    }
    found.push_back(std::move(made));
  }
};

}  // namespace
