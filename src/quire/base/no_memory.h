// Makes the error of a call to which the machine refused memory. Nothing here throws.
#pragma once

#include <new>

#include "quire/result.h"

namespace quire::base {

// Returns kOutOfBlocks with a message that says `what` the memory was for. The message is shorter
// when there is no memory for it.
[[nodiscard]] Error no_memory(const char* what) noexcept;

// Returns a copy of `error`, or an error of no_memory() when there is no memory for a copy.
[[nodiscard]] Error copy_of(const Error& error) noexcept;

// Does `work`, which returns a Status, for a caller that may not fail. Repeats it if memory is
// refused, at most three times in all.
template <class Work>
void do_surely(Work work) noexcept {
  constexpr int kTries = 3;
  for (int i = 0; i < kTries; ++i) {
    try {
      const Status done = work();
      if (done.ok() || done.error().code != ErrorCode::kOutOfBlocks) {
        return;
      }
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the next try is the answer
    }
  }
}

}  // namespace quire::base
