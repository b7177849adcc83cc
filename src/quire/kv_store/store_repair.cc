// A new index in place of a damaged one. A process that dies here at any point leaves a store that
// the next repair makes as much of: the new index gets its name when it is whole, and the old one
// has its own or that of one set aside.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>  // renameat
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/kv_store/entry.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/store_folder.h"
#include "quire/kv_store/store_index.h"
#include "quire/kv_store/store_layout.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

constexpr const char* kDamagedName = "index.sqlite.damaged";
constexpr const char* kNewName = ".tmp-repair";  // a folder
constexpr std::array<std::string_view, 2> kLogEndings = {"-wal", "-shm"};

bool is_there(const Folder& folder, const char* name) {
  struct stat info{};
  return ::fstatat(folder.descriptor.get(), name, &info, AT_SYMLINK_NOFOLLOW) == 0;
}

// What is not there stays so.
Status rename_file(const Folder& from, const std::string& name, const Folder& to,
                   const std::string& new_name) {
  // NOLINTNEXTLINE(misc-include-cleaner): POSIX has it in <stdio.h>
  if (::renameat(from.descriptor.get(), name.c_str(), to.descriptor.get(), new_name.c_str()) != 0 &&
      errno != ENOENT) {
    return io_error(from.path / name, "rename", errno);
  }
  return {};
}

// The index first: without it, its log belongs to the one that was set aside.
Status set_aside(const Folder& folder) {
  for (const std::string_view ending : kLogEndings) {
    const std::string earlier = base::str_cat(kDamagedName, ending);
    ::unlinkat(folder.descriptor.get(), earlier.c_str(), 0);
  }
  QUIRE_TRY_STATUS(rename_file(folder, kIndexName, folder, kDamagedName));
  for (const std::string_view ending : kLogEndings) {
    QUIRE_TRY_STATUS(rename_file(folder, base::str_cat(kIndexName, ending), folder,
                                 base::str_cat(kDamagedName, ending)));
  }
  return {};
}

// What a repair that was cut short has set aside becomes the index again, its log first. Without
// the new one beside it, it is what an earlier repair has done with.
Status take_back(const Folder& folder) {
  const bool cut_short =
      is_there(folder, kNewName) && is_there(folder, kDamagedName) && !is_there(folder, kIndexName);
  if (!cut_short) {
    return {};
  }
  for (const std::string_view ending : kLogEndings) {
    QUIRE_TRY_STATUS(rename_file(folder, base::str_cat(kDamagedName, ending), folder,
                                 base::str_cat(kIndexName, ending)));
  }
  return rename_file(folder, kDamagedName, folder, kIndexName);
}

// Closing an index takes its log over; where that failed, the file by itself is not all of it.
Status check_complete(const Folder& beside) {
  const std::string log = base::str_cat(kIndexName, kLogEndings.front());
  return is_there(beside, log.c_str())
             ? Status(ErrorCode::kIo,
                      base::str_cat("cannot complete ", (beside.path / kIndexName).string(),
                                    "; make room on the disk and try again"))
             : Status();
}

Status remove_folder(const std::filesystem::path& path) {
  std::error_code failure;
  std::filesystem::remove_all(path, failure);
  return failure ? Status(io_error(path, "remove", failure.value())) : Status();
}

// What can still be read of the index. What the system refuses, and an index of a later version,
// are errors: what is there may be whole.
Result<std::vector<Entry>> salvage(const Folder& folder) {
  const auto old = StoreIndex::open_writable(folder, true);
  if (!old.ok() && old.error().code != ErrorCode::kCorrupt) {
    return old.error();
  }
  return old.ok() ? old->salvage() : std::vector<Entry>();
}

}  // namespace

Result<std::int64_t> Store::make_index(const Folder& folder, const Folder& beside,
                                       const std::vector<Entry>& entries) {
  QUIRE_TRY(StoreIndex index, StoreIndex::open_writable(beside, true));
  QUIRE_TRY(Folder home, Folder::open(folder.path));
  QUIRE_TRY(Folder objects, home.open_in(kObjectsName, true));
  Store store(std::move(home), std::move(objects), std::move(index), {});
  std::int64_t kept = 0;
  for (const Entry& entry : entries) {
    const Status put = store.put_entry(entry);
    const bool lost = !put.ok() && (put.error().code == ErrorCode::kNotFound ||
                                    put.error().code == ErrorCode::kInvalidArgument);
    if (!put.ok() && !lost) {
      return put.error();  // of the system, not of the entry
    }
    kept += lost ? 0 : 1;
  }
  return kept;
}

Result<std::int64_t> Store::repair(const std::filesystem::path& path) {
  QUIRE_TRY(const Folder folder, Folder::open(path));
  QUIRE_TRY_STATUS(check_is_store(folder));
  QUIRE_TRY_STATUS(take_back(folder));
  QUIRE_TRY(const std::vector<Entry> entries, salvage(folder));
  QUIRE_TRY_STATUS(remove_folder(folder.path / kNewName));
  QUIRE_TRY(const Folder beside, folder.open_in(kNewName, true));
  auto kept = make_index(folder, beside, entries);
  if (const Status whole = kept.ok() ? check_complete(beside) : Status(kept.error()); !whole.ok()) {
    [[maybe_unused]] const Status removed = remove_folder(beside.path);
    return whole.error();
  }
  QUIRE_TRY_STATUS(set_aside(folder));
  QUIRE_TRY_STATUS(rename_file(beside, kIndexName, folder, kIndexName));
  ::fsync(folder.descriptor.get());
  QUIRE_TRY_STATUS(remove_folder(beside.path));
  return kept;
}

}  // namespace quire::kv_store
