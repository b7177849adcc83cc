// The element types of ggml by number. Source: ggml.h and ggml-common.h of llama.cpp (commit
// 0c1e57098).
#pragma once

#include <cstdint>
#include <optional>

#include "quire/weights/tensor_info.h"

namespace quire::weights {

struct GgmlType {
  const char* name;
  std::uint32_t number;
  int block_values;
  int block_bytes;
  std::optional<Encoding> encoding;  // none: recognised, not decoded
};

// Finds a type. Returns nullptr for a number that ggml does not define, or no longer.
[[nodiscard]] const GgmlType* find_ggml_type(std::uint32_t number);

}  // namespace quire::weights
