#include "quire/kv_store/store_objects.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "quire/base/file_time.h"
#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/index_aside.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/saved_states.h"
#include "quire/kv_store/sqlite.h"
#include "quire/kv_store/store_core.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_layout.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

bool same_kv(const KVFileContent& a, const KVFileContent& b) {
  if (!(a.fingerprint == b.fingerprint) || a.runs.size() != b.runs.size() ||
      !geometry_difference(a.geometry, b.geometry).empty() || !same_states(a.states, b.states)) {
    return false;
  }
  for (std::size_t i = 0; i < a.runs.size(); ++i) {
    if (a.runs[i].start_position != b.runs[i].start_position ||
        a.runs[i].lost_blocks != b.runs[i].lost_blocks ||
        a.runs[i].lost_parts != b.runs[i].lost_parts || a.runs[i].type != b.runs[i].type ||
        a.runs[i].tokens != b.runs[i].tokens) {
      return false;
    }
  }
  return true;
}

// Returns the hash in "<hash>.qkv", or "".
std::string hash_of(std::string_view file_name) {
  if (!file_name.ends_with(kObjectEnding)) {
    return {};
  }
  file_name.remove_suffix(kObjectEnding.size());
  return is_hash(file_name) ? std::string(file_name) : std::string();
}

}  // namespace

Result<Folder> StoreObjects::folder_of(const std::string& hash, bool create) const {
  if (!is_hash(hash)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("object ", base::quoted(hash), " is not 64 hexadecimal digits")};
  }
  return core_.objects_folder().open_in(hash.substr(0, kFolderDigits), create);
}

Result<StoreObjects::FileIdentity> StoreObjects::identify(const Folder& folder,
                                                          const std::string& hash) {
  struct stat info{};
  const std::string name = object_file_name(hash);
  if (::fstatat(folder.descriptor.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
    return io_error(folder.path / name, "examine", errno);
  }
  return FileIdentity{
      .inode = info.st_ino, .bytes = info.st_size, .changed_ns = base::modified_ns(info)};
}

Status StoreObjects::note_whole(const Folder& folder, const std::string& hash,
                                const KVFileContent& content) {
  QUIRE_TRY(const FileIdentity file, identify(folder, hash));
  whole_[hash] = {.file = file, .tokens = content.num_tokens()};
  return {};
}

Result<KVFile> StoreObjects::open(const std::string& hash) const {
  QUIRE_TRY(const Folder folder, folder_of(hash, false));
  const std::string name = object_file_name(hash);
  QUIRE_TRY(Descriptor descriptor, open_file(folder, name));
  QUIRE_TRY(KVFile file, KVFile::open(std::move(descriptor), folder.path / name));
  if (file.content().object_hash != hash) {
    return {ErrorCode::kCorrupt,
            base::str_cat((folder.path / name).string(), " holds another object, ",
                          base::quoted(file.content().object_hash))};
  }
  return file;
}

bool StoreObjects::is_there(const std::string& hash) const {
  const auto folder = folder_of(hash, false);
  return folder.ok() && identify(*folder, hash).ok();
}

Status StoreObjects::check(const std::string& hash) const {
  const auto file = open(hash);
  return file.ok() ? file->verify() : Status(file.error());
}

Result<bool> StoreObjects::has(const std::string& hash, const KVFileContent& content) {
  const auto file = open(hash);
  if (!file.ok()) {
    return false;
  }
  if (!same_kv(file->content(), content)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("object ", hash,
                          " holds other tokens or is of another model; a hash "
                          "must say all of what the KV is")};
  }
  QUIRE_TRY(const Folder folder, folder_of(hash, false));
  QUIRE_TRY(const FileIdentity now, identify(folder, hash));
  const auto known = whole_.find(hash);
  if ((known == whole_.end() || !(known->second.file == now)) && !file->verify().ok()) {
    return false;
  }
  // Young again: gc leaves it alone until the entry that will name it is there.
  if (::utimensat(folder.descriptor.get(), object_file_name(hash).c_str(), nullptr,
                  AT_SYMLINK_NOFOLLOW) != 0) {
    return false;
  }
  return note_whole(folder, hash, content).ok();
}

