// Registering chunks on behalf of clients, and chunks as JSON.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "api/call.h"
#include "api/errors.h"
#include "api/json.h"
#include "objects/state.h"
#include "quire/chunks.h"

namespace quire::server {

// Parts of a chunk that only `?include=` shows.
struct ChunkIncludes {
  bool content = false;
  bool token_ids = false;
};

// Returns a chunk with the names of ChunkInfo.
[[nodiscard]] json::object chunk_json(const ChunkInfo& info, const ChunkIncludes& includes = {});
// Returns what a client is told of an error of a call on the chunk `id`: 404 `chunk_not_found`.
[[nodiscard]] ApiError chunk_error(const Error& error, const std::string& id,
                                   std::string param = {});

// Registers chunks of the caller's tenant, all or none, within its quotas. For a worker: blocks
// until KV is there, and ends when nobody reads the answer any more.
[[nodiscard]] Checked<std::vector<RegisteredChunk>> register_for(
    const std::shared_ptr<Objects>& objects, ChunkedLLM& llm, const CallPtr& call,
    std::vector<ChunkContent> contents, std::int64_t bytes_per_token);
// Returns the bytes of KV of a token.
[[nodiscard]] std::int64_t kv_bytes_per_token(const Services& services);

}  // namespace quire::server
