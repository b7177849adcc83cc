#include "quire/kv_store/object_wipes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>  // renameat
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/str.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/sqlite.h"
#include "quire/kv_store/store_core.h"
#include "quire/kv_store/store_layout.h"
#include "quire/kv_store/store_objects.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

constexpr std::size_t kWipeBytes = std::size_t{1} << 20;
constexpr std::string_view kMarkPrefix = ".wipe-";

std::string mark_of(std::string_view hash) {
  return base::str_cat(kMarkPrefix, object_file_name(hash));
}

// Overwrites all of a regular file; returns whether it is there.
Result<bool> overwrite(const Folder& folder, const std::string& name) {
  const Descriptor file(::openat(folder.descriptor.get(), name.c_str(),
                                 O_WRONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) {
    return errno == ENOENT ? Result<bool>(false) : io_error(folder.path / name, "wipe", errno);
  }
  QUIRE_TRY(const std::int64_t size, file_size(file, folder.path / name));
  const std::vector<std::byte> zeros(std::min(kWipeBytes, static_cast<std::size_t>(size)));
  for (std::int64_t at = 0; at < size; at += static_cast<std::int64_t>(zeros.size())) {
    const auto slice = std::min<std::size_t>(zeros.size(), static_cast<std::size_t>(size - at));
    QUIRE_TRY_STATUS(write_at(file, std::span(zeros).first(slice), at, folder.path / name));
  }
  if (::fsync(file.get()) != 0) {
    return io_error(folder.path / name, "sync", errno);
  }
  return true;
}

// Gives the object the name of its mark; a link in its place stays, for nobody knows whose it is.
Status rename_to_mark(const Folder& folder, const std::string& hash) {
  const std::string name = object_file_name(hash);
  if (const auto file = open_file(folder, name); !file.ok()) {
    return file.error().code == ErrorCode::kNotFound ? Status() : Status(file.error());
  }
  // NOLINTNEXTLINE(misc-include-cleaner): POSIX has it in <stdio.h>
  if (::renameat(folder.descriptor.get(), name.c_str(), folder.descriptor.get(),
                 mark_of(hash).c_str()) != 0) {
    return io_error(folder.path / name, "wipe", errno);
  }
  return {};
}

}  // namespace

Status ObjectWipes::mark(const std::string& hash) const {
  const auto folder = objects_.folder_of(hash, false);
  if (!folder.ok()) {
    return folder.error().code == ErrorCode::kNotFound ? Status() : Status(folder.error());
  }
  const std::string mark = mark_of(hash);
  const Descriptor made(::openat(folder->descriptor.get(), mark.c_str(),
                                 O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600));
  if (made.get() < 0 || ::fsync(folder->descriptor.get()) != 0) {
    return io_error(folder->path / mark, "create", errno);
  }
  return {};
}

void ObjectWipes::unmark(const std::string& hash) const {
  const auto folder = objects_.folder_of(hash, false);
  struct stat info{};
  const std::string mark = mark_of(hash);
  if (folder.ok() &&
      ::fstatat(folder->descriptor.get(), mark.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
      info.st_size == 0) {  // else bytes of an earlier wipe that was cut short
    ::unlinkat(folder->descriptor.get(), mark.c_str(), 0);
  }
}

Status ObjectWipes::wipe(const Folder& folder, const std::string& hash) const {
  QUIRE_TRY([[maybe_unused]] const bool begun, overwrite(folder, mark_of(hash)));
  QUIRE_TRY(const bool named, core_.index().is_referenced(hash));  // again, or still
  if (!named) {
    QUIRE_TRY_STATUS(rename_to_mark(folder, hash));
    QUIRE_TRY([[maybe_unused]] const bool done, overwrite(folder, mark_of(hash)));
  }
  ::unlinkat(folder.descriptor.get(), mark_of(hash).c_str(), 0);
  return {};
}

Status ObjectWipes::finish() {
  std::vector<std::string> marked;
  QUIRE_TRY_STATUS(objects_.for_each_file([&](const Folder&, const std::string& name) {
    std::string_view hash = name;
    if (hash.starts_with(kMarkPrefix) && hash.ends_with(kObjectEnding)) {
      hash.remove_prefix(kMarkPrefix.size());
      hash.remove_suffix(kObjectEnding.size());
      marked.emplace_back(hash);
    }
  }));
  if (marked.empty()) {
    return {};
  }
  const FolderLock wiping(core_.objects_folder());  // who finds damage looks again behind it
  QUIRE_TRY(const Transaction lock, core_.index().begin());  // nobody names an object meanwhile
  Status first;
  for (const std::string& hash : marked) {
    const auto folder = objects_.folder_of(hash, false);
    const Status wiped = folder.ok() ? wipe(*folder, hash) : Status(folder.error());
    objects_.forget(hash);
    first = first.ok() ? wiped : first;
  }
  return first;
}

Status ObjectWipes::mark_unnamed(std::span<const std::string> hashes,
                                 std::vector<std::string>& marked) {
  for (const std::string& hash : hashes) {
    QUIRE_TRY(const bool named, core_.index().is_referenced(hash));
    if (named) {
      continue;
    }
    marked.push_back(hash);
    QUIRE_TRY_STATUS(mark(hash));
  }
  return {};
}

}  // namespace quire::kv_store
