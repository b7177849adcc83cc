// Store: a folder of KV that outlives the process and that several processes may share. The calls
// look at a store, keep it small and move its entries.
// Formats, and how processes share a store: docs/store-format.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "quire/export.h"
#include "quire/result.h"

namespace quire {

// Options of Store::open. Plain data.
struct StoreOptions {
  // True: the store is opened to be looked at. Calls that change it return kIo.
  bool read_only = false;
  // True: Store::open makes a store where there is no folder or an empty one, but not with
  // `read_only`.
  // False: Store::open returns kIo where there is no folder, and kInvalidArgument for an empty one.
  bool create = true;
  // Most bytes of KV files that gc() leaves, 0 or more; 0: no limit. import_entry() keeps the
  // limit, too.
  // With `tenant` the limit is one of the files that the tenant's entries name. Otherwise it is one
  // of all files together: the tenant that holds most gives way. A tenant that holds no more than
  // an equal share loses nothing to others.
  std::int64_t max_bytes = 0;
  // Tenant whose entries alone are seen and touched. Not given: the entries of all tenants.
  std::optional<std::string> tenant = {};
};

// Describes what somebody has saved. Plain data that the caller owns.
struct StoreEntry {
  // 64 hexadecimal digits.
  std::string key;
  // "chunk", "sequence", "context" or "checkpoint".
  std::string kind;
  // Name for people; may be empty.
  std::string name;
  // Tenant that may read the entry; usually empty.
  std::string tenant;
  // A JSON object.
  std::string metadata_json;
  std::int64_t tokens = 0;
  // Bytes of the KV files that the entry names, each counted once.
  std::int64_t bytes = 0;
  // Bytes of the entry's KV in its files, divided by the bytes in memory. 1 where KV is not
  // compressed; compression loses nothing.
  // 0: the entry has no KV, or one of its files cannot be read. The headers of the files say it.
  double ratio = 0;
  // Times in UTC, ISO 8601. An empty expires_at means never.
  std::string created_at, accessed_at, expires_at;
  // True: the entry is never evicted and never expires.
  bool pinned = false;
};

// Reports on a KV file of the store, or on a damaged row of its index.
struct StoreObject {
  // Hash that names the file. For a damaged row: the key of its entry.
  std::string hash;
  // "ok", "damaged", or "missing" for a file that an entry names and that is not there.
  std::string state;
  // Bytes of the file. 0 where there is none.
  std::int64_t bytes = 0;
  // Number of entries that name the file.
  std::int64_t entries = 0;
  // Cause, for people, where `state` is not "ok".
  std::string message;
};

// Describes the packed weights of a model (LLMOptions::cache_weights).
struct StoreWeights {
  // 64 hexadecimal digits, which say what was packed, and how.
  std::string key;
  // Path of the model. "" when the file cannot be read.
  std::string model;
  // * "ok".
  // * "stale": the model is gone from where it was or has changed, or another version packed it.
  // * "damaged".
  // * "unreadable": the file cannot be read now, or not by this user.
  std::string state;
  // UTC, ISO 8601.
  std::string written_at;
  // Bytes of the file.
  std::int64_t bytes = 0;
  // Cause, for people, where `state` is not "ok".
  std::string message;
};

// Says what Store::gc has removed, and what is left.
struct StoreCleaning {
  // Entries whose time was over.
  std::int64_t expired_entries = 0;
  // Entries that were least recently used, removed to get below StoreOptions::max_bytes.
  std::int64_t evicted_entries = 0;
  // KV files that no entry named any more, and their bytes.
  std::int64_t removed_objects = 0, removed_bytes = 0;
  // Temporary files of writers that were killed.
  std::int64_t removed_temporaries = 0;
  // Files of packed weights that no start would use, and their bytes.
  std::int64_t removed_weights = 0, removed_weight_bytes = 0;
  // KV files that are left, and their bytes. With StoreOptions::tenant only files count that the
  // tenant's entries name.
  std::int64_t objects = 0, bytes = 0;
  // KV files that no entry names and that stay, because a damaged index may name them.
  std::int64_t kept_objects = 0;
  // Says why they were kept, and how to end that. "" when none were.
  std::string message;
};

// An open store.
//
// Ownership: move only. A moved-from store may only be destroyed or assigned to.
// Threads: one thread at a time. Another thread opens a Store of its own.
// Processes: any number may read while one writes. Writers wait for each other, up to 10 seconds.
// A forked child opens a Store of its own.
//
// Entries. Calls take an entry's key, the beginning of one (at least 4 digits), or its name. A call
// returns kNotFound where that names no entry, or several.
//
// Errors of every call that returns a Result or a Status:
// * kClosed: the process is a forked child of the one that opened the store.
// * kIo: the system refuses, or another process has kept the index for too long. Calls that change
//   a store return kIo where the store is read-only.
// * kCorrupt: the index turns out to be damaged.
// * kOutOfBlocks: the machine refuses memory.
class QUIRE_API Store {
 public:
  // Opens the store in the folder `path`, or makes one (see StoreOptions::create). "~" in front of
  // a path is the home folder.
  // A folder that the process may not write to is opened read-only. A new folder is private to the
  // user. Reads no KV file.
  // Errors: kIo where there is nothing to open. kInvalidArgument for a folder that is no store, and
  // for a negative limit. kUnsupported for a later format. kCorrupt for a damaged index, and for a
  // missing one where there are KV files (see repair()).
  [[nodiscard]] static Result<Store> open(const std::string& path,
                                          const StoreOptions& options = {});
  Store(Store&&) noexcept;
  Store& operator=(Store&&) noexcept;
  ~Store();

