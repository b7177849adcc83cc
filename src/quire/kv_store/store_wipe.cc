// Removing and wiping. A wipe marks the objects (.wipe-<name>, empty), takes the entry out, gives
// each object the name of its mark, overwrites it and removes it. Cut short at any point, either
// the entry is there with its KV whole, or what its mark says is done by the next wipe or gc.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>  // renameat
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/sqlite.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_folder.h"
#include "quire/kv_store/store_index.h"
#include "quire/kv_store/store_layout.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

constexpr std::size_t kWipePiece = std::size_t{1} << 20;
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
  const std::vector<std::byte> zeros(std::min(kWipePiece, static_cast<std::size_t>(size)));
  for (std::int64_t at = 0; at < size; at += static_cast<std::int64_t>(zeros.size())) {
    const auto piece = std::min<std::size_t>(zeros.size(), static_cast<std::size_t>(size - at));
    QUIRE_TRY_STATUS(write_at(file, std::span(zeros).first(piece), at, folder.path / name));
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

Status Store::mark_wipe(const std::string& hash) const {
  const auto folder = object_folder(hash, false);
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

void Store::unmark_wipe(const std::string& hash) const {
  const auto folder = object_folder(hash, false);
  struct stat info{};
  const std::string mark = mark_of(hash);
  if (folder.ok() &&
      ::fstatat(folder->descriptor.get(), mark.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
      info.st_size == 0) {  // else bytes of an earlier wipe that was cut short
    ::unlinkat(folder->descriptor.get(), mark.c_str(), 0);
  }
}

Status Store::wipe_object(const Folder& folder, const std::string& hash) const {
  QUIRE_TRY([[maybe_unused]] const bool begun, overwrite(folder, mark_of(hash)));
  QUIRE_TRY(const bool named, index_.is_referenced(hash));  // again, or still
  if (!named) {
    QUIRE_TRY_STATUS(rename_to_mark(folder, hash));
    QUIRE_TRY([[maybe_unused]] const bool done, overwrite(folder, mark_of(hash)));
  }
  ::unlinkat(folder.descriptor.get(), mark_of(hash).c_str(), 0);
  return {};
}

Status Store::finish_object_wipes() {
  std::vector<std::string> marked;
  QUIRE_TRY_STATUS(for_each_file([&](const Folder&, const std::string& name) {
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
  const FolderLock wiping(objects_);                  // who finds damage looks again behind it
  QUIRE_TRY(const Transaction lock, index_.begin());  // nobody names an object meanwhile
  Status first;
  for (const std::string& hash : marked) {
    const auto folder = object_folder(hash, false);
    const Status wiped = folder.ok() ? wipe_object(*folder, hash) : Status(folder.error());
    whole_.erase(hash);
    first = first.ok() ? wiped : first;
  }
  return first;
}

Result<bool> Store::remove(std::string_view key, std::string_view tenant, bool wipe) {
  QUIRE_TRY(const bool removed, remove_entry(key, tenant, wipe));
  // Also of one that is not there: an earlier wipe may have got no further.
  QUIRE_TRY_STATUS(wipe && check_writable().ok() ? finish_wipes() : Status());
  return removed;
}

Status Store::finish_wipes() {
  QUIRE_TRY_STATUS(check_writable());
  const Status wiped = finish_object_wipes();
  const Status forgotten = index_.forget_removed();
  if (!wiped.ok()) {
    return {ErrorCode::kIo,
            base::str_cat("removed, but not all of its KV is overwritten, until the next wipe (of "
                          "it again, too) or gc: ",
                          wiped.error().message)};
  }
  if (!forgotten.ok()) {
    return {forgotten.error().code,
            base::str_cat("removed and its KV overwritten, but its name and text are still in the "
                          "log, until the next wipe (of it again, too) or until the last process "
                          "closes the store: ",
                          forgotten.error().message)};
  }
  return {};
}

Result<bool> Store::remove_entry(std::string_view key, std::string_view tenant, bool wipe) {
  if (const Status writable = check_writable(); !writable.ok()) {
    QUIRE_TRY(const std::optional<StoreEntry> there, index_.find(key, tenant));
    return there ? Result<bool>(writable.error()) : false;
  }
  std::vector<std::string> marked;
  auto taken = take_out(key, tenant, wipe ? &marked : nullptr);
  if (!taken.ok()) {
    for (const std::string& hash : marked) {
      unmark_wipe(hash);
    }
    return taken.error();
  }
  const std::optional<std::vector<std::string>> objects = std::move(taken).value();
  if (!objects) {
    return false;
  }
  if (!wipe) {
    GcReport report;
    QUIRE_TRY_STATUS(sweep({objects->begin(), objects->end()}, report));
  }
  return true;
}

// Marks for wiping those of `objects` that no entry names; `marked` gets them.
Status Store::mark_unnamed(std::span<const std::string> objects, std::vector<std::string>& marked) {
  for (const std::string& hash : objects) {
    QUIRE_TRY(const bool named, index_.is_referenced(hash));
    if (named) {
      continue;
    }
    marked.push_back(hash);
    QUIRE_TRY_STATUS(mark_wipe(hash));
  }
  return {};
}

Result<std::optional<std::vector<std::string>>> Store::take_out(std::string_view key,
                                                                std::string_view tenant,
                                                                std::vector<std::string>* marked) {
  using Objects = std::optional<std::vector<std::string>>;
  QUIRE_TRY(Transaction transaction, index_.begin());
  QUIRE_TRY(const std::optional<StoreEntry> entry, index_.find(key, tenant));
  if (!entry) {
    return Objects();
  }
  QUIRE_TRY_STATUS(index_.remove(key, tenant));
  std::vector<std::string> objects = objects_of(*entry);
  if (marked != nullptr) {
    QUIRE_TRY_STATUS(mark_unnamed(objects, *marked));
  }
  QUIRE_TRY_STATUS(transaction.commit());
  return Objects(std::move(objects));
}

}  // namespace quire::kv_store