Result<std::int64_t> StoreObjects::put(const std::string& hash, KVFileContent content,
                                       const PagedPool& pool,
                                       std::span<const std::vector<BlockId>> blocks,
                                       std::span<const std::span<const std::byte>> states) {
  QUIRE_TRY_STATUS(core_.check_writable());
  QUIRE_TRY(const Folder folder, folder_of(hash, true));
  QUIRE_TRY(const bool there, has(hash, content));
  if (there) {
    return std::int64_t{0};
  }
  content.object_hash = hash;
  WriteOptions how = core_.options().write;
  how.states = states;
  QUIRE_TRY(const std::int64_t bytes,
            write_kv_file(folder, object_file_name(hash), content, pool, blocks, how));
  QUIRE_TRY_STATUS(note_whole(folder, hash, content));
  core_.allowance().spend(bytes);
  return bytes;
}

Status StoreObjects::adopt(NewFile& file, const std::string& hash, const KVFileContent& content) {
  QUIRE_TRY(const bool there, has(hash, content));
  if (there) {
    return {};  // the own one stays
  }
  QUIRE_TRY_STATUS(file.commit(core_.options().write.sync));
  QUIRE_TRY(const Folder folder, folder_of(hash, false));
  return note_whole(folder, hash, content);
}

// Checks that an entry's ranges lie inside its objects. A damaged object is a miss to its readers;
// its tokens are not known.
Status StoreObjects::check_ranges(const StoreEntry& entry, const std::string& hash,
                                  const FileIdentity& file) const {
  std::int64_t tokens = 0;
  if (const auto known = whole_.find(hash); known != whole_.end() && known->second.file == file) {
    tokens = known->second.tokens;
  } else if (const auto object = open(hash); object.ok()) {
    tokens = object->content().num_tokens();
  } else {
    return {};
  }
  for (const ObjectRange& part : entry.parts) {
    if (part.object == hash && part.first_token + part.tokens > tokens) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("store entry: ", part.tokens, " tokens from token ", part.first_token,
                            " of object ", hash, " on, which has ", tokens)};
    }
  }
  return {};
}

Result<std::int64_t> StoreObjects::check_named(const StoreEntry& entry) const {
  std::int64_t bytes = 0;
  for (const std::string& hash : objects_of(entry)) {
    QUIRE_TRY(const Folder folder, folder_of(hash, false));
    QUIRE_TRY(const FileIdentity file, identify(folder, hash));
    QUIRE_TRY_STATUS(check_ranges(entry, hash, file));
    bytes += file.bytes;
  }
  return bytes;
}

Status StoreObjects::for_each_file(
    const std::function<void(const Folder&, const std::string&)>& visit) const {
  Status listed;
  QUIRE_TRY_STATUS(for_each_name(core_.objects_folder().path, [&](const std::string& item) {
    const auto folder = core_.objects_folder().open_in(item, false);
    if (!folder.ok() || !listed.ok()) {
      return;  // a stray file or link: nothing of ours
    }
    listed = for_each_name(folder->path, [&](const std::string& name) { visit(*folder, name); });
  }));
  return listed;
}

Result<std::unordered_map<std::string, StoredObject>> StoreObjects::scan() const {
  std::unordered_map<std::string, StoredObject> objects;
  QUIRE_TRY_STATUS(for_each_file([&](const Folder& folder, const std::string& name) {
    struct stat info{};
    const std::string hash = hash_of(name);
    if (!hash.empty() && folder.path.filename() == hash.substr(0, kFolderDigits) &&
        ::fstatat(folder.descriptor.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) {
      objects[hash] = {.bytes = info.st_size, .modified_ms = base::modified_ms(info)};
    }
  }));
  return objects;
}

Result<RemovedObjects> StoreObjects::remove_unnamed(const std::unordered_set<std::string>& hashes) {
  RemovedObjects removed;
  QUIRE_TRY(const std::string unread, why_unread(core_.folder()));
  if (hashes.empty() || !unread.empty()) {
    return removed;
  }
  QUIRE_TRY(const Transaction lock, core_.index().begin());  // nobody names an object meanwhile
  for (const std::string& hash : hashes) {
    QUIRE_TRY(const bool named, core_.index().is_referenced(hash));
    const auto folder = folder_of(hash, false);
    if (named || !folder.ok()) {
      continue;
    }
    const auto file = identify(*folder, hash);
    const std::string name = object_file_name(hash);
    if (file.ok() && ::unlinkat(folder->descriptor.get(), name.c_str(), 0) == 0) {
      ++removed.objects;
      removed.bytes += file->bytes;
    }
    forget(hash);
  }
  return removed;
}

}  // namespace quire::kv_store
