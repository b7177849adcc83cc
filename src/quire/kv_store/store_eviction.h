// Which entries of a store give way when their objects are more than its limit. Pure: plans only.
//
// A store of one tenant: its own entries, least recently used first. A store of all: the tenant
// whose entries hold most gives way, least recently used first. Nobody does for others who holds no
// more than an equal share of the limit; whoever wrote just now gives way for itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "quire/kv_store/store_entry.h"

namespace quire::kv_store {

using ObjectSizes = std::unordered_map<std::string, std::int64_t>;  // bytes by hash

struct EvictionLimit {
  std::int64_t max_bytes = 0;              // 0: no limit
  std::optional<std::string> tenant = {};  // tenant of a store of one tenant
  const StoreEntry* written = nullptr;     // the one that was put just now, which stays
};

// Returns those of `entries` (least recently used first) that go. `objects` has all that are there,
// and `references` the number of entries that name each.
[[nodiscard]] std::vector<const StoreEntry*> entries_to_evict(
    const std::vector<const StoreEntry*>& entries, const ObjectSizes& objects,
    std::unordered_map<std::string, std::int64_t> references, const EvictionLimit& limit);

}  // namespace quire::kv_store
