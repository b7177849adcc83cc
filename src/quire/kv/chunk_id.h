// Identity of a chunk: SHA-256 over everything that decides its KV, so that a name never means two
// things. The same in every process (DESIGN 4.3).
#pragma once

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
// Names text before it is tokenised; `around` is what surrounds it.
[[nodiscard]] std::string chunk_text_id(const ChunkIdentity& identity, const ChunkAffixes& around,
                                        std::string_view text);

}  // namespace quire::kv
