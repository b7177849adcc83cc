#include "quire/kv_store/store_eviction.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "quire/kv_store/store_entry.h"

namespace quire::kv_store {
namespace {

// Objects that the entries of a tenant hold, and those of its entries that may go.
struct Holding {
  std::unordered_map<std::string, std::int64_t>
      references;  // references of its entries to each object
  std::int64_t bytes = 0;
  std::deque<const StoreEntry*> may_go;  // least recently used first
};

bool same_identity(const StoreEntry& a, const StoreEntry& b) {
  return a.key == b.key && a.tenant == b.tenant;
}

class Evictions {
 public:
  Evictions(const std::vector<const StoreEntry*>& entries, const ObjectSizes& objects,
            std::unordered_map<std::string, std::int64_t> references, const EvictionLimit& limit)
      : objects_(objects), references_(std::move(references)), limit_(limit) {
    for (const auto& [hash, bytes] : objects) {
      bytes_ += bytes;
    }
    for (const StoreEntry* entry : entries) {
      Holding& holding = holdings_[entry->tenant];
      for (const std::string& hash : objects_of(*entry)) {
        holding.bytes += holding.references[hash]++ == 0 ? bytes_of(hash) : 0;
      }
      const bool stays = limit.written != nullptr && same_identity(*entry, *limit.written);
      if (!entry->pinned && !entry->parts.empty() && !stays) {
        holding.may_go.push_back(entry);
      }
    }
  }

  [[nodiscard]] std::vector<const StoreEntry*> plan() {
    std::vector<const StoreEntry*> gone;
    while (is_beyond()) {
      Holding* holding = next();
      if (holding == nullptr) {
        break;
      }
      gone.push_back(holding->may_go.front());
      holding->may_go.pop_front();
      forget(*gone.back(), *holding);
    }
    return gone;
  }

 private:
  [[nodiscard]] std::int64_t bytes_of(const std::string& hash) const {
    const auto object = objects_.find(hash);
    return object == objects_.end() ? 0 : object->second;
  }

  [[nodiscard]] bool is_beyond() const {
    if (limit_.max_bytes == 0 || !limit_.tenant) {
      return limit_.max_bytes != 0 && bytes_ > limit_.max_bytes;
    }
    const auto own = holdings_.find(*limit_.tenant);
    return own != holdings_.end() && own->second.bytes > limit_.max_bytes;
  }

  // Returns the tenant whose turn it is, among those that have something to give.
  [[nodiscard]] Holding* next() {
    const auto holders =
        std::ranges::count_if(holdings_, [](const auto& each) { return each.second.bytes > 0; });
    const std::int64_t share = limit_.max_bytes / std::max<std::int64_t>(1, holders);
    Holding* most = nullptr;
    for (auto& [tenant, holding] : holdings_) {
      const bool only = limit_.tenant ? tenant == *limit_.tenant : holders == 1;
      const bool own = only || (limit_.written != nullptr && tenant == limit_.written->tenant);
      const bool yields = own || (!limit_.tenant && holding.bytes > share);
      const bool more =
          most == nullptr || holding.bytes > most->bytes || (own && holding.bytes == most->bytes);
      if (yields && more && !holding.may_go.empty()) {
        most = &holding;
      }
    }
    return most;
  }

  void forget(const StoreEntry& entry, Holding& holding) {
    for (const std::string& hash : objects_of(entry)) {
      holding.bytes -= --holding.references[hash] == 0 ? bytes_of(hash) : 0;
      bytes_ -= --references_[hash] == 0 ? bytes_of(hash) : 0;
    }
  }

  const ObjectSizes& objects_;
  std::unordered_map<std::string, std::int64_t> references_;
  const EvictionLimit& limit_;
  std::int64_t bytes_ = 0;
  std::map<std::string_view, Holding> holdings_;  // by tenant
};

}  // namespace

std::vector<const StoreEntry*> entries_to_evict(
    const std::vector<const StoreEntry*>& entries, const ObjectSizes& objects,
    std::unordered_map<std::string, std::int64_t> references, const EvictionLimit& limit) {
  return Evictions(entries, objects, std::move(references), limit).plan();
}

}  // namespace quire::kv_store
