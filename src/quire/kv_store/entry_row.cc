#include "quire/kv_store/entry_row.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "quire/base/str.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_layout.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

// Returns how long an entry is kept after its last use. The row holds the time at which that ends.
std::optional<std::int64_t> ttl_of(std::int64_t expires_ms, std::int64_t accessed_ms) {
  if (expires_ms <= 0) {
    return expires_ms == 0 ? std::nullopt : std::optional(expires_ms);  // never; or damage
  }
  const std::int64_t ttl = expires_ms - std::max<std::int64_t>(accessed_ms, 0);
  return std::clamp<std::int64_t>(ttl, 0, kMaxTtlMs);
}

Error damaged_row(const EntryRow& row, const std::string& why) {
  return {.code = ErrorCode::kCorrupt,
          .message = base::str_cat(kIndexName, ": row ", row.id, " is damaged: ", why,
                                   "; `quire store repair` keeps the entries that can be read")};
}

}  // namespace

bool is_as_written(const EntryRow& row) {
  const auto kind = parse_entry_kind(row.kind);
  if (!kind.ok()) {
    return false;
  }
  if (!row.checksum) {
    return row.entry.tokens == tokens_of(row.entry);
  }
  StoreEntry entry = row.entry;
  entry.kind = *kind;
  return *row.checksum == static_cast<std::int64_t>(entry_checksum(entry));
}

Result<StoreEntry> entry_of(EntryRow row) {
  const auto kind = parse_entry_kind(row.kind);
  if (!kind.ok()) {
    return damaged_row(row, kind.error().message);
  }
  row.entry.kind = *kind;
  row.entry.ttl_ms = ttl_of(row.expires_ms, row.entry.accessed_ms);
  if (const Status checked = check_entry(row.entry); !checked.ok()) {
    return damaged_row(row, checked.error().message);
  }
  if (!is_as_written(row)) {
    return damaged_row(row, "its checksum is wrong");
  }
  return std::move(row.entry);
}

}  // namespace quire::kv_store
