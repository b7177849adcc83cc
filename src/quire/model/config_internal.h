// The last step of parsing a config, the same for every container.
#pragma once

#include "quire/model/config.h"
#include "quire/model/rope.h"
#include "quire/result.h"

namespace quire::model {

// Fills `rotary`, lowers max_positions where longrope asks for it, drops windows that hide nothing,
// and validates. Everything else of `config` is there.
[[nodiscard]] Status finish_config(const RopeSpec& spec, ModelConfig& config);

}  // namespace quire::model