  // Returns the entries, least recently used first. Expired entries and damaged rows are left out.
  // Reads the header of each KV file that an entry names.
  [[nodiscard]] Result<std::vector<StoreEntry>> list() const;
  // Returns one entry. Looks at all entries, and reads the headers of this one's KV files.
  // Errors: kNotFound.
  [[nodiscard]] Result<StoreEntry> find(const std::string& entry) const;
  // Says whether an entry is pinned: never evicted and never expired. Does not count as a use.
  // Errors: kNotFound; kIo.
  [[nodiscard]] Status pin(const std::string& entry, bool pinned);
  // Says how long an entry is kept after its last use, in seconds from 0 to 10^10. No seconds: for
  // ever. The call itself is a use.
  // Errors: kNotFound; kInvalidArgument for seconds out of range; kIo.
  [[nodiscard]] Status set_ttl(const std::string& entry, std::optional<double> seconds);
  // Removes an entry, and the KV files that no other entry names. While an index is set aside that
  // repair() could not read whole, KV files stay, unless `wipe` is true.
  // `wipe`: overwrites the KV files with zeros before they go, and empties the index's log. File
  // systems and disks that write elsewhere (copy-on-write, SSDs, snapshots) may keep the old bytes.
  // Errors: kNotFound; kIo.
  // With `wipe`, kIo also where the disk refuses that, or others read the index meanwhile. The
  // entry is then removed, but what it said is there until the next wipe. The call may simply be
  // repeated: it ends the wipe and returns kNotFound.
  [[nodiscard]] Status remove(const std::string& entry, bool wipe = false);

  // Removes expired entries, KV files that no entry names, and packed weights that no start would
  // use. Then removes the least recently used entries above StoreOptions::max_bytes, which does not
  // count weights. Returns what was removed.
  // Pinned entries stay. KV files stay that a damaged index may name, and KV files and temporary
  // files of the last 10 minutes that no entry names.
  // Looks at every file; reads no KV. Errors: kIo.
  [[nodiscard]] Result<StoreCleaning> gc();
  // Reads every KV file of the store, of all tenants, and compares its checksums. Returns a report
  // on each, and on each damaged row of the index, in the order of `hash`.
  // Errors: kCorrupt when the index as a whole is damaged.
  [[nodiscard]] Result<std::vector<StoreObject>> verify() const;
  // Returns the packed weights, in the order of `key`. Returns none where the folder has none.
  // Reads headers. `verify`: reads all of them and compares their checksums, with a thread per
  // core.
  [[nodiscard]] Result<std::vector<StoreWeights>> weights(bool verify = false) const;
  // Writes an entry and its KV into one self-contained file. The file is there whole or not at all;
  // a file of that name is replaced.
  // Verifies the KV, then copies it: reads it twice.
  // Errors: kNotFound. kCorrupt for damaged KV. kIo, also for a KV file that is missing.
  // kInvalidArgument for a path that names no file.
  [[nodiscard]] Status export_entry(const std::string& entry, const std::string& path) const;
  // Puts the entry of a file that export_entry() wrote into the store, and returns the entry. The
  // entry gets the tenant of StoreOptions, or the empty one. An entry of that key and tenant is
  // replaced.
  // Verifies the whole file before anything is written, and each copy: reads the file twice.
  // Whoever made the file is trusted for what its KV says. Above StoreOptions::max_bytes other
  // entries go, as by gc().
  // Errors: kCorrupt for a damaged file; kUnsupported for a later format; kIo.
  [[nodiscard]] Result<StoreEntry> import_entry(const std::string& path);
  // Checks the file itself as import_entry() does, for a caller who has no store yet. Reads all of
  // it. Returns the error that import_entry() would return.
  [[nodiscard]] static Status check_entry_file(const std::string& path);
  // Repairs a damaged or missing index, with the store closed everywhere. Sets the old index aside
  // and makes a new one of the entries that can still be read. Returns the number of entries that
  // the new index has.
  // Errors, after which the old index is kept:
  // * kCorrupt: the new index would have no entry, though something was there.
  // * kIo: there is no folder, or the system refuses (a full disk).
  // * kUnsupported: the index is of a later version.
  // * kInvalidArgument: the folder is no store.
  // `force`: accepts an index without entries, and what can be read of a later version.
  [[nodiscard]] static Result<std::int64_t> repair(const std::string& path, bool force = false);

  // For the library itself.
  struct Impl;

 private:
  explicit Store(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
