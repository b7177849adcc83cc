// The keys `ssm.*` of GGUF files, which Gated DeltaNet and Mamba-2 share.
#pragma once

#include <cstdint>
#include <string>

#include "quire/model/state_shape.h"
#include "quire/result.h"
#include "quire/weights/gguf.h"

namespace quire::model {

// Returns a size, 0 where the key is absent, clamped to what no index overflows.
// StateShape::validate bounds it. Fails as GgufFile::get_int does.
[[nodiscard]] Result<std::int32_t> get_gguf_size(const weights::GgufFile& file,
                                                 const std::string& key);

// Reads taps, heads and sizes of heads from the keys behind `prefix`. Fails with kInvalidArgument
// where the heads do not divide the inner size.
[[nodiscard]] Status read_ssm_sizes(const weights::GgufFile& file, const std::string& prefix,
                                    StateShape& state);

}  // namespace quire::model
