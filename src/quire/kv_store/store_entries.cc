#include "quire/kv_store/store_entries.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/kv_store/sqlite.h"
#include "quire/kv_store/store_collector.h"
#include "quire/kv_store/store_core.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_index.h"
#include "quire/kv_store/store_objects.h"
#include "quire/result.h"

namespace quire::kv_store {

Status StoreEntries::put(StoreEntry entry) {
  QUIRE_TRY([[maybe_unused]] const bool put, put(std::move(entry), true));
  return {};
}

Result<bool> StoreEntries::put_new(StoreEntry entry) { return put(std::move(entry), false); }

Result<bool> StoreEntries::put(StoreEntry entry, bool may_replace) {
  QUIRE_TRY_STATUS(core_.check_writable());
  entry.accessed_ms = entry.accessed_ms == 0 ? core_.now_ms() : entry.accessed_ms;
  entry.created_ms = entry.created_ms == 0 ? core_.now_ms() : entry.created_ms;
  entry.tokens = tokens_of(entry);
  entry.bytes = 0;
  QUIRE_TRY_STATUS(check_entry(entry));  // as it will be written
  // Under the lock no gc can remove what is found here.
  QUIRE_TRY(Transaction transaction, core_.index().begin());
  if (!may_replace) {
    QUIRE_TRY(const std::optional<StoreEntry> there, core_.index().find(entry.key, entry.tenant));
    if (there) {
      return false;
    }
  }
  QUIRE_TRY(entry.bytes, objects_.check_named(entry));
  QUIRE_TRY_STATUS(core_.index().put(entry));
  QUIRE_TRY_STATUS(transaction.commit());
  collector_.keep_below_limit(entry);
  return true;
}

Result<std::optional<StoreEntry>> StoreEntries::find(std::string_view key,
                                                     std::string_view tenant) const {
  QUIRE_TRY(std::optional<StoreEntry> entry, core_.index().find(key, tenant));
  if (entry && has_expired(*entry, core_.now_ms())) {
    entry.reset();
  }
  return entry;
}

Result<bool> StoreEntries::has(std::string_view key, std::string_view tenant) const {
  QUIRE_TRY(const std::optional<StoreEntry> entry, find(key, tenant));
  return entry.has_value();
}

Result<std::vector<StoreEntry>> StoreEntries::list(const EntryFilter& filter) const {
  QUIRE_TRY(std::vector<StoreEntry> entries, core_.index().list(filter));
  std::erase_if(entries,
                [&](const StoreEntry& entry) { return has_expired(entry, core_.now_ms()); });
  return entries;
}

Error StoreEntries::no_entry(std::string_view key, std::string_view tenant) const {
  return {.code = ErrorCode::kNotFound,
          .message = base::str_cat("the store ", core_.folder().path.string(), " has no entry ",
                                   base::quoted(key), " of tenant ", base::quoted(tenant))};
}

Result<StoreEntry> StoreEntries::get(std::string_view key, std::string_view tenant) const {
  QUIRE_TRY(std::optional<StoreEntry> entry, find(key, tenant));
  return entry ? Result<StoreEntry>(std::move(*entry)) : Result<StoreEntry>(no_entry(key, tenant));
}

Status StoreEntries::changed(const Result<bool>& found, std::string_view key,
                             std::string_view tenant) const {
  if (!found.ok()) {
    return found.error();
  }
  return *found ? Status() : Status(no_entry(key, tenant));
}

Status StoreEntries::touch(std::string_view key, std::string_view tenant) {
  QUIRE_TRY_STATUS(core_.check_writable());
  QUIRE_TRY(const std::int64_t known,
            core_.index().set_accessed({{std::string(key), core_.now_ms()}}, tenant));
  return changed(known > 0, key, tenant);
}

Status StoreEntries::touch(const LastUses& uses, std::string_view tenant) {
  QUIRE_TRY_STATUS(core_.check_writable());
  LastUses possible = uses;
  for (auto& [key, at_ms] : possible) {
    at_ms = possible_time_ms(at_ms);
  }
  QUIRE_TRY([[maybe_unused]] const std::int64_t known,
            core_.index().set_accessed(possible, tenant));
  return {};
}

Status StoreEntries::pin(std::string_view key, std::string_view tenant, bool pinned) {
  QUIRE_TRY_STATUS(core_.check_writable());
  return changed(core_.index().set_pinned(key, tenant, pinned), key, tenant);
}

Status StoreEntries::set_ttl(std::string_view key, std::string_view tenant,
                             std::optional<std::int64_t> ttl_ms) {
  QUIRE_TRY_STATUS(core_.check_writable());
  QUIRE_TRY_STATUS(check_ttl(ttl_ms));
  return changed(core_.index().set_ttl(key, tenant, ttl_ms, core_.now_ms()), key, tenant);
}

}  // namespace quire::kv_store
