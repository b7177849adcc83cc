// StoreObjects: the KV files of a store, named by a hash of what their KV is. It puts, opens,
// counts and removes them.
//
// Objects are never changed, only replaced by equal ones. Names are hashes of 64 digits, and links
// are not followed, so no name leads out of the folder.
//
// Thread rule: one thread at a time. Open KVFiles live on without the store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/store_core.h"
#include "quire/kv_store/store_entry.h"
#include "quire/result.h"

namespace quire::kv_store {

// An object as the folder shows it.
struct StoredObject {
  std::int64_t bytes = 0;
  std::int64_t modified_ms = 0;
};

struct RemovedObjects {
  std::int64_t objects = 0;
  std::int64_t bytes = 0;
};

class StoreObjects {
 public:
  // Borrows `core`, which must outlive the object.
  explicit StoreObjects(StoreCore& core) : core_(core) {}
  StoreObjects(const StoreObjects&) = delete;
  StoreObjects& operator=(const StoreObjects&) = delete;

  // Makes sure that the object `hash` is there and whole and on the disk. Returns the bytes
  // written, 0 when it was there. The hash says what the KV is: over fingerprint, tenant salt and
  // all token ids that precede and make the runs. Fails with kInvalidArgument when another run is
  // stored under it; a damaged object is replaced. Cost: one pass over the payload; for an object
  // that was written or verified here before, one look at the file.
  [[nodiscard]] Result<std::int64_t> put(const std::string& hash, KVFileContent content,
                                         const PagedPool& pool,
                                         std::span<const std::vector<BlockId>> blocks,
                                         std::span<const std::span<const std::byte>> states = {});
  // Returns true when the object is there and whole and holds `content`. Renews its age then. Fails
  // with kInvalidArgument when another run is stored under the hash.
  [[nodiscard]] Result<bool> has(const std::string& hash, const KVFileContent& content);
  // Commits `file`, a whole KV file with `content` in the folder of the object `hash`. Leaves the
  // file uncommitted if such an object is there. Errors as for put().
  [[nodiscard]] Status adopt(NewFile& file, const std::string& hash, const KVFileContent& content);
  // Opens an object. Every error names it, and is a miss to a reader of KV. The caller compares the
  // tokens.
  [[nodiscard]] Result<KVFile> open(const std::string& hash) const;
  // Returns true if the object's file exists, whatever it contains. Cost: two system calls.
  [[nodiscard]] bool is_there(const std::string& hash) const;
  // Reads all of an object and compares its checksums.
  [[nodiscard]] Status check(const std::string& hash) const;
  // Returns the bytes of the objects that the entry names, each counted once. Fails with kNotFound
  // for an object that is not there, and with kInvalidArgument for a range beyond its tokens. The
  // caller holds the index's write lock.
  [[nodiscard]] Result<std::int64_t> check_named(const StoreEntry& entry) const;

  // Returns all objects by hash.
  [[nodiscard]] Result<std::unordered_map<std::string, StoredObject>> scan() const;
  // Calls visit(folder, file name) for every file in the folders of objects.
  [[nodiscard]] Status for_each_file(
      const std::function<void(const Folder&, const std::string&)>& visit) const;
  // Opens the folder of the object; `create` makes it. Fails with kInvalidArgument for a name that
  // is no hash.
  [[nodiscard]] Result<Folder> folder_of(const std::string& hash, bool create) const;

  // Removes those of `hashes` that no entry names, under the index's write lock. Removes none while
  // an index that was set aside could not be read whole.
  [[nodiscard]] Result<RemovedObjects> remove_unnamed(
      const std::unordered_set<std::string>& hashes);
  // Forgets that the object was seen whole.
  void forget(const std::string& hash) { whole_.erase(hash); }

 private:
  // Tells an object's file from another file under the same name.
  struct FileIdentity {
    std::uint64_t inode = 0;
    std::int64_t bytes = 0;
    std::int64_t changed_ns = 0;
    friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
  };
  struct WholeObject {
    FileIdentity file;
    std::int64_t tokens = 0;
  };
  [[nodiscard]] static Result<FileIdentity> identify(const Folder& folder, const std::string& hash);
  [[nodiscard]] Status note_whole(const Folder& folder, const std::string& hash,
                                  const KVFileContent& content);
  // Returns kInvalidArgument for a range that the object does not have.
  [[nodiscard]] Status check_ranges(const StoreEntry& entry, const std::string& hash,
                                    const FileIdentity& file) const;

  StoreCore& core_;
  std::unordered_map<std::string, WholeObject> whole_;  // objects seen whole, as they were then
};

}  // namespace quire::kv_store
