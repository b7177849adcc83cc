// ChunkCounts: the numbers of chunks as each tenant's last call on chunks found them, for metrics,
// which wait for no engine.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "quire/chunks.h"

namespace quire::server {

// Threads: any thread.
class ChunkCounts {
 public:
  // Asks for the counts of a tenant. Blocks, so a worker calls.
  void refresh(ChunkedLLM& llm, const std::string& salt) {
    const auto stats = llm.chunk_stats(salt);
    if (stats.ok()) {
      const std::lock_guard lock(mutex_);
      by_salt_[salt] = *stats;
    }
  }
  // Returns the sums over all tenants.
  [[nodiscard]] ChunkStats total() const {
    const std::lock_guard lock(mutex_);
    ChunkStats sum;
    for (const auto& [salt, stats] : by_salt_) {
      sum.total_chunks += stats.total_chunks;
      sum.system_chunks += stats.system_chunks;
      sum.context_chunks += stats.context_chunks;
      sum.query_chunks += stats.query_chunks;
      sum.evictions += stats.evictions;
    }
    return sum;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, ChunkStats> by_salt_;
};

}  // namespace quire::server
