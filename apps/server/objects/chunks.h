// Registers chunks for clients, and shows chunks as JSON.
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

// Returns a chunk as JSON, with the names of ChunkInfo.
[[nodiscard]] json::object chunk_json(const ChunkInfo& info, const ChunkIncludes& includes = {});
// Returns the error that a client gets for an error of a call on the chunk `id`: 404
// `chunk_not_found`.
[[nodiscard]] ApiError chunk_error(const Error& error, const std::string& id,
                                   std::string param = {});

// Registers chunks of the caller's tenant, all or none, within its quotas. Blocks until their KV is
// there, so a worker calls. Ends early when nobody reads the answer any more.
[[nodiscard]] Checked<std::vector<RegisteredChunk>> register_for(
    const std::shared_ptr<Objects>& objects, ChunkedLLM& llm, const CallPtr& call,
    std::vector<ChunkContent> contents, std::int64_t bytes_per_token);
// Returns the bytes of KV per token.
[[nodiscard]] std::int64_t kv_bytes_per_token(const Services& services);

}  // namespace quire::server
