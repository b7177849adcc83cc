// Store: a folder of KV that outlives the process and that several processes may share.
//
//   DIR/format                   "quire store 1"
//   DIR/objects/ab/<hash>.qkv    KV files named by what the KV is: equal KV is written once
//   DIR/index.sqlite             entries: names of users, their objects, pins, TTL, access
//   DIR/weights/<hash>.qw        weights files, which models are mapped from (weights_file.h)
//
// Invariants:
// 1. An entry in the index names only objects that were whole and on the disk when it was put.
// 2. After a crash of any process at any point every entry put before is there and whole.
// 3. Objects are never changed, only replaced by equal ones, and removed only while no entry names
//    them, under the write lock of the index.
// 4. No name leaves the folder: they are hashes of 64 digits or ours; links inside are not
//    followed.
// 5. Locks are the kernel's: a killed process leaves none behind.
// 6. While the folder has an index that was set aside and could not be read whole, only a wipe
//    removes objects.
//
// Thread rule: one thread at a time. Another thread opens a Store of its own, as another process
// does. Open KVFiles live on without the store.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv_store/file_front.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/index_salvage.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_eviction.h"
#include "quire/kv_store/store_index.h"
#include "quire/kv_store/weights_folder.h"
#include "quire/result.h"

namespace quire::kv_store {

// Milliseconds since 1970, UTC, by the system's clock.
[[nodiscard]] std::int64_t system_now_ms();

// How a store is opened.
struct StoreOptions {
  bool read_only = false;
  bool create = true;  // false: kNotFound or kInvalidArgument where there is no store
  // The bytes that gc leaves; 0: no limit. With a limit, putting an entry collects once there is
  // more. With `tenant` the limit counts the objects of its entries, else all objects.
  std::int64_t max_bytes = 0;
  // The tenant whose entries gc and the limit touch; absent: all, by the rule of store_eviction.h.
  std::optional<std::string> tenant = {};
  std::int64_t grace_ms =
      std::int64_t{10} * 60'000;  // gc leaves objects alone that are younger than this
  WriteOptions write;  // of objects; `sync` also: an entry that was put survives a loss of power
  std::function<std::int64_t()> now_ms = system_now_ms;
};

// The result of a collection.
struct GcReport {
  std::int64_t expired_entries = 0;
  std::int64_t evicted_entries = 0;      // least recently used, to get below max_bytes
  std::int64_t removed_objects = 0;      // no entry named them any more
  std::int64_t removed_bytes = 0;        // of the removed objects
  std::int64_t removed_temporaries = 0;  // of writers that were killed
  std::int64_t removed_weights = 0;      // weights files that no start would use
  std::int64_t removed_weight_bytes = 0;
  std::int64_t objects = 0;       // left; of a tenant's store, those that its entries name
  std::int64_t bytes = 0;         // of those
  std::int64_t kept_objects = 0;  // of those: no entry names them, but a damaged index may
  std::string kept_why;           // why they were kept, and how to end that
};

// An object, or a row of the index that is damaged.
struct ObjectReport {
  enum class State : std::uint8_t { kOk, kDamaged, kMissing };
  std::string hash;  // of such a row the key
  State state = State::kOk;
  std::int64_t bytes = 0;
  std::int64_t entries = 0;  // that name it
  std::string message;       // what is wrong
};

class Store {
 public:
  // Opens the store, or makes one (0700, its files 0600) where the folder is absent or empty. Opens
  // a folder read-only that the process may not write to. Fails with kInvalidArgument for a folder
  // that is no store, kUnsupported for a later format, kCorrupt for a damaged index, and kNotFound
  // if there is nothing to open read-only. Reads no KV file.
  [[nodiscard]] static Result<Store> open(const std::filesystem::path& path,
                                          StoreOptions options = {});

