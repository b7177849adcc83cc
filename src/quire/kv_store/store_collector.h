// StoreCollector: removes what a store needs no more. That is expired entries, entries above its
// limit, objects that no entry names, files that killed writers left, and weights files of no use.
//
// Objects go under the write lock of the index, and only while no entry names them. While the
// folder has an index that was set aside and could not be read whole, none goes.
//
// Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "quire/kv_store/object_wipes.h"
#include "quire/kv_store/store_core.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_eviction.h"
#include "quire/kv_store/store_objects.h"
#include "quire/result.h"

namespace quire::kv_store {

// The result of a collection.
struct GcReport {
  std::int64_t expired_entries = 0;
  std::int64_t evicted_entries = 0;      // least recently used, to get below max_bytes
  std::int64_t removed_objects = 0;      // no entry named them any more
  std::int64_t removed_bytes = 0;        // bytes of the removed objects
  std::int64_t removed_temporaries = 0;  // removed files of writers that were killed
  std::int64_t removed_weights = 0;      // weights files that no start would use
  std::int64_t removed_weight_bytes = 0;
  // Objects that are left; of a tenant's store, those that its entries name.
  std::int64_t objects = 0;
  std::int64_t bytes = 0;         // bytes of the objects that are left
  std::int64_t kept_objects = 0;  // objects left that no entry names, but a damaged index may
  std::string kept_why;           // why they were kept, and how to end that
};

class StoreCollector {
 public:
  // Borrows all three, which must outlive the object.
  StoreCollector(StoreCore& core, StoreObjects& objects, ObjectWipes& wipes)
      : core_(core), objects_(objects), wipes_(wipes) {}

  // Removes expired entries, then entries beyond max_bytes (store_eviction.h; never pinned ones).
  // Removes objects that no entry names and that are older than grace_ms. Removes what killed
  // writers left, and weights files that no start would use. An object that another process is
  // about to name may go: its put says so. Objects that no entry names stay while rows of the index
  // are damaged.
  [[nodiscard]] Result<GcReport> gc();
  // Collects when there may be more than max_bytes. `written`, which was put just now, stays.
  // Leaves to the next call what fails.
  void keep_below_limit(const StoreEntry& written);

 private:
  // The state that gc decides from.
  struct Standing {
    std::vector<StoreEntry> entries;  // least recently used first, expired ones too
    std::string why_kept;             // why objects stay that no entry names; "": they do not
    bool all_kept = false;            // true: objects of entries that go stay, too
  };
  [[nodiscard]] Result<Standing> standing() const;
  // Returns true if gc may remove entries of the tenant.
  [[nodiscard]] bool is_ours(const std::string& tenant) const;
  [[nodiscard]] Status sweep(const std::unordered_set<std::string>& hashes, GcReport& report);
  // Removes expired entries, and evicts others until the limits hold. `keep` is the entry that was
  // put just now and stays whatever its size, or null.
  [[nodiscard]] Status expire_and_evict(const ObjectSizes& objects, const StoreEntry* keep,
                                        std::unordered_set<std::string>& freed, GcReport& report);
  [[nodiscard]] Result<GcReport> collect(const StoreEntry* keep);
  // Says in the report what is left.
  [[nodiscard]] Status count_left(GcReport& report) const;
  [[nodiscard]] std::int64_t remove_temporaries() const;

  StoreCore& core_;
  StoreObjects& objects_;
  ObjectWipes& wipes_;
};

}  // namespace quire::kv_store
