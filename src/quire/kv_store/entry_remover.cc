#include "quire/kv_store/entry_remover.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/kv_store/object_wipes.h"
#include "quire/kv_store/sqlite.h"
#include "quire/kv_store/store_core.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_index.h"
#include "quire/kv_store/store_objects.h"
#include "quire/result.h"

namespace quire::kv_store {

Result<bool> EntryRemover::remove(std::string_view key, std::string_view tenant, bool wipe) {
  QUIRE_TRY(const bool removed, remove_entry(key, tenant, wipe));
  // Wipes are finished for an entry that is not there, too: an earlier wipe may have got no
  // further.
  QUIRE_TRY_STATUS(wipe && core_.check_writable().ok() ? finish_wipes() : Status());
  return removed;
}

Status EntryRemover::finish_wipes() {
  QUIRE_TRY_STATUS(core_.check_writable());
  const Status wiped = wipes_.finish();
  const Status forgotten = core_.index().forget_removed();
  if (!wiped.ok()) {
    return {ErrorCode::kIo,
            base::str_cat("removed, but not all of its KV is overwritten, until the next wipe (of "
                          "it again, too) or gc: ",
                          wiped.error().message)};
  }
  if (!forgotten.ok()) {
    return {forgotten.error().code,
            base::str_cat("removed and its KV overwritten, but its name and text are still in the "
                          "log, until the next wipe (of it again, too) or until the last process "
                          "closes the store: ",
                          forgotten.error().message)};
  }
  return {};
}

Result<bool> EntryRemover::remove_entry(std::string_view key, std::string_view tenant, bool wipe) {
  if (const Status writable = core_.check_writable(); !writable.ok()) {
    QUIRE_TRY(const std::optional<StoreEntry> there, core_.index().find(key, tenant));
    return there ? Result<bool>(writable.error()) : false;
  }
  std::vector<std::string> marked;
  auto taken = take_out(key, tenant, wipe ? &marked : nullptr);
  if (!taken.ok()) {
    for (const std::string& hash : marked) {
      wipes_.unmark(hash);
    }
    return taken.error();
  }
  const Hashes objects = std::move(taken).value();
  if (!objects) {
    return false;
  }
  if (!wipe) {
    QUIRE_TRY([[maybe_unused]] const RemovedObjects removed,
              objects_.remove_unnamed({objects->begin(), objects->end()}));
  }
  return true;
}

Result<EntryRemover::Hashes> EntryRemover::take_out(std::string_view key, std::string_view tenant,
                                                    std::vector<std::string>* marked) {
  QUIRE_TRY(Transaction transaction, core_.index().begin());
  QUIRE_TRY(const std::optional<StoreEntry> entry, core_.index().find(key, tenant));
  if (!entry) {
    return Hashes();
  }
  QUIRE_TRY_STATUS(core_.index().remove(key, tenant));
  std::vector<std::string> objects = objects_of(*entry);
  if (marked != nullptr) {
    QUIRE_TRY_STATUS(wipes_.mark_unnamed(objects, *marked));
  }
  QUIRE_TRY_STATUS(transaction.commit());
  return Hashes(std::move(objects));
}

}  // namespace quire::kv_store