  [[nodiscard]] bool read_only() const { return options_.read_only; }
  // Returns kIo that names the store if it is open read-only.
  [[nodiscard]] Status check_writable() const;
  [[nodiscard]] const std::filesystem::path& path() const { return folder_.path; }
  [[nodiscard]] std::int64_t now_ms() const { return possible_time_ms(options_.now_ms()); }

  // Makes sure that the object `hash` is there and whole and on the disk; returns the bytes
  // written, 0 when it was. The hash says what the KV is: over fingerprint, tenant salt and all
  // token ids that precede and make the runs. kInvalidArgument when another run is stored under it;
  // a damaged object is replaced. Cost: one pass over the payload; for an object that this Store
  // has written or verified before, one look at the file.
  [[nodiscard]] Result<std::int64_t> put_object(const std::string& hash, KVFileContent content,
                                                const PagedPool& pool,
                                                std::span<const std::vector<BlockId>> blocks);
  // Opens an object. Every error names it, and is a miss to a reader of KV. The caller compares the
  // tokens.
  [[nodiscard]] Result<KVFile> open_object(const std::string& hash) const;
  // Returns true if the object's file exists, whatever it contains. Cost: two system calls.
  [[nodiscard]] bool is_there(const std::string& hash) const;

  // Puts or replaces an entry and sets its tokens, bytes and times (entry.h). kNotFound naming an
  // object that is not (or no longer) there: put it and try again. kInvalidArgument for a part of
  // an object beyond the tokens that it has. Above max_bytes others go as by gc, never this one;
  // what that fails to do the next put does.
  [[nodiscard]] Status put_entry(StoreEntry entry);
  // Puts an entry unless the tenant has one of that key already. Returns true if it was put.
  [[nodiscard]] Result<bool> put_new_entry(StoreEntry entry);
  // Returns the entry, or nullopt if it is absent, expired or damaged. Counts as no use (touch).
  [[nodiscard]] Result<std::optional<StoreEntry>> find(std::string_view key,
                                                       std::string_view tenant) const;
  // Returns the entry, or kNotFound that names key and tenant.
  [[nodiscard]] Result<StoreEntry> get(std::string_view key, std::string_view tenant) const;
  // Returns true if find() would return an entry.
  [[nodiscard]] Result<bool> has(std::string_view key, std::string_view tenant) const;
  // Returns entries, least recently used first, without expired and damaged ones.
  [[nodiscard]] Result<std::vector<StoreEntry>> list(const EntryFilter& filter = {}) const;
  // Counts a use now. Fails with kNotFound if there is no such entry.
  [[nodiscard]] Status touch(std::string_view key, std::string_view tenant);
  // Counts uses at their times, together. Ignores entries that are not there. Waits for other
  // writers, not for the disk.
  [[nodiscard]] Status touch(const LastUses& uses, std::string_view tenant);
  [[nodiscard]] Status pin(std::string_view key, std::string_view tenant, bool pinned);
  // Sets how long the entry is kept after its last use, which this call is; absent: forever. Fails
  // with kInvalidArgument below 0 and above kMaxTtlMs.
  [[nodiscard]] Status set_ttl(std::string_view key, std::string_view tenant,
                               std::optional<std::int64_t> ttl_ms);
  // Returns whether it was there. Objects that no other entry names go with it. `wipe`: their bytes
  // are overwritten with zeros behind it, and what the index says of it goes from its log too; file
  // systems that write elsewhere (copy-on-write, SSDs, backups, snapshots) may keep the old bytes
  // all the same. kIo when it is removed but bytes could not be overwritten, or others read the
  // index, so that the log stays: call again.
  [[nodiscard]] Result<bool> remove(std::string_view key, std::string_view tenant,
                                    bool wipe = false);
  // Finishes wipes that failed or were cut short. Fails with kIo as remove() does.
  [[nodiscard]] Status finish_wipes();

