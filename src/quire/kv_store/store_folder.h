// The folder of a store: made, recognised, locked. Its content is opened by others.
#pragma once

#include <filesystem>
#include <optional>

#include "quire/kv_store/file_io.h"
#include "quire/result.h"

namespace quire::kv_store {

struct StoreFolder {
  Folder folder;
  std::optional<FolderLock> lock;  // held while writable: two processes do not make a store at once
  [[nodiscard]] bool writable() const { return lock.has_value(); }
};

// Opens the store at `path`; `writable`: where the system allows it. `create` makes it (0700) where
// there is no folder or an empty one, if it can be written to. kInvalidArgument for a folder that
// is no store, kUnsupported for a later format, kNotFound for nothing there, kIo.
[[nodiscard]] Result<StoreFolder> open_store_folder(const std::filesystem::path& path,
                                                    bool writable, bool create);

// Returns kInvalidArgument unless the folder is a store already, kUnsupported for a later format.
[[nodiscard]] Status check_is_store(const Folder& folder);

// Tells whether the folder holds anything but what a store leaves that was killed while it was
// made.
[[nodiscard]] bool holds_something(const std::filesystem::path& path);

}  // namespace quire::kv_store
