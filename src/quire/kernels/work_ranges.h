// Work ranges: how threads share panels of weights that few rows are multiplied with. Each thread
// walks through a range of its own, so that it reads memory in long runs and knows what it reads
// next. An idle thread takes from the far end of another's range. (Blumofe & Leiserson 1999,
// "Scheduling multithreaded computations by work stealing", with ranges for queues.)
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>

#include "quire/device/cpu/thread_pool.h"

namespace quire::kernels {

// Holds the items that are left of one thread's range. One word has both ends, so that threads may
// take from both at once.
class alignas(64) WorkRange {
 public:
  // Items [first, end).
  struct Items {
    std::int64_t first = 0;
    std::int64_t end = 0;
    [[nodiscard]] std::int64_t size() const { return end - first; }
  };

  // Sets the range before the loop. Precondition: end < 2^31.
  void set(Items range) { left_.store(pack(range), std::memory_order_relaxed); }

  // Takes up to `most` items from the near end, or none when nothing is left.
  Items take_first(std::int64_t most) {
    return take(most, [](Items& left, std::int64_t count) {
      left.first += count;
      return Items{left.first - count, left.first};
    });
  }
  // Takes up to `most` items from the far end, or none when nothing is left.
  Items take_last(std::int64_t most) {
    return take(most, [](Items& left, std::int64_t count) {
      left.end -= count;
      return Items{left.end, left.end + count};
    });
  }
  [[nodiscard]] Items left() const { return unpack(left_.load(std::memory_order_relaxed)); }

 private:
  static std::uint64_t pack(Items range) {
    return static_cast<std::uint64_t>(range.end) << 32U | static_cast<std::uint64_t>(range.first);
  }
  static Items unpack(std::uint64_t word) {
    return {static_cast<std::int64_t>(word & 0xffffffffU), static_cast<std::int64_t>(word >> 32U)};
  }
  // Takes up to `most` items as `cut` says, or none when none is left. Threads tell each other
  // nothing but the word itself. The inputs of an item were written before the loop, and nobody
  // reads its outputs before the loop's end.
  template <class Cut>
  Items take(std::int64_t most, Cut cut) {
    std::uint64_t word = left_.load(std::memory_order_relaxed);
    for (;;) {
      Items left = unpack(word);
      const std::int64_t count = std::min(most, left.size());
      if (count <= 0) {
        return {};
      }
      const Items taken = cut(left, count);
      if (left_.compare_exchange_weak(word, pack(left), std::memory_order_relaxed)) {
        return taken;
      }
    }
  }

  std::atomic<std::uint64_t> left_{0};
};

// Calls fn(taken, next, thread) so that the items taken, up to `most` at a time, cover [0, items)
// once. `next` is the item that the thread probably begins with afterwards, or -1. `ranges` has one
// for each thread of the pool, for this call.
template <class Fn>
void for_each_range(device::ThreadPool& pool, std::span<WorkRange> ranges, std::int64_t items,
                    std::int64_t most, Fn fn) {
  const auto threads = static_cast<std::int64_t>(ranges.size());
  const std::int64_t parts = (items + most - 1) / most;  // whole ones for each thread
  for (std::int64_t i = 0; i < threads; ++i) {
    ranges[static_cast<std::size_t>(i)].set({std::min(parts * i / threads * most, items),
                                             std::min(parts * (i + 1) / threads * most, items)});
  }
  pool.run(static_cast<int>(threads), [&](int own, int thread) {
    WorkRange& mine = ranges[static_cast<std::size_t>(own)];
    for (auto taken = mine.take_first(most); taken.size() > 0; taken = mine.take_first(most)) {
      fn(taken, mine.left().size() > 0 ? taken.end : -1, thread);
    }
    for (std::int64_t i = 1; i < threads; ++i) {
      WorkRange& other = ranges[static_cast<std::size_t>((own + i) % threads)];
      for (auto taken = other.take_last(most); taken.size() > 0; taken = other.take_last(most)) {
        fn(taken, other.left().size() > 0 ? taken.first - most : -1, thread);
      }
    }
  });
}

}  // namespace quire::kernels
