// The metadata of a checkpoint's entry: which parts are of which sequence.
#pragma once

#include <string>

#include "quire/kv_store/checkpoint.h"
#include "quire/kv_store/store_entry.h"
#include "quire/result.h"

namespace quire::kv_store {

// Returns the metadata of a checkpoint of a series.
[[nodiscard]] Result<std::string> describe_checkpoint(const Checkpoint& checkpoint,
                                                      const std::string& series);
// Reads what describe_checkpoint() wrote. Returns kCorrupt that names the checkpoint.
[[nodiscard]] Result<Checkpoint> read_checkpoint(StoreEntry entry);

}  // namespace quire::kv_store
