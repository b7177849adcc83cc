#include "quire/kv_store/index_aside.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>  // renameat
#include <string>
#include <string_view>

#include "quire/base/str.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/store_layout.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

constexpr std::string_view kAsideName = "index.sqlite.damaged";
constexpr std::string_view kUnreadEnding = "-unread";
constexpr std::array<std::string_view, 2> kBesideEndings = {kLogEnding, "-shm"};

bool has_file(const Folder& folder, const std::string& name) {
  struct stat info{};
  return ::fstatat(folder.descriptor.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0;
}

void remove_file(const Folder& folder, const std::string& name) {
  ::unlinkat(folder.descriptor.get(), name.c_str(), 0);
}

}  // namespace

Status rename_file(const Folder& from, const std::string& name, const Folder& to,
                   const std::string& new_name) {
  // NOLINTNEXTLINE(misc-include-cleaner): POSIX has it in <stdio.h>
  if (::renameat(from.descriptor.get(), name.c_str(), to.descriptor.get(), new_name.c_str()) != 0 &&
      errno != ENOENT) {
    return io_error(from.path / name, "rename", errno);
  }
  return {};
}

std::string next_aside(const Folder& folder) {
  std::string name(kAsideName);
  for (int number = 2;
       has_file(folder, name) && has_file(folder, base::str_cat(name, kUnreadEnding)); ++number) {
    name = base::str_cat(kAsideName, ".", number);
  }
  return name;
}

// Sets the index aside, the index file first: without it, its log belongs to the one that was set
// aside.
Status set_aside(const Folder& folder, const std::string& name) {
  remove_file(folder, base::str_cat(name, kUnreadEnding));
  for (const std::string_view ending : kBesideEndings) {
    remove_file(folder, base::str_cat(name, ending));
  }
  QUIRE_TRY_STATUS(rename_file(folder, kIndexName, folder, name));
  for (const std::string_view ending : kBesideEndings) {
    QUIRE_TRY_STATUS(rename_file(folder, base::str_cat(kIndexName, ending), folder,
                                 base::str_cat(name, ending)));
  }
  return {};
}

// Takes back an index that an interrupted repair has set aside, its log first. Without the folder
// of the repair beside it, what was set aside is what an earlier repair has done with.
Status take_back(const Folder& folder) {
  const std::string name = next_aside(folder);
  const bool cut_short =
      has_file(folder, kRepairName) && has_file(folder, name) && !has_file(folder, kIndexName);
  if (!cut_short) {
    return {};
  }
  for (const std::string_view ending : kBesideEndings) {
    QUIRE_TRY_STATUS(rename_file(folder, base::str_cat(name, ending), folder,
                                 base::str_cat(kIndexName, ending)));
  }
  return rename_file(folder, name, folder, kIndexName);
}

Status note_unread(const Folder& folder, const std::string& name) {
  if (!has_file(folder, name)) {
    return {};
  }
  const std::string note = base::str_cat(name, kUnreadEnding);
  const Descriptor made(::openat(folder.descriptor.get(), note.c_str(),
                                 O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (made.get() < 0 || ::fsync(folder.descriptor.get()) != 0) {
    return io_error(folder.path / note, "create", errno);
  }
  return {};
}

Result<std::string> why_unread(const Folder& folder) {
  std::string why;
  QUIRE_TRY_STATUS(for_each_name(folder.path, [&](const std::string& name) {
    std::string_view aside = name;
    if (name == kRepairName) {
      why = "a repair was cut short; `quire store repair` ends it";
    }
    if (!aside.starts_with(kAsideName) || !aside.ends_with(kUnreadEnding)) {
      return;
    }
    aside.remove_suffix(kUnreadEnding.size());
    if (why.empty() && has_file(folder, std::string(aside))) {
      why = base::str_cat((folder.path / aside).string(),
                          " could not be read whole and may name objects, so none is removed; "
                          "delete it to let them go");
    }
  }));
  return why;
}

}  // namespace quire::kv_store
