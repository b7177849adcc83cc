// The key-value section of a GGUF file.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "quire/result.h"
#include "quire/weights/byte_reader.h"
#include "quire/weights/gguf.h"

namespace quire::weights {

// Reads `count` keys and values. Memory stays within a small multiple of the bytes read, whatever
// counts and lengths the file claims. Errors name `file` and the key.
[[nodiscard]] Result<std::map<std::string, GgufValue, std::less<>>> read_gguf_metadata(
    ByteReader& reader, std::uint64_t count, std::string_view file);

}  // namespace quire::weights
