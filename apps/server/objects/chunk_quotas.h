// ChunkQuotas: bounds how many chunks and bytes of KV a tenant may have.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "api/errors.h"
#include "keys.h"
#include "quire/chunks.h"

namespace quire::server {

// Counts chunks that are about to be registered, so that simultaneous calls do not exceed a limit
// together.
// Threads: any thread.
class ChunkQuotas {
 public:
  // Room of a registration. Destroying it ends the claim: registered chunks count themselves.
  using Claim = std::shared_ptr<void>;

  // Claims room for those of `contents` that the tenant does not have yet. Returns null if the
  // tenant has no limit. Blocks; costs O(text of the tenant's chunks) if the tenant has limits.
  // Errors: 429 `quota_exceeded`.
  [[nodiscard]] Checked<Claim> claim(ChunkedLLM& llm, const Caller& caller, const std::string& salt,
                                     std::span<const ChunkContent> contents,
                                     std::int64_t bytes_per_token);

 private:
  struct Pending {
    std::int64_t chunks = 0;
    std::int64_t bytes = 0;
  };

  std::mutex mutex_;
  std::map<std::string, Pending> pending_;  // by tenant
};

}  // namespace quire::server
