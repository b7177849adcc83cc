// The check of sampling parameters by themselves.
#pragma once

#include "quire/result.h"
#include "quire/sampling.h"

namespace quire::sampling {

// Checks every field (SamplingParams::validate).
// Errors: kInvalidArgument names the field, its value and the range.
[[nodiscard]] Status check_params(const SamplingParams& params);

}  // namespace quire::sampling
