// EntryRemover: takes entries out of a store, and with them the objects that no other entry names.
//
// Thread rule: one thread at a time.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/kv_store/object_wipes.h"
#include "quire/kv_store/store_core.h"
#include "quire/kv_store/store_objects.h"
#include "quire/result.h"

namespace quire::kv_store {

class EntryRemover {
 public:
  // Borrows all three, which must outlive the object.
  EntryRemover(StoreCore& core, StoreObjects& objects, ObjectWipes& wipes)
      : core_(core), objects_(objects), wipes_(wipes) {}

  // Removes the entry, and the objects that no other entry names. Returns true if it was there.
  // `wipe` overwrites their bytes with zeros behind it, and removes from the index's log what that
  // says of the entry. File systems that write elsewhere (copy-on-write, SSDs, backups, snapshots)
  // may keep the old bytes all the same. Fails with kIo when the entry is removed, but bytes could
  // not be overwritten. Does so, too, when others read the index, so that the log stays. Then call
  // again.
  [[nodiscard]] Result<bool> remove(std::string_view key, std::string_view tenant,
                                    bool wipe = false);
  // Finishes wipes that failed or were cut short. Fails with kIo as remove() does.
  [[nodiscard]] Status finish_wipes();

 private:
  using Hashes = std::optional<std::vector<std::string>>;
  [[nodiscard]] Result<bool> remove_entry(std::string_view key, std::string_view tenant, bool wipe);
  // Removes the entry from the index. Returns its objects, or nullopt where there is no such entry.
  // With `marked` it marks them for a wipe and adds those to it.
  [[nodiscard]] Result<Hashes> take_out(std::string_view key, std::string_view tenant,
                                        std::vector<std::string>* marked);

  StoreCore& core_;
  StoreObjects& objects_;
  ObjectWipes& wipes_;
};

}  // namespace quire::kv_store
