// ChunkSetup: the format in which text becomes chunks of a model, found out once.
#pragma once

#include <optional>
#include <string>

#include "quire/chunk_types.h"
#include "quire/engine/model_bundle.h"
#include "quire/text/chunk_format.h"

namespace quire::chunks {

struct ChunkSetup {
  std::optional<text::ChunkFormat> format;
  std::string format_error;  // why there is none: text cannot become a chunk
};

// Returns the format that is `wanted`, else the chat template's, else a plain one. Cost: some
// hundred renderings of the template.
[[nodiscard]] ChunkSetup make_chunk_setup(const engine::ModelBundle& bundle,
                                          const std::optional<quire::ChunkFormat>& wanted);

}  // namespace quire::chunks
