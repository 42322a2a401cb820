// Threads that divide the work of a long call among themselves, phase by phase.
//
// With a barrier after each phase everyone would wait for the slowest, and on a busy machine a thread that is not
// running costs milliseconds. So a thread takes over what others have not begun, and waits only for items that are in
// somebody's hands.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "simd.h"

namespace {

constexpr int kSpins = 200;  // turns of a waiting loop before others may run

// Spins for some 10 µs; after that, the thread we wait for may need this very core.
inline void wait_a_turn(int turn) {
  if (turn >= kSpins) return std::this_thread::yield();
#if defined(__SSE2__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// What the threads of a call share. Who does an item changes from run to run; what it computes must not depend on that.
class Crew {
  struct Taken { std::atomic<int32_t> all{0}, stolen{0}; };
  struct Done { std::atomic<int64_t> items{0}; };
  const int64_t phases_;
  std::vector<Taken> taken_;  // of each thread and phase: how many of its own items
  std::vector<Done> done_;    // of each phase
  friend class Member;

 public:
  Crew(int threads, int64_t phases) : phases_(phases), taken_(threads * phases), done_(phases) {}
};

// One thread of a crew. All of them go through the same phases in the same order.
class Member {
  Crew& crew_;
  int64_t phase_ = 0;
  using Taken = Crew::Taken;
  Taken& taken_by(int thread) const { return crew_.taken_[thread * crew_.phases_ + phase_]; }

 public:
  const int thread, threads;
  Member(Crew& crew, int thread, int threads) : crew_(crew), thread(thread), threads(threads) {}

  // Calls work(item) for every item that no other thread takes: its own from front to back, so that these are the same
  // in every step and may still be in its cache, then others' from the back. Returns when all items are done.
  template <class Work> void divide(int64_t items, const Work& work) {
    int64_t done = 0;
    for (int k = 0; k < threads; ++k) {
      const int whose = (thread + k) % threads;
      const Range range = share(items, whose, threads);
      Taken& taken = taken_by(whose);
      const auto is_left = [&] { return taken.all.load(std::memory_order_relaxed) < range.end - range.begin; };
      while (is_left() && taken.all.fetch_add(1, std::memory_order_relaxed) < range.end - range.begin) {
        const int64_t own = done, stolen = k ? taken.stolen.fetch_add(1, std::memory_order_relaxed) : 0;
        work(k ? range.end - 1 - stolen : range.begin + own);
        ++done;
      }
    }
    auto& finished = crew_.done_[phase_++].items;
    finished.fetch_add(done, std::memory_order_acq_rel);
    for (int turn = 0; finished.load(std::memory_order_acquire) < items; ++turn) wait_a_turn(turn);
  }
};

// A thread that shares its work with nobody.
struct Alone {
  template <class Work> void divide(int64_t items, const Work& work) const {
    for (int64_t item = 0; item < items; ++item) work(item);
  }
};

}  // namespace
