// The identity of KV: what decides its bits besides the tokens before it.
#pragma once

#include <string>
#include <string_view>

#include "quire/base/kv_fingerprint.h"

namespace quire::tiers {

// Returns the name of the CPU kernels that compute here: the instruction set, and a number that
// grows when their arithmetic changes.
[[nodiscard]] std::string kernels_here();

// Returns the identity of the KV of a model that these kernels compute. `kernels` is empty where
// other data names the kernels: such KV is graded by them, and not refused.
[[nodiscard]] base::KVFingerprint kv_fingerprint(std::string_view model_digest,
                                                 std::string_view kernels);

}  // namespace quire::tiers
