// How threads share panels of weights that few rows are multiplied with: each walks through a
// stretch of its own, so that memory is read in long runs and what a thread reads next is known;
// who is done takes from the far end of another's. (Blumofe & Leiserson 1999, "Scheduling
// multithreaded computations by work stealing", with ranges for queues.)
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>

#include "quire/device/cpu/thread_pool.h"

namespace quire::kernels {

// What is left of one: [first, end), in one word so that both ends are taken from at once.
class alignas(64) Stretch {
 public:
  struct Range {
    std::int64_t first = 0;
    std::int64_t end = 0;
    [[nodiscard]] std::int64_t size() const { return end - first; }
  };

  // Before the loop. Precondition: end < 2^31.
  void set(Range range) { left_.store(pack(range), std::memory_order_relaxed); }

  // Up to `most` items from the near end; none when nothing is left.
  Range take_first(std::int64_t most) {
    return take(most, [](Range& left, std::int64_t count) {
      left.first += count;
      return Range{left.first - count, left.first};
    });
  }
  Range take_last(std::int64_t most) {
    return take(most, [](Range& left, std::int64_t count) {
      left.end -= count;
      return Range{left.end, left.end + count};
    });
  }
  [[nodiscard]] Range left() const { return unpack(left_.load(std::memory_order_relaxed)); }

 private:
  static std::uint64_t pack(Range range) {
    return static_cast<std::uint64_t>(range.end) << 32U | static_cast<std::uint64_t>(range.first);
  }
  static Range unpack(std::uint64_t word) {
    return {static_cast<std::int64_t>(word & 0xffffffffU), static_cast<std::int64_t>(word >> 32U)};
  }
  // What an item reads was written before the loop, and nobody reads what it writes before the
  // loop's end: the word itself is all that threads tell each other.
  template <class Cut>
  Range take(std::int64_t most, Cut cut) {
    std::uint64_t word = left_.load(std::memory_order_relaxed);
    for (;;) {
      Range left = unpack(word);
      const std::int64_t count = std::min(most, left.size());
      if (count <= 0) {
        return {};
      }
      const Range taken = cut(left, count);
      if (left_.compare_exchange_weak(word, pack(left), std::memory_order_relaxed)) {
        return taken;
      }
    }
  }

  std::atomic<std::uint64_t> left_{0};
};

// Calls fn(range, next, thread) so that the ranges, of up to `most` items, cover [0, items) once.
// `next`: the item that the thread probably begins with afterwards, or -1. `stretches`: one for
// each thread of the pool, for this call.
template <class Fn>
void for_each_range(device::ThreadPool& pool, std::span<Stretch> stretches, std::int64_t items,
                    std::int64_t most, Fn fn) {
  const auto threads = static_cast<std::int64_t>(stretches.size());
  const std::int64_t parts = (items + most - 1) / most;  // whole ones for each thread
  for (std::int64_t i = 0; i < threads; ++i) {
    stretches[static_cast<std::size_t>(i)].set({std::min(parts * i / threads * most, items),
                                                std::min(parts * (i + 1) / threads * most, items)});
  }
  pool.run(static_cast<int>(threads), [&](int own, int thread) {
    Stretch& mine = stretches[static_cast<std::size_t>(own)];
    for (auto range = mine.take_first(most); range.size() > 0; range = mine.take_first(most)) {
      fn(range, mine.left().size() > 0 ? range.end : -1, thread);
    }
    for (std::int64_t i = 1; i < threads; ++i) {
      Stretch& other = stretches[static_cast<std::size_t>((own + i) % threads)];
      for (auto range = other.take_last(most); range.size() > 0; range = other.take_last(most)) {
        fn(range, other.left().size() > 0 ? range.first - most : -1, thread);
      }
    }
  });
}

}  // namespace quire::kernels
