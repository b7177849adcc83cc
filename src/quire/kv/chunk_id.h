// Identity of a chunk: SHA-256 over everything that decides its KV, so that an id never means two
// things. Every process computes the same id.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "quire/chunks.h"
#include "quire/types.h"

namespace quire::kv {

struct ChunkIdentity {
  std::string_view model;   // digest of weights, RoPE, KV format and tokenizer
  std::string_view salt;    // tenant
  std::string_view anchor;  // id of the system chunk under which it is computed, or ""
  ChunkType type = ChunkType::kContext;
  std::string_view serial;  // not empty: a chunk of its own although an equal one is there
};

// 64 hexadecimal digits. About 1 GB/s.
[[nodiscard]] std::string chunk_id(const ChunkIdentity& identity, std::span<const TokenId> tokens);
// The same of the KV that a chunk has `gap` positions behind something else than what it was
// registered under; `before` says all about that.
[[nodiscard]] std::string variant_id(std::string_view chunk_id, std::string_view before,
                                     std::int32_t gap);
// Names text before it is tokenised; `around` is what surrounds it.
[[nodiscard]] std::string chunk_text_id(const ChunkIdentity& identity, const ChunkAffixes& around,
                                        std::string_view text);

}  // namespace quire::kv
