#include "objects/chunk_quotas.h"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "api/errors.h"
#include "keys.h"
#include "objects/state.h"
#include "quire/chunks.h"
#include "quire/result.h"
#include "quire/tokenizer.h"
#include "quire/types.h"

namespace quire::server {
namespace {

bool is_chunk_of(const ChunkInfo& known, const ChunkContent& content) {
  if (known.type != content.type) {
    return false;
  }
  if (const auto* const ids = std::get_if<std::vector<TokenId>>(&content.content)) {
    return known.token_ids == *ids;
  }
  return known.content == std::get<std::string>(content.content);
}

// Returns the number of tokens whose KV the chunk will hold, without its affixes.
Checked<std::int64_t> tokens_with_kv(ChunkedLLM& llm, const ChunkContent& content) {
  if (content.type == ChunkType::kQuery) {
    return std::int64_t{0};
  }
  if (const auto* const ids = std::get_if<std::vector<TokenId>>(&content.content)) {
    return static_cast<std::int64_t>(ids->size());
  }
  QUIRE_TRY(const Tokenizer tokenizer, llm.llm().tokenizer());
  QUIRE_TRY(const auto ids, tokenizer.encode(std::get<std::string>(content.content), false));
  return static_cast<std::int64_t>(ids.size());
}

}  // namespace

Checked<ChunkQuotas::Claim> ChunkQuotas::claim(ChunkedLLM& llm, const Caller& caller,
                                               const std::string& salt,
                                               std::span<const ChunkContent> contents,
                                               std::int64_t bytes_per_token) {
  const TenantLimits& limits = caller.limits;
  if (!limits.max_chunks && !limits.chunk_bytes) {
    return Claim();
  }
  const std::lock_guard lock(mutex_);
  QUIRE_TRY(const auto known, llm.list_chunks({}, "{}", salt));
  Pending wanted;
  for (const ChunkContent& content : contents) {
    const bool is_known = std::ranges::any_of(
        known, [&](const ChunkInfo& info) { return is_chunk_of(info, content); });
    if (!is_known) {
      QUIRE_TRY(const std::int64_t tokens, tokens_with_kv(llm, content));
      wanted.chunks += 1;
      wanted.bytes += tokens * bytes_per_token;
    }
  }
  Pending& pending = pending_[caller.tenant];
  Pending used = pending;
  for (const ChunkInfo& info : known) {
    used.chunks += 1;
    used.bytes += info.memory_bytes;
  }
  if (limits.max_chunks && wanted.chunks > 0 && used.chunks + wanted.chunks > *limits.max_chunks) {
    return over_quota("max_chunks", used.chunks, wanted.chunks, *limits.max_chunks);
  }
  if (limits.chunk_bytes && wanted.bytes > 0 && used.bytes + wanted.bytes > *limits.chunk_bytes) {
    return over_quota("chunk_bytes", used.bytes, wanted.bytes, *limits.chunk_bytes);
  }
  pending.chunks += wanted.chunks;
  pending.bytes += wanted.bytes;
  return Claim(nullptr, [this, tenant = caller.tenant, wanted](void*) {
    const std::lock_guard end_lock(mutex_);
    pending_[tenant].chunks -= wanted.chunks;
    pending_[tenant].bytes -= wanted.bytes;
  });
}

}  // namespace quire::server
