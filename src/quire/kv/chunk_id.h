// Identity of a chunk: SHA-256 over everything that decides its KV, so that an id never means two
// things. Every process computes the same id.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "quire/chunk_types.h"
#include "quire/types.h"

namespace quire::kv {

// Everything besides the token ids that decides the KV of a chunk.
struct ChunkIdentity {
  std::string_view model;   // digest of weights, RoPE, KV format and tokenizer
  std::string_view salt;    // tenant
  std::string_view anchor;  // NewChunk::anchor
  ChunkType type = ChunkType::kContext;
  std::string_view serial;    // not empty: makes a chunk of its own beside an equal one
  std::string_view kv_dtype;  // format of its KV, or "": that of the model's pool
};

// Returns the id of a chunk: 64 hexadecimal digits. Cost: one SHA-256 over the ids.
[[nodiscard]] std::string chunk_id(const ChunkIdentity& identity, std::span<const TokenId> tokens);
// Returns the id of a chunk's KV `gap` positions behind something other than the anchor that it was
// registered under. `before` identifies that thing.
[[nodiscard]] std::string variant_id(std::string_view chunk_id, std::string_view before,
                                     std::int32_t gap);
// Returns the id of a chunk whose KV was converted from that of `chunk_id` to `kv_dtype`. No chunk
// that is registered in that format has the id.
[[nodiscard]] std::string narrowed_id(std::string_view chunk_id, std::string_view kv_dtype);
// Returns an id of text before it is tokenised. `around` has the affixes of the text.
[[nodiscard]] std::string chunk_text_id(const ChunkIdentity& identity, const ChunkAffixes& around,
                                        std::string_view text);

}  // namespace quire::kv
