#include "quire/kv_store/store.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/file_time.h"
#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/sqlite.h"
#include "quire/kv_store/store_entry.h"
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

std::int64_t tokens_of(const KVFileContent& content) {
  std::int64_t tokens = 0;
  for (const SavedRun& run : content.runs) {
    tokens += std::ssize(run.tokens);
  }
  return tokens;
}

bool same_kv(const KVFileContent& a, const KVFileContent& b) {
  if (!(a.fingerprint == b.fingerprint) || a.runs.size() != b.runs.size() ||
      !geometry_difference(a.geometry, b.geometry).empty()) {
    return false;
  }
  for (std::size_t i = 0; i < a.runs.size(); ++i) {
    if (a.runs[i].start_position != b.runs[i].start_position ||
        a.runs[i].lost_blocks != b.runs[i].lost_blocks || a.runs[i].tokens != b.runs[i].tokens) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::int64_t system_now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Store::Store(Folder folder, Folder objects, StoreIndex index, StoreOptions options)
    : folder_(std::move(folder)),
      objects_(std::move(objects)),
      index_(std::move(index)),
      options_(std::move(options)) {}

Result<Store> Store::open(const std::filesystem::path& path, StoreOptions options) {
  QUIRE_TRY(StoreFolder opened, open_store_folder(path, !options.read_only, options.create));
  options.read_only = !opened.writable();
  QUIRE_TRY(Folder objects, opened.folder.open_in(kObjectsName, opened.writable()));
  QUIRE_TRY(StoreIndex index, open_index(opened.folder, objects, options));
  return Store(std::move(opened.folder), std::move(objects), std::move(index), std::move(options));
}

Status Store::check_writable() const {
  if (options_.read_only) {
    return {
        ErrorCode::kIo,
        base::str_cat("the store ", folder_.path.string(),
                      " is open read-only; what changes it needs a folder that may be written to")};
  }
  return {};
}

Result<Folder> Store::object_folder(const std::string& hash, bool create) const {
  if (!is_hash(hash)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("object ", base::quoted(hash), " is not 64 hexadecimal digits")};
  }
  return objects_.open_in(hash.substr(0, kFolderDigits), create);
}

Result<Store::FileIdentity> Store::identify(const Folder& folder, const std::string& hash) {
  struct stat info{};
  const std::string name = object_file_name(hash);
  if (::fstatat(folder.descriptor.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
    return io_error(folder.path / name, "examine", errno);
  }
  return FileIdentity{
      .inode = info.st_ino, .bytes = info.st_size, .changed_ns = base::modified_ns(info)};
}

Status Store::note_whole(const Folder& folder, const std::string& hash,
                         const KVFileContent& content) {
  QUIRE_TRY(const FileIdentity file, identify(folder, hash));
  whole_[hash] = {.file = file, .tokens = tokens_of(content)};
  return {};
}

Result<KVFile> Store::open_object(const std::string& hash) const {
  QUIRE_TRY(const Folder folder, object_folder(hash, false));
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

bool Store::is_there(const std::string& hash) const {
  const auto folder = object_folder(hash, false);
  return folder.ok() && identify(*folder, hash).ok();
}

Result<bool> Store::has_object(const std::string& hash, const KVFileContent& content) {
  const auto file = open_object(hash);
  if (!file.ok()) {
    return false;
  }
  if (!same_kv(file->content(), content)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("object ", hash,
                          " holds other tokens or is of another model; a hash "
                          "must say all of what the KV is")};
  }
  QUIRE_TRY(const Folder folder, object_folder(hash, false));
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

Result<std::int64_t> Store::put_object(const std::string& hash, KVFileContent content,
                                       const PagedPool& pool,
                                       std::span<const std::vector<BlockId>> blocks) {
  QUIRE_TRY_STATUS(check_writable());
  QUIRE_TRY(const Folder folder, object_folder(hash, true));
  QUIRE_TRY(const bool there, has_object(hash, content));
  if (there) {
    return std::int64_t{0};
  }
  content.object_hash = hash;
  QUIRE_TRY(const std::int64_t bytes,
            write_kv_file(folder, object_file_name(hash), content, pool, blocks, options_.write));
  QUIRE_TRY_STATUS(note_whole(folder, hash, content));
  if (room_) {
    *room_ -= bytes;
  }
  return bytes;
}

// A damaged object is a miss to whoever reads it; what it has is not known.
Status Store::check_parts(const StoreEntry& entry, const std::string& hash,
                          const FileIdentity& file) const {
  std::int64_t tokens = 0;
  if (const auto known = whole_.find(hash); known != whole_.end() && known->second.file == file) {
    tokens = known->second.tokens;
  } else if (const auto object = open_object(hash); object.ok()) {
    tokens = tokens_of(object->content());
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

Status Store::put_entry(StoreEntry entry) {
  QUIRE_TRY([[maybe_unused]] const bool put, put_entry(std::move(entry), true));
  return {};
}

Result<bool> Store::put_new_entry(StoreEntry entry) { return put_entry(std::move(entry), false); }

Result<bool> Store::put_entry(StoreEntry entry, bool may_replace) {
  QUIRE_TRY_STATUS(check_writable());
  entry.accessed_ms = entry.accessed_ms == 0 ? now_ms() : entry.accessed_ms;
  entry.created_ms = entry.created_ms == 0 ? now_ms() : entry.created_ms;
  entry.tokens = tokens_of(entry);
  entry.bytes = 0;
  QUIRE_TRY_STATUS(check_entry(entry));  // as it will be written
  // Under the lock no gc can remove what is found here.
  QUIRE_TRY(Transaction transaction, index_.begin());
  if (!may_replace) {
    QUIRE_TRY(const std::optional<StoreEntry> there, index_.find(entry.key, entry.tenant));
    if (there) {
      return false;
    }
  }
  for (const std::string& hash : objects_of(entry)) {
    QUIRE_TRY(const Folder folder, object_folder(hash, false));
    QUIRE_TRY(const FileIdentity file, identify(folder, hash));
    QUIRE_TRY_STATUS(check_parts(entry, hash, file));
    entry.bytes += file.bytes;
  }
  QUIRE_TRY_STATUS(index_.put(entry));
  QUIRE_TRY_STATUS(transaction.commit());
  keep_below_limit(entry);
  return true;
}

bool Store::is_visible(const StoreEntry& entry) const {
  return !entry.ttl_ms || entry.pinned || expires_ms(entry) > now_ms();
}

Result<std::optional<StoreEntry>> Store::find(std::string_view key, std::string_view tenant) const {
  QUIRE_TRY(std::optional<StoreEntry> entry, index_.find(key, tenant));
  if (entry && !is_visible(*entry)) {
    entry.reset();
  }
  return entry;
}

Result<bool> Store::has(std::string_view key, std::string_view tenant) const {
  QUIRE_TRY(const std::optional<StoreEntry> entry, find(key, tenant));
  return entry.has_value();
}

Result<std::vector<StoreEntry>> Store::list(const EntryFilter& filter) const {
  QUIRE_TRY(std::vector<StoreEntry> entries, index_.list(filter));
  std::erase_if(entries, [&](const StoreEntry& entry) { return !is_visible(entry); });
  return entries;
}

Error Store::no_entry(std::string_view key, std::string_view tenant) const {
  return {.code = ErrorCode::kNotFound,
          .message = base::str_cat("the store ", folder_.path.string(), " has no entry ",
                                   base::quoted(key), " of tenant ", base::quoted(tenant))};
}

Result<StoreEntry> Store::get(std::string_view key, std::string_view tenant) const {
  QUIRE_TRY(std::optional<StoreEntry> entry, find(key, tenant));
  return entry ? Result<StoreEntry>(std::move(*entry)) : Result<StoreEntry>(no_entry(key, tenant));
}

Status Store::changed(const Result<bool>& found, std::string_view key,
                      std::string_view tenant) const {
  if (!found.ok()) {
    return found.error();
  }
  return *found ? Status() : Status(no_entry(key, tenant));
}

Status Store::touch(std::string_view key, std::string_view tenant) {
  QUIRE_TRY_STATUS(check_writable());
  QUIRE_TRY(const std::int64_t known, index_.set_accessed({{std::string(key), now_ms()}}, tenant));
  return changed(known > 0, key, tenant);
}

Status Store::touch(const LastUses& uses, std::string_view tenant) {
  QUIRE_TRY_STATUS(check_writable());
  LastUses possible = uses;
  for (auto& [key, at_ms] : possible) {
    at_ms = possible_time_ms(at_ms);
  }
  QUIRE_TRY([[maybe_unused]] const std::int64_t known, index_.set_accessed(possible, tenant));
  return {};
}

Status Store::pin(std::string_view key, std::string_view tenant, bool pinned) {
  QUIRE_TRY_STATUS(check_writable());
  return changed(index_.set_pinned(key, tenant, pinned), key, tenant);
}

Status Store::set_ttl(std::string_view key, std::string_view tenant,
                      std::optional<std::int64_t> ttl_ms) {
  QUIRE_TRY_STATUS(check_writable());
  QUIRE_TRY_STATUS(check_ttl(ttl_ms));
  return changed(index_.set_ttl(key, tenant, ttl_ms, now_ms()), key, tenant);
}

}  // namespace quire::kv_store
