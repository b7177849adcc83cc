#include "quire/kv_store/store_core.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <utility>

#include "quire/base/str.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/store_folder.h"
#include "quire/kv_store/store_index.h"
#include "quire/kv_store/store_layout.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

Result<StoreIndex> open_index(const Folder& folder, const Folder& objects,
                              const StoreOptions& options) {
  struct stat index{};
  const bool there =
      ::fstatat(folder.descriptor.get(), kIndexName, &index, AT_SYMLINK_NOFOLLOW) == 0;
  if ((!there || (S_ISREG(index.st_mode) && index.st_size == 0)) && holds_something(objects.path)) {
    return {ErrorCode::kCorrupt,
            base::str_cat((folder.path / kIndexName).string(), there ? " is empty" : " is missing",
                          ", but there are objects; `quire store repair` makes a new one")};
  }
  return options.read_only ? StoreIndex::open_read_only(folder)
                           : StoreIndex::open_writable(folder, options.write.sync);
}

}  // namespace

std::int64_t system_now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

StoreCore::StoreCore(Folder folder, Folder objects, StoreIndex index, StoreOptions options)
    : folder_(std::move(folder)),
      objects_folder_(std::move(objects)),
      index_(std::move(index)),
      options_(std::move(options)) {}

Result<StoreCore> StoreCore::open(const std::filesystem::path& path, StoreOptions options) {
  QUIRE_TRY(StoreFolder opened, open_store_folder(path, !options.read_only, options.create));
  options.read_only = !opened.writable();
  QUIRE_TRY(Folder objects, opened.folder.open_in(kObjectsName, opened.writable()));
  QUIRE_TRY(StoreIndex index, open_index(opened.folder, objects, options));
  return StoreCore(std::move(opened.folder), std::move(objects), std::move(index),
                   std::move(options));
}

Status StoreCore::check_writable() const {
  if (options_.read_only) {
    return {
        ErrorCode::kIo,
        base::str_cat("the store ", folder_.path.string(),
                      " is open read-only; what changes it needs a folder that may be written to")};
  }
  return {};
}

}  // namespace quire::kv_store
