// Saved sequences, objects of stores and exported entries, as reports of what lies in them.
#pragma once

#include <string>

#include "quire/result.h"

namespace quire {

// Returns whether a path names a file in one of Quire's own formats. Reads its first bytes.
[[nodiscard]] bool is_saved_file(const std::string& path);

// Returns a JSON object, for such a file:
// * file, kind (saved sequence, store object, store entry, packed weights), file_bytes.
// * codec, tokens, kv_dtype, layers, block_tokens, metadata_bytes and `sections`, where it has KV.
//   Sections are the KV of each run, and each state with its parts. Bytes are those in memory.
// * key, name, entry_kind and `objects`, where it is an entry. Each object has the fields of KV.
// Errors: kIo, kCorrupt that names the damage, kUnsupported for later versions.
[[nodiscard]] Result<std::string> saved_file_json(const std::string& path);

}  // namespace quire
