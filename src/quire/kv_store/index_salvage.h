// Reads the rest of an index, however damaged.
#pragma once

#include <vector>

#include "quire/kv_store/file_io.h"
#include "quire/kv_store/store_entry.h"
#include "quire/result.h"

namespace quire::kv_store {

struct Salvage {
  // The newest first; of one key and tenant there may be several, of which the first is the last
  // one put. Each is as it was written.
  std::vector<StoreEntry> entries;
  // False where the index may have held more.
  bool complete = true;
};

// Reads the index of `folder` and its log without changing them; without an index there is nothing.
// kUnsupported for an index of a later version, unless `any_version`; kIo for what the system
// refuses.
[[nodiscard]] Result<Salvage> salvage_index(const Folder& folder, bool any_version);

}  // namespace quire::kv_store