  // Removes expired entries, then entries beyond max_bytes (store_eviction.h; never pinned ones),
  // objects that no entry names and that are older than grace_ms, what killed writers left, and
  // weights files that no start would use. An object that another process is about to name may go:
  // its put_entry says so. Objects that no entry names stay while rows of the index are damaged.
  [[nodiscard]] Result<GcReport> gc();
  // Reads every object. kCorrupt only when the index itself is damaged.
  [[nodiscard]] Result<std::vector<ObjectReport>> verify() const;
  // Its weights files; `verify`: with every checksum compared. max_bytes does not count them.
  [[nodiscard]] std::vector<WeightsReport> weights(bool verify = false) const;
  // For a damaged or missing index, with the store closed everywhere: sets it aside
  // (index_aside.h) and makes a new one of the entries that can still be read and whose objects
  // are all there, as old as they were. Returns how many. kCorrupt where that would be none though
  // there were entries or objects are there; kIo for what the system refuses (a full disk);
  // kUnsupported for an index of a later version: then the old one stays. `force`: an empty index,
  // and what this build can read of a later one.
  [[nodiscard]] static Result<std::int64_t> repair(const std::filesystem::path& path,
                                                   bool force = false);

  // One self-contained file with the entry and all its objects; verified while it is written.
  [[nodiscard]] Status export_entry(std::string_view key, std::string_view tenant,
                                    const std::filesystem::path& path) const;
  // Puts the objects and the entry of such a file under `tenant`; the entry as imported. Everything
  // is verified before anything is written. Whoever made the file is trusted for what its KV says.
  // kCorrupt, naming it, for a damaged file. Cost: two passes over it, the second copies.
  [[nodiscard]] Result<StoreEntry> import_entry(const std::filesystem::path& path,
                                                std::string_view tenant);

 private:
  [[nodiscard]] Result<bool> put_entry(StoreEntry entry, bool may_replace);
  // Tells an object's file from another file under the same name.
  struct FileIdentity {
    std::uint64_t inode = 0;
    std::int64_t bytes = 0;
    std::int64_t changed_ns = 0;
    friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
  };
  struct StoredObject {
    std::int64_t bytes = 0;
    std::int64_t modified_ms = 0;
  };
  struct WholeObject {
    FileIdentity file;
    std::int64_t tokens = 0;
  };

