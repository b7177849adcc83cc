// Random Llama checkpoints in a folder of the test's own, for what the golden ones are too shallow
// or too short for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "quire/types.h"

namespace quire::chunks {

// Tokens of a checkpoint made `with_secrets`.
//
// No asking token ever looks at a secret one: of every head one pair of dimensions belongs to this
// alone, where a secret token's key and an asking token's query have opposite signs, large enough
// that the probability is 0 even in double precision. Everybody else looks at secret tokens as at
// any other. So with a query of asking tokens, a changed secret changes the logits if and only if
// something else has seen it: what a stored row saw becomes visible to the last bit.
constexpr TokenId kFirstSecret = 100;
constexpr TokenId kFirstAsking = 150;

struct TinyModel {
  std::int32_t layers = 4;  // 4 heads of 16 over 2 kv heads, 64 wide, 200 tokens
  std::int32_t max_positions = 512;
  bool with_secrets = false;
  // Factor of the values of secret tokens in layer 1; 0: none. Precondition: with_secrets.
  float secret_values = 0;
  std::uint32_t seed = 1;
};

// Writes config.json and model.safetensors (float32) to a folder `name` under the test's temporary
// one.
[[nodiscard]] std::filesystem::path write_checkpoint(const std::string& name,
                                                     const TinyModel& model);

}  // namespace quire::chunks
