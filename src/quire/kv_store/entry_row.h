// A row of the index, before it is believed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "quire/kv_store/store_entry.h"
#include "quire/result.h"

namespace quire::kv_store {

struct EntryRow {
  std::int64_t id = 0;
  StoreEntry entry;  // without `kind` and `ttl_ms`
  std::string kind;
  std::int64_t expires_ms = 0;           // 0: never
  std::optional<std::int64_t> checksum;  // none: a build from before checksums wrote it
};

// Returns whether the row says what was written: its checksum is that of the entry, or, without
// one, its tokens are those of its parts.
[[nodiscard]] bool is_as_written(const EntryRow& row);

// Returns the entry. kCorrupt naming the row where no writer of ours can have written it.
[[nodiscard]] Result<StoreEntry> entry_of(EntryRow row);

}  // namespace quire::kv_store
