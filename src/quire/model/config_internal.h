// The last step of parsing a config, the same for every container.
#pragma once

#include "quire/model/config.h"
#include "quire/model/rope.h"
#include "quire/result.h"

namespace quire::model {

// Fills `rotary`, sets context_length to those that its frequencies are for, drops windows that
// hide nothing, and validates under these names. Everything else of `config` is there.
[[nodiscard]] Status finish_config(const RopeSpec& spec, const FieldNames& names,
                                   ModelConfig& config);

}  // namespace quire::model
