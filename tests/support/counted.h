// Counts the calls that a program makes of the allocator and of the kernel for memory. With
// counted.cc linked, calls of malloc, its family and mmap pass here; where a sanitizer has its own,
// those of operator new.
#pragma once

#include <cstdint>

namespace quire::testing {

// Calls of those since the program began, by all threads but those that hold an Uncounted.
[[nodiscard]] std::int64_t num_allocations();

// The `n`th of them from now on is refused, once: the first is 1, and 0 refuses none. An Uncounted
// is never refused.
void refuse_allocation(std::int64_t n);
// Returns whether that one was refused.
[[nodiscard]] bool allocation_was_refused();
// Writes the calls that led to it to standard error; addr2line names them.
void print_refusal();

class Uncounted {
 public:
  Uncounted();
  ~Uncounted();
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;
};

enum class Threads : std::uint8_t { kAll, kThisOne };

// From now on the kernel refuses these threads whatever they ask for, but the time, the end and
// that other threads are woken: they should try again. False if that cannot be had.
[[nodiscard]] bool refuse_system_calls(Threads threads);
// Calls of threads that leave the core to others or wait to be woken, and all others.
[[nodiscard]] std::int64_t num_waits();
[[nodiscard]] std::int64_t num_refused();
// Calls that wake threads which sleep.
[[nodiscard]] std::int64_t num_wakes();

}  // namespace quire::testing
