// Grades that a reuse is reported as. Inside the engine a grade compares with a cold prefill of the
// same arithmetic; to a caller kExact promises the bits themselves.
#pragma once

#include <algorithm>

#include "quire/output.h"
#include "quire/types.h"

namespace quire::engine {

// Returns the grade of a reuse. `same_bits` says that a cold prefill would have the bits that the
// reuse rests on. It is false for arithmetic whose bits depend on the batch, and for KV that other
// kernels computed.
[[nodiscard]] constexpr ReuseGrade graded(ReuseGrade grade, bool same_bits) {
  return same_bits ? grade : std::max(grade, ReuseGrade::kEqualMath);
}

}  // namespace quire::engine
