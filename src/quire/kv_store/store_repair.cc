#include "quire/kv_store/store_repair.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/index_aside.h"
#include "quire/kv_store/index_salvage.h"
#include "quire/kv_store/object_wipes.h"
#include "quire/kv_store/store_collector.h"
#include "quire/kv_store/store_core.h"
#include "quire/kv_store/store_entries.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_folder.h"
#include "quire/kv_store/store_index.h"
#include "quire/kv_store/store_layout.h"
#include "quire/kv_store/store_objects.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

// Checks that the closed index has taken its log over. Where it has not, the file by itself is not
// complete.
Status check_complete(const Folder& beside) {
  const std::string log = base::str_cat(kIndexName, kLogEnding);
  struct stat info{};
  return ::fstatat(beside.descriptor.get(), log.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0
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

struct NewIndex {
  std::int64_t entries = 0;
  std::int64_t objects = 0;  // objects of the store
};

// Makes an index in `beside` of those that have all their objects in `folder`.
Result<NewIndex> make_index(const Folder& folder, const Folder& beside,
                            const std::vector<StoreEntry>& entries) {
  QUIRE_TRY(StoreIndex index, StoreIndex::open_writable(beside, true));
  QUIRE_TRY(Folder home, Folder::open(folder.path));
  QUIRE_TRY(Folder objects_folder, home.open_in(kObjectsName, true));
  StoreCore core(std::move(home), std::move(objects_folder), std::move(index), {});
  StoreObjects objects(core);
  ObjectWipes wipes(core, objects);
  StoreCollector collector(core, objects, wipes);
  StoreEntries store_entries(core, objects, collector);
  NewIndex made;
  for (const StoreEntry& entry : entries) {
    const auto put = store_entries.put_new(entry);
    const bool lost = !put.ok() && (put.error().code == ErrorCode::kNotFound ||
                                    put.error().code == ErrorCode::kInvalidArgument);
    if (!put.ok() && !lost) {
      return put.error();  // an error of the system, not of the entry
    }
    made.entries += !lost && *put ? 1 : 0;
  }
  QUIRE_TRY(const auto there, objects.scan());
  made.objects = static_cast<std::int64_t>(there.size());
  return made;
}

// Does so, but fails with kCorrupt where the index would be empty and was not, unless `force`.
Result<NewIndex> make_index_of(const Salvage& salvage, const Folder& folder, const Folder& beside,
                               bool force) {
  QUIRE_TRY(const NewIndex made, make_index(folder, beside, salvage.entries));
  QUIRE_TRY_STATUS(check_complete(beside));
  const bool was_empty = salvage.complete && salvage.entries.empty() && made.objects == 0;
  if (made.entries == 0 && !was_empty && !force) {
    return {ErrorCode::kCorrupt,
            base::str_cat("no entry of ", (folder.path / kIndexName).string(), " can be kept, and ",
                          made.objects,
                          " objects are there; copy the folder if they matter, then "
                          "repair with --force (force=True) to begin with an empty index")};
  }
  return made;
}

}  // namespace

Result<std::int64_t> repair_store(const std::filesystem::path& path, bool force) {
  QUIRE_TRY(const Folder folder, Folder::open(path));
  QUIRE_TRY_STATUS(check_is_store(folder));
  QUIRE_TRY_STATUS(take_back(folder));
  QUIRE_TRY(const Salvage salvage, salvage_index(folder, force));
  QUIRE_TRY_STATUS(remove_folder(folder.path / kRepairName));
  QUIRE_TRY(const Folder beside, folder.open_in(kRepairName, true));
  const auto made = make_index_of(salvage, folder, beside, force);
  if (!made.ok()) {
    [[maybe_unused]] const Status removed = remove_folder(beside.path);
    return made.error();
  }
  const std::string aside = next_aside(folder);
  QUIRE_TRY_STATUS(set_aside(folder, aside));
  ::fsync(folder.descriptor.get());  // or the old log might stay beside the new index
  QUIRE_TRY_STATUS(rename_file(beside, kIndexName, folder, kIndexName));
  ::fsync(folder.descriptor.get());
  QUIRE_TRY_STATUS(salvage.complete ? Status() : note_unread(folder, aside));
  QUIRE_TRY_STATUS(remove_folder(beside.path));
  return made->entries;
}

}  // namespace quire::kv_store
