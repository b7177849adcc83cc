// Repair of a store: makes a new index in place of a damaged or missing one.
#pragma once

#include <cstdint>
#include <filesystem>

#include "quire/result.h"

namespace quire::kv_store {

// Sets the index of the store aside (index_aside.h). Makes a new one of the entries that can still
// be read and whose objects are all there, as old as they were. Returns how many. The store is
// closed everywhere. Fails with kCorrupt where none is kept though there were entries or objects
// are there. Fails with kIo for what the system refuses (a full disk), and with kUnsupported for an
// index of a later version. Then the old one stays. `force` makes an empty index, and takes what
// this build can read of a later one.
[[nodiscard]] Result<std::int64_t> repair_store(const std::filesystem::path& path,
                                                bool force = false);

}  // namespace quire::kv_store
