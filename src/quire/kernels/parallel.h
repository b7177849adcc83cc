// How row operations share a pool: contiguous ranges of items, none so small that waking a thread
// costs more than the work.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "quire/kernels/kernel_context.h"

namespace quire::kernels {

// A hand-off costs a microsecond or two; one element of a row operation about half a nanosecond.
inline constexpr std::int64_t kElementsPerTask = 16384;

// Calls fn(first, last) so that the ranges cover [0, items) once. `elements_per_item` sizes them.
// A function that takes a third argument gets the number of its thread.
template <class Fn>
void parallel_ranges(const KernelContext& context, std::int64_t items,
                     std::int64_t elements_per_item, Fn&& fn) {
  constexpr std::int64_t kTasksPerThread = 4;
  const std::int64_t threads = context.pool->threads();
  const std::int64_t wanted = items * elements_per_item / kElementsPerTask;
  const std::int64_t shares = (wanted + threads - 1) / threads * threads;  // equal ones
  const std::int64_t most = std::min(items, threads * kTasksPerThread);
  const std::int64_t tasks = wanted < 2 ? 1 : std::min(shares, most);
  context.pool->run(static_cast<int>(tasks), [&](int task, int thread) {
    const std::int64_t first = items * task / tasks;
    const std::int64_t last = items * (task + 1) / tasks;
    if constexpr (std::is_invocable_v<Fn, std::int64_t, std::int64_t, int>) {
      fn(first, last, thread);
    } else {
      fn(first, last);
    }
  });
}

}  // namespace quire::kernels
