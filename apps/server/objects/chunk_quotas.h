// ChunkQuotas: how many chunks and bytes of KV a tenant may have (rule A5).
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

// Counts what registrations are about to add, so that calls at once do not exceed a limit together.
// Threads: any thread.
class ChunkQuotas {
 public:
  // Room that a registration has. Destroying it ends the claim: what was registered counts itself.
  using Claim = std::shared_ptr<void>;

  // Claims room for the chunks among `contents` that the tenant does not have yet. Null where the
  // tenant has no limit. Blocks; cost of a tenant with limits: O(text of the tenant's chunks).
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
