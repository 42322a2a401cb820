// Threads that share the items of a job: one team for the whole process.
//
// A step of an LSTM takes microseconds, so threads cannot sleep between its jobs, and on a busy machine waiting for a
// thread that is not running costs milliseconds. So workers help but are not needed: the caller does every item that
// nobody else has taken, and waits only for workers that have begun. The same covers workers that start late, and a
// second session that finds the team taken. A worker with nothing to do for some time sleeps, and leaves its core to
// others, such as torch's own threads. A forked process has no workers and starts its own.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>

#include <pthread.h>

#include "crew.h"

namespace {

constexpr int kTurns = 400;  // turns of a waiting loop before sleep

// The items of a job, divided among the threads. Each does its own from front to back, so these are the same in every
// step and may still be in its cache, then steals from the back of the others'. Threads pass no data with the items, so
// no memory order is needed here: the beginning and end of a job provide it.
class Items {
  struct alignas(64) Part {
    std::atomic<int64_t> taken{0}, stolen{0};
    int64_t own = 0, begin = 0, end = 0;
  };
  std::vector<Part> parts_;
  int threads_ = 0;

 public:
  explicit Items(int most_threads) : parts_(most_threads) {}

  void deal(int64_t items, int threads) {
    threads_ = threads;
    for (int thread = 0; thread < threads; ++thread) {
      const Range range = share(items, thread, threads);
      Part& part = parts_[thread];
      part.begin = range.begin;
      part.end = range.end;
      part.own = 0;
      part.taken.store(0, std::memory_order_relaxed);
      part.stolen.store(0, std::memory_order_relaxed);
    }
  }

  // The next item for this thread, or -1.
  int64_t claim(int thread) {
    Part& mine = parts_[thread];
    if (mine.taken.fetch_add(1, std::memory_order_relaxed) < mine.end - mine.begin) return mine.begin + mine.own++;
    for (int k = 1; k < threads_; ++k) {
      Part& other = parts_[(thread + k) % threads_];
      const int64_t size = other.end - other.begin;
      if (other.taken.load(std::memory_order_relaxed) < size &&
          other.taken.fetch_add(1, std::memory_order_relaxed) < size)
        return other.end - 1 - other.stolen.fetch_add(1, std::memory_order_relaxed);
    }
    return -1;
  }
};

class Team {
  std::atomic<bool> taken_{false};
  alignas(64) std::atomic<uint64_t> number_{0};  // of the job; odd while it is open
  alignas(64) std::atomic<int> active_{0};       // workers that are looking at the job
  alignas(64) std::atomic<bool> asleep_{false};  // whether some worker may be
  std::mutex mutex_;
  std::condition_variable woken_;
  int size_ = 1;  // including the caller; read only by whoever has taken the team

  // The job: written after the workers have left the last one, and before it is opened.
  void (*call_)(const void* work, int thread) = nullptr;
  const void* work_ = nullptr;
  int threads_ = 0;

  Team() = default;

  uint64_t wait_for_job(uint64_t last) {
    for (int turn = 0;; ++turn) {
      const uint64_t now = number_.load(std::memory_order_acquire);
      if (now % 2 && now != last) return now;
      wait_a_turn(turn);
      if (turn < kTurns) continue;
      std::unique_lock<std::mutex> lock(mutex_);
      asleep_.store(true);
      woken_.wait(lock, [&] { return number_.load() != now; });
      turn = 0;
    }
  }

  [[noreturn]] void serve(int thread) {
    FlushDenormals flush;
    for (uint64_t job = 0;;) {
      job = wait_for_job(job);
      active_.fetch_add(1);
      // Still open: the caller closes the job before it looks at `active_`, so it waits for us from here on.
      if (number_.load() == job && thread < threads_) call_(work_, thread);
      active_.fetch_sub(1, std::memory_order_release);
    }
  }

 public:
  static Team& of_process() {
    alignas(Team) static unsigned char place[sizeof(Team)];  // never destroyed: its threads run until the process ends
    static Team* const team = [] {
      // A child process has none of the workers, and they may have left anything locked: it gets its own team.
      pthread_atfork(nullptr, nullptr, [] { new (place) Team; });
      return new (place) Team;
    }();
    return *team;
  }

  // False if another caller has it; otherwise the caller may use it, with this many threads, until `leave`.
  bool take(int threads) {
    if (taken_.exchange(true, std::memory_order_acquire)) return false;
    try {
      for (; size_ < threads; ++size_) std::thread([this, thread = size_] { serve(thread); }).detach();
    } catch (const std::exception&) {  // the system allows no more threads: those that exist do the work
      size_ = threads;
    }
    return true;
  }
  void leave() { taken_.store(false, std::memory_order_release); }

  // Calls work(thread) here and in the workers, and returns once all are done. Only after `take`.
  template <class Work> void together(int threads, const Work& work) {
    call_ = [](const void* job, int thread) { (*static_cast<const Work*>(job))(thread); };
    work_ = &work;
    threads_ = threads;
    number_.fetch_add(1);
    if (asleep_.load()) {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        asleep_.store(false);
      }
      woken_.notify_all();
    }
    work(0);
    number_.fetch_add(1);
    for (int turn = 0; active_.load(); ++turn) wait_a_turn(turn);
  }
};

}  // namespace