  Store(Folder folder, Folder objects, StoreIndex index, StoreOptions options);
  struct NewIndex {
    std::int64_t entries = 0;
    std::int64_t objects = 0;  // of the store
  };
  // The state that gc decides from.
  struct Standing {
    std::vector<StoreEntry> entries;  // least recently used first, expired ones too
    std::string why_kept;             // why objects stay that no entry names; "": they do not
    bool all_kept = false;            // and so do those of entries that go
  };
  // Makes an index in `beside` of those that have all their objects in `folder`.
  [[nodiscard]] static Result<NewIndex> make_index(const Folder& folder, const Folder& beside,
                                                   const std::vector<StoreEntry>& entries);
  // The same, but kCorrupt where it would be empty and was not, unless `force`.
  [[nodiscard]] static Result<NewIndex> make_index_of(const Salvage& salvage, const Folder& folder,
                                                      const Folder& beside, bool force);
  [[nodiscard]] Result<Folder> object_folder(const std::string& hash, bool create) const;
  [[nodiscard]] static Result<FileIdentity> identify(const Folder& folder, const std::string& hash);
  [[nodiscard]] Status note_whole(const Folder& folder, const std::string& hash,
                                  const KVFileContent& content);
  // kInvalidArgument for a part that the object does not have.
  [[nodiscard]] Status check_parts(const StoreEntry& entry, const std::string& hash,
                                   const FileIdentity& file) const;
  // True when the object is there and whole and holds `content`; also renews its age.
  [[nodiscard]] Result<bool> has_object(const std::string& hash, const KVFileContent& content);
  [[nodiscard]] bool is_visible(const StoreEntry& entry) const;
  [[nodiscard]] Error no_entry(std::string_view key, std::string_view tenant) const;
  // kNotFound where an update changed nothing.
  [[nodiscard]] Status changed(const Result<bool>& found, std::string_view key,
                               std::string_view tenant) const;
  // Calls visit(folder, file name) for every file below objects/.
  [[nodiscard]] Status for_each_file(
      const std::function<void(const Folder&, const std::string&)>& visit) const;
  [[nodiscard]] Result<std::unordered_map<std::string, StoredObject>> scan_objects() const;
  [[nodiscard]] Result<bool> remove_entry(std::string_view key, std::string_view tenant, bool wipe);
  // Removes the entry from the index; returns its objects, nothing where there is no such entry.
  // `marked`: gets those that a wipe has marked; null: no wipe.
  [[nodiscard]] Status mark_unnamed(std::span<const std::string> objects,
                                    std::vector<std::string>& marked);
  [[nodiscard]] Result<std::optional<std::vector<std::string>>> take_out(
      std::string_view key, std::string_view tenant, std::vector<std::string>* marked);
  // Marks the object for finish_object_wipes; unmark_wipe takes it back.
  [[nodiscard]] Status mark_wipe(const std::string& hash) const;
  void unmark_wipe(const std::string& hash) const;
  // Overwrites and removes the marked objects that no entry names.
  [[nodiscard]] Status finish_object_wipes();
  [[nodiscard]] Status wipe_object(const Folder& folder, const std::string& hash) const;
  [[nodiscard]] Status check_object(const std::string& hash) const;
  [[nodiscard]] Result<bool> is_missing(const std::string& hash) const;
  // Removes those of `hashes` that no entry names, under the write lock.
  [[nodiscard]] Status sweep(const std::unordered_set<std::string>& hashes, GcReport& report);
  [[nodiscard]] Result<Standing> standing() const;
  // Returns true if this store's gc may remove entries of the tenant.
  [[nodiscard]] bool is_ours(const std::string& tenant) const;
  // `keep`: the entry that was put just now and stays whatever its size; null: none.
  [[nodiscard]] Status expire_and_evict(const ObjectSizes& objects, const StoreEntry* keep,
                                        std::unordered_set<std::string>& freed, GcReport& report);
  [[nodiscard]] Result<GcReport> collect(const StoreEntry* keep);
  // Says in the report what is left.
  [[nodiscard]] Status count_left(GcReport& report) const;
  // Collects when there may be more than max_bytes.
  void keep_below_limit(const StoreEntry& entry);
  [[nodiscard]] std::int64_t remove_temporaries() const;
  [[nodiscard]] Status export_object(const std::string& hash, const NewFile& to,
                                     std::int64_t offset, std::int64_t bytes) const;
  // Copies a part of the entry file `path` and verifies the copy before it gets its name.
  [[nodiscard]] Status import_object(const Descriptor& from, const FilePart& part,
                                     const std::string& hash, const std::filesystem::path& path);

  Folder folder_;
  Folder objects_;
  StoreIndex index_;
  StoreOptions options_;
  std::unordered_map<std::string, WholeObject> whole_;  // objects seen whole, as they were then
  std::optional<std::int64_t> room_;  // bytes that may be written before max_bytes is looked at
};

// Returns OK if Store::import_entry would take the file, else its error. Reads every byte.
[[nodiscard]] Status check_entry_file(const std::filesystem::path& path);

// Calls `put`, which puts objects and then the entry that names them, and returns its result. Calls
// it again, up to 4 times in all, if another process removed an object meanwhile (kNotFound).
template <class Put>
auto put_until_there(Put put) -> decltype(put()) {
  constexpr int kAttempts = 4;
  auto done = put();
  for (int attempt = 1; attempt < kAttempts && !done.ok(); ++attempt) {
    if (done.error().code != ErrorCode::kNotFound) {
      break;
    }
    done = put();
  }
  return done;
}

}  // namespace quire::kv_store
