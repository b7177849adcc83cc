// Sampling: the fields of SamplingParams that all generating endpoints share.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/errors.h"
#include "api/fields.h"
#include "quire/sampling.h"
#include "quire/types.h"

namespace quire::server {

// Returns the rules of the fields that choose tokens and end outputs, but for lengths and logprobs.
[[nodiscard]] std::span<const FieldRule> sampling_rules();

// Reads the parameters of an object that sampling_rules() has checked. `path` leads to it. Leaves
// max_tokens and logprobs at their defaults.
// Errors: 400 for a key of logit_bias that is no id, for a duplicate, and for top_p 0.
[[nodiscard]] Checked<SamplingParams> read_sampling(const json::object& object,
                                                    std::string_view path);

// Returns how many tokens may be generated: `given`, else `otherwise`. The result never exceeds
// `room`, the rest of the context, nor the tenant's limit.
[[nodiscard]] std::int32_t output_length(std::optional<std::int64_t> given, std::int64_t otherwise,
                                         std::int64_t room,
                                         std::optional<std::int64_t> tenant_limit);

// Reads the ids of a list of integers.
// Errors: 400 for an id outside of the vocabulary.
[[nodiscard]] Checked<std::vector<TokenId>> read_ids(const json::array& list, std::string_view path,
                                                     std::int32_t vocab_size);

}  // namespace quire::server
