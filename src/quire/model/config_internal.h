// The last step of parsing a config, the same for every container.
#pragma once

#include <optional>

#include "quire/model/config.h"
#include "quire/model/rope.h"
#include "quire/result.h"

namespace quire::model {

// Fills `rotary`, and `local_rotary` if `local` is there. Sets context_length to the positions that
// the frequencies of `spec` are for, drops windows that hide nothing, and validates under these
// names. Everything else of `config` is there.
[[nodiscard]] Status finish_config(const RopeSpec& spec, const std::optional<RopeSpec>& local,
                                   const FieldNames& names, ModelConfig& config);

}  // namespace quire::model
