// Store: a folder of KV that outlives the process and that several processes may share
// (docs/store-format.md): looking at it, keeping it small, moving entries.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "quire/export.h"
#include "quire/result.h"

namespace quire {

struct StoreOptions {
  bool read_only = false;
  bool create = true;  // a store where there is no folder or an empty one; false: kIo
  // That gc leaves; 0: no limit. Of a tenant's store: of its own entries. Else of all together: the
  // tenant that holds most gives way, and nobody for others who holds no more than an equal share.
  std::int64_t max_bytes = 0;
  std::optional<std::string> tenant = {};  // only its entries are seen, and touched; not given:
                                           // those of all
};

// What somebody has saved.
struct StoreEntry {
  std::string key;     // 64 hexadecimal digits
  std::string kind;    // "chunk", "sequence", "context" or "checkpoint"
  std::string name;    // for people; may be empty
  std::string tenant;  // who may read it; usually empty
  std::string metadata_json;
  std::int64_t tokens = 0;
  std::int64_t bytes = 0;  // of the objects that it names
  // Bytes of its KV in them to those in memory: 1 where it is not compressed, which loses nothing;
  // 0: it has no KV, or one of them cannot be read. Comes from their headers.
  double ratio = 0;
  std::string created_at, accessed_at, expires_at;  // UTC, ISO 8601; expires_at "": never
  bool pinned = false;                              // never evicted, never expires
};

// A KV file of the store, or a damaged row of its index.
struct StoreObject {
  std::string hash;   // of such a row the key of its entry
  std::string state;  // "ok", "damaged" or "missing"
  std::int64_t bytes = 0;
  std::int64_t entries = 0;  // that name it
  std::string message;       // what is wrong
};

// The packed weights of a model (LLMOptions::cache_weights).
struct StoreWeights {
  std::string key;         // 64 hexadecimal digits: what was packed, and how
  std::string model;       // its path; "" when the file cannot be read
  std::string state;       // "ok"; "stale": the model is gone from where it was or has changed, or
                           // another version packed it; "damaged"; "unreadable": not now, or not
                           // by this user
  std::string written_at;  // UTC, ISO 8601
  std::int64_t bytes = 0;
  std::string message;  // why it is not "ok"
};

struct StoreCleaning {
  std::int64_t expired_entries = 0;
  std::int64_t evicted_entries = 0;  // least recently used, to get below max_bytes
  std::int64_t removed_objects = 0, removed_bytes = 0;
  std::int64_t removed_temporaries = 0;                        // of writers that were killed
  std::int64_t removed_weights = 0, removed_weight_bytes = 0;  // that no start would use
  std::int64_t objects = 0, bytes = 0;  // left; of a tenant's store, those that its entries name
  std::int64_t kept_objects = 0;        // named by no entry, but perhaps by a damaged index
  std::string message;                  // why they were kept, and how to end that; ""
};

// Move only; one thread at a time. Entries are named by key, or the beginning of one (at least 4
// digits, unambiguous), or name; kNotFound otherwise.
class QUIRE_API Store {
 public:
  // kIo where there is nothing to open, kInvalidArgument for a folder that is no store,
  // kUnsupported for a later format, kCorrupt for a damaged index (see repair).
  [[nodiscard]] static Result<Store> open(const std::string& path,
                                          const StoreOptions& options = {});
  Store(Store&&) noexcept;
  Store& operator=(Store&&) noexcept;
  ~Store();

  // Least recently used first.
  [[nodiscard]] Result<std::vector<StoreEntry>> list() const;
  [[nodiscard]] Result<StoreEntry> find(const std::string& entry) const;
  [[nodiscard]] Status pin(const std::string& entry, bool pinned);
  // How long it is kept after its last use, which this is; nothing: forever.
  [[nodiscard]] Status set_ttl(const std::string& entry, std::optional<double> seconds);
  // `wipe`: its bytes become zeros, and the index's log is emptied. kIo where the disk refuses that
  // or others read the index meanwhile: it is removed, but what it said is there until the next
  // wipe. That may be the same call again, which ends it and is kNotFound.
  [[nodiscard]] Status remove(const std::string& entry, bool wipe = false);

  // Removes what has expired, what nobody names, packed weights that no start would use, and the
  // least recently used entries above max_bytes, which does not count weights. What a damaged index
  // may name stays.
  [[nodiscard]] Result<StoreCleaning> gc();
  // Reads every object and compares its checksums; lists damaged rows of the index too.
  [[nodiscard]] Result<std::vector<StoreObject>> verify() const;
  // Packed weights, by key. `verify`: reads all of them and compares their checksums.
  [[nodiscard]] std::vector<StoreWeights> weights(bool verify = false) const;
  // One self-contained file, verified on both ways.
  [[nodiscard]] Status export_entry(const std::string& entry, const std::string& path) const;
  // Under the tenant of the options, without one under the empty one. What is there under its key
  // is replaced.
  [[nodiscard]] Result<StoreEntry> import_entry(const std::string& path);
  // What import_entry would refuse of the file itself, for who has no store yet. Reads all of it.
  [[nodiscard]] static Status check_entry_file(const std::string& path);
  // For a damaged index, with the store closed everywhere: sets it aside and makes a new one of
  // what can still be read; returns how many entries there are. kCorrupt where there would be none
  // though something was there, kIo for what the system refuses (a full disk), kUnsupported for an
  // index of a later version: then the old one stays. `force`: an empty index, and what can be read
  // of a later one.
  [[nodiscard]] static Result<std::int64_t> repair(const std::string& path, bool force = false);

  struct Impl;

 private:
  explicit Store(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
