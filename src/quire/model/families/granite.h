// The fields that Granite 3 and Granite 4 share: biases of attention, and four multipliers.
#pragma once

#include "quire/base/json.h"
#include "quire/model/config.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {

[[nodiscard]] Status read_granite(base::JsonView json, ModelConfig& config);
// Reads the multipliers from the keys of the file's architecture, and whether there is a rope.
[[nodiscard]] Status read_granite_gguf(const weights::GgufFile& file, ModelConfig& config);

}  // namespace quire::model
