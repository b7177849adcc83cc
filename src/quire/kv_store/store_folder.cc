#include "quire/kv_store/store_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include "quire/base/str.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/store_layout.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

constexpr std::string_view kFormatStart = "quire store ";
constexpr int kFormatVersion = 1;

Status no_store(const Folder& folder, std::string_view why) {
  return {ErrorCode::kInvalidArgument,
          base::str_cat(folder.path.string(), " is not a quire store: ", why)};
}

// Makes the folder `path` and those above it that are missing. They are there after a loss of
// power, too: each folder above is synced.
Status make_folders(const std::filesystem::path& path, mode_t mode) {
  std::error_code failure;
  const std::filesystem::path parent = path.parent_path();
  if (!std::filesystem::exists(parent, failure)) {
    QUIRE_TRY_STATUS(make_folders(parent, 0777));
  }
  if (::mkdir(path.c_str(), mode) != 0 && errno != EEXIST) {
    return io_error(path, "create store", errno);
  }
  if (const auto above = Folder::open(parent); above.ok()) {  // else it may be written, not read
    ::fsync(above->descriptor.get());
  }
  return {};
}

bool may_write(const Folder& folder) {
  return ::faccessat(folder.descriptor.get(), ".", W_OK | X_OK, AT_EACCESS) == 0;
}

Status write_format(const Folder& folder) {
  const std::string text = base::str_cat(kFormatStart, kFormatVersion, "\n");
  QUIRE_TRY(NewFile file, NewFile::create(folder, kFormatName));
  QUIRE_TRY_STATUS(write_at(file.descriptor(), std::as_bytes(std::span(text)), 0, file.path()));
  return file.commit(true);
}

Status check_format(const Folder& folder) {
  QUIRE_TRY(const Descriptor file, open_file(folder, kFormatName));
  QUIRE_TRY(const std::int64_t size, file_size(file, folder.path / kFormatName));
  std::string text(static_cast<std::size_t>(std::min<std::int64_t>(size, 64)), '\0');
  QUIRE_TRY_STATUS(read_at(file, std::as_writable_bytes(std::span(text)), 0, folder.path));
  int version = 0;
  const char* end = text.data() + text.size();
  if (!text.starts_with(kFormatStart) ||
      std::from_chars(text.data() + kFormatStart.size(), end, version).ec != std::errc()) {
    return no_store(folder, "its file \"format\" says something else");
  }
  if (version != kFormatVersion) {
    return {ErrorCode::kUnsupported,
            base::str_cat(folder.path.string(), ": store format version ", version,
                          ", this build reads version ", kFormatVersion)};
  }
  return {};
}

// Makes what a new store needs. The caller holds the lock of the folder.
Status set_up(const Folder& folder) {
  Status format = check_format(folder);
  if (format.ok() || format.error().code != ErrorCode::kNotFound) {
    return format;
  }
  if (holds_something(folder.path)) {
    return no_store(folder, "it holds other files and no file \"format\"");
  }
  return write_format(folder);
}

}  // namespace

bool holds_something(const std::filesystem::path& path) {
  bool holds = false;
  const Status listed = for_each_name(
      path, [&](const std::string& name) { holds = holds || !name.starts_with(kTemporaryPrefix); });
  return holds || !listed.ok();
}

Status check_is_store(const Folder& folder) {
  Status format = check_format(folder);
  return !format.ok() && format.error().code == ErrorCode::kNotFound
             ? no_store(folder, "it has no file \"format\"")
             : format;
}

Result<StoreFolder> open_store_folder(const std::filesystem::path& given, bool writable,
                                      bool create) {
  QUIRE_TRY(const std::filesystem::path path, resolved(given));
  if (std::error_code failure; writable && create && !std::filesystem::exists(path, failure)) {
    QUIRE_TRY_STATUS(make_folders(path, 0700));
  }
  StoreFolder store;
  QUIRE_TRY(store.folder, Folder::open(path));
  if (writable && may_write(store.folder)) {
    store.lock.emplace(store.folder);
  }
  QUIRE_TRY_STATUS(store.writable() && create ? set_up(store.folder)
                                              : check_is_store(store.folder));
  return store;
}

}  // namespace quire::kv_store
