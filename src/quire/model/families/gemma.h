// The parts that Gemma 2 and Gemma 3 share.
#pragma once

#include <cstdint>
#include <string_view>

#include "quire/base/json.h"
#include "quire/model/config.h"
#include "quire/model/family.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {

// Reads what both families have in config.json, but for windows and ropes.
[[nodiscard]] Status configure_gemma(base::JsonView json, ModelConfig& config);
// Returns a soft cap: `absent` where the file does not name it, 0 (none) where it is null.
[[nodiscard]] Result<double> get_cap(base::JsonView json, std::string_view key, double absent);
// Sets the switches that GGUF files of both families leave unsaid. Reads the caps. `layers_of_27b`
// is how such a file tells the model whose scale of scores is another.
[[nodiscard]] Status configure_gemma_gguf(const weights::GgufFile& file, std::int32_t layers_of_27b,
                                          ModelConfig& config);
// Returns hf_names() with the four norms of a layer, whose weights lack 1.
[[nodiscard]] TensorNames gemma_names();

}  // namespace quire::model
