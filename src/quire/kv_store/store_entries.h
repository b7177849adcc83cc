// StoreEntries: the names that users gave in a store. It puts, finds and lists entries, and sets
// when they were used and how long they stay. EntryRemover removes them.
//
// An entry names only objects that were whole and on the disk when it was put. Putting one is a
// transaction. An expired or damaged entry is none.
//
// Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "quire/kv_store/store_collector.h"
#include "quire/kv_store/store_core.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_index.h"
#include "quire/kv_store/store_objects.h"
#include "quire/result.h"

namespace quire::kv_store {

class StoreEntries {
 public:
  // Borrows all three, which must outlive the object.
  StoreEntries(StoreCore& core, const StoreObjects& objects, StoreCollector& collector)
      : core_(core), objects_(objects), collector_(collector) {}

  // Puts or replaces an entry and sets its tokens, bytes and times (store_entry.h). Fails with
  // kNotFound that names an object that is not, or no longer, there: put it and try again. Fails
  // with kInvalidArgument for a range of an object beyond the tokens that it has. Above max_bytes
  // others go as by gc, never this one; the next put does what that fails to do.
  [[nodiscard]] Status put(StoreEntry entry);
  // Puts an entry unless the tenant has one of that key already. Returns true if it was put.
  [[nodiscard]] Result<bool> put_new(StoreEntry entry);

  // Returns the entry, or nullopt if it is absent, expired or damaged. Counts as no use (touch).
  [[nodiscard]] Result<std::optional<StoreEntry>> find(std::string_view key,
                                                       std::string_view tenant) const;
  // Returns the entry, or kNotFound that names key and tenant.
  [[nodiscard]] Result<StoreEntry> get(std::string_view key, std::string_view tenant) const;
  // Returns true if find() would return an entry.
  [[nodiscard]] Result<bool> has(std::string_view key, std::string_view tenant) const;
  // Returns entries, least recently used first, without expired and damaged ones.
  [[nodiscard]] Result<std::vector<StoreEntry>> list(const EntryFilter& filter = {}) const;

  // Counts a use now. Fails with kNotFound if there is no such entry.
  [[nodiscard]] Status touch(std::string_view key, std::string_view tenant);
  // Counts uses at their times, together. Ignores entries that are not there. Waits for other
  // writers, not for the disk.
  [[nodiscard]] Status touch(const LastUses& uses, std::string_view tenant);
  [[nodiscard]] Status pin(std::string_view key, std::string_view tenant, bool pinned);
  // Sets how long the entry is kept after its last use, which this call is; absent: forever. Fails
  // with kInvalidArgument below 0 and above kMaxTtlMs.
  [[nodiscard]] Status set_ttl(std::string_view key, std::string_view tenant,
                               std::optional<std::int64_t> ttl_ms);

 private:
  [[nodiscard]] Result<bool> put(StoreEntry entry, bool may_replace);
  [[nodiscard]] Error no_entry(std::string_view key, std::string_view tenant) const;
  // Returns kNotFound where an update changed nothing.
  [[nodiscard]] Status changed(const Result<bool>& found, std::string_view key,
                               std::string_view tenant) const;

  StoreCore& core_;
  const StoreObjects& objects_;
  StoreCollector& collector_;
};

}  // namespace quire::kv_store
