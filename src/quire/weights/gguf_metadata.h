// The key-value section of a GGUF file.
#pragma once

#include <cstdint>
#include <string_view>

#include "quire/result.h"
#include "quire/weights/byte_reader.h"
#include "quire/weights/gguf_value.h"

namespace quire::weights {

// Reads `count` keys and values. Memory stays within a small multiple of the bytes read, whatever
// counts and lengths the file claims. Errors name `file` and the key.
[[nodiscard]] Result<GgufMetadata> read_gguf_metadata(ByteReader& reader, std::uint64_t count,
                                                      std::string_view file);

}  // namespace quire::weights
