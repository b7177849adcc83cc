// The index of a store: which entries there are and which objects they name, in SQLite.
//
// Invariants:
// 1. A change is one transaction: after a crash at any point the old or the new state is there.
// 2. Rows are checked when they are read, against a checksum of what they say of an entry. Where a
//    build from before checksums wrote one, what it says must agree with itself. A row that no
//    writer of ours can have written is passed over, and still names its objects. SQLite itself
//    sees damage of its pages' structure only: that is kCorrupt.
// 3. A schema that is not exactly ours is refused, so no trigger or view of a stranger ever runs.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "quire/kv_store/file_io.h"
#include "quire/kv_store/sqlite.h"
#include "quire/kv_store/store_entry.h"
#include "quire/result.h"

namespace quire::kv_store {

// When entries of one tenant were used last, by key.
using LastUses = std::unordered_map<std::string, std::int64_t>;

struct EntryFilter {
  std::optional<EntryKind> kind;
  std::optional<std::string> tenant;
};

// A row that is passed over.
struct DamagedRow {
  std::string key;  // key as the row has it
  std::string message;
};

// Move only; one thread at a time. Another process or object may use the same file.
class StoreIndex {
 public:
  // Makes an empty index where there is none (mode 0600); the caller keeps others from doing so at
  // the same time. `sync`: what is committed survives a loss of power; without, the index stays
  // whole but may forget the last changes. An index of version 1 becomes one of this version, with
  // checksums of what it says now, but for damaged rows. kCorrupt for a file that is no index of
  // ours or damaged, kUnsupported for one of a later version.
  [[nodiscard]] static Result<StoreIndex> open_writable(const Folder& folder, bool sync);
  [[nodiscard]] static Result<StoreIndex> open_read_only(const Folder& folder);

  // Begins a transaction of several calls. Without it each call below is a transaction of its own.
  [[nodiscard]] Result<Transaction> begin() const { return Transaction::begin(*database_); }

  // Inserts or replaces. Call inside a transaction. The entry is checked already.
  [[nodiscard]] Status put(const StoreEntry& entry);
  // Finds the entry; a damaged row is none.
  [[nodiscard]] Result<std::optional<StoreEntry>> find(std::string_view key,
                                                       std::string_view tenant) const;
  // Lists entries, oldest access first, and tells of the rows that it passes over.
  [[nodiscard]] Result<std::vector<StoreEntry>> list(
      const EntryFilter& filter, std::vector<DamagedRow>* damaged = nullptr) const;

  // Returns whether there was such an entry. Its content is overwritten in the file, but stays in
  // the log.
  [[nodiscard]] Result<bool> remove(std::string_view key, std::string_view tenant);
  // Empties the log of what was removed too. kIo when others read the index for longer than a
  // second.
  [[nodiscard]] Status forget_removed() const { return database_->empty_log(kLogWaitMs); }
  // Sets when entries were used last, in one transaction; not inside another. An earlier use than
  // the last one changes nothing. Returns how many of the entries there are.
  [[nodiscard]] Result<std::int64_t> set_accessed(const LastUses& uses, std::string_view tenant);
  [[nodiscard]] Result<bool> set_pinned(std::string_view key, std::string_view tenant, bool pinned);
  // Sets how long an entry lives, from a use at `now_ms` on.
  [[nodiscard]] Result<bool> set_ttl(std::string_view key, std::string_view tenant,
                                     std::optional<std::int64_t> ttl_ms, std::int64_t now_ms);

  // Counts for each object the entries that name it, damaged ones too.
  [[nodiscard]] Result<std::unordered_map<std::string, std::int64_t>> references() const;
  [[nodiscard]] Result<bool> is_referenced(std::string_view object) const;

  // Returns another number once somebody else has changed the index. Equal numbers mean that nobody
  // has in between.
  [[nodiscard]] Result<std::int64_t> changes_of_others() const;

  // Runs SQLite's own check of the whole file. kCorrupt with what it found.
  [[nodiscard]] Status check() const;

 private:
  StoreIndex(Database database, std::int64_t version, bool sync);
  [[nodiscard]] static Result<StoreIndex> make(Database database, const Folder& folder, bool sync);
  // Returns the parts of the entry in row `id`.
  [[nodiscard]] Result<std::vector<ObjectRange>> parts_of(std::int64_t id) const;
  [[nodiscard]] Result<StoreEntry> read_entry(const Statement& row) const;
  [[nodiscard]] Status put_checksum(std::int64_t id, const StoreEntry& entry) const;
  [[nodiscard]] Status add_checksums(const Folder& folder);
  // Runs `sql` with the parameters key, tenant, values. Returns whether there was such an entry.
  [[nodiscard]] Result<bool> update(std::string_view sql, std::string_view key,
                                    std::string_view tenant,
                                    std::initializer_list<std::int64_t> values) const;
  [[nodiscard]] Result<std::int64_t> write_uses(const LastUses& uses,
                                                std::string_view tenant) const;

  static constexpr int kLogWaitMs = 1000;

  std::unique_ptr<Database> database_;  // statements and transactions point to it
  bool has_checksums_;                  // false before version 2
  bool sync_;
};

}  // namespace quire::kv_store
