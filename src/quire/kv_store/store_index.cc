#include "quire/kv_store/store_index.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/kv_store/entry_row.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/index_schema.h"
#include "quire/kv_store/sqlite.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_layout.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

constexpr const char* kSync = "PRAGMA synchronous = FULL";
constexpr const char* kNoSync = "PRAGMA synchronous = NORMAL";

constexpr std::string_view kColumns =
    "SELECT id, key, tenant, kind, name, metadata, tokens, bytes, created_ms, accessed_ms, "
    "expires_ms, pinned, ";
constexpr std::string_view kChecksum = "(SELECT value FROM checksums WHERE entry = id)";

std::string select_entries(bool has_checksums, std::string_view which) {
  return base::str_cat(kColumns, has_checksums ? kChecksum : "NULL", " FROM entries ", which);
}

Error damaged(const Folder& folder, std::string_view what) {
  return {.code = ErrorCode::kCorrupt,
          .message = base::str_cat((folder.path / kIndexName).string(), " ", what,
                                   "; `quire store repair` keeps the entries that can be read")};
}

Result<std::int64_t> pragma(const Database& database, std::string_view name) {
  QUIRE_TRY(Statement statement, database.prepare(base::str_cat("PRAGMA ", name)));
  QUIRE_TRY(const bool row, statement.step());
  return row ? statement.number(0) : 0;
}

// Checks the schema and returns its version. A file of ours has exactly the schema of its version,
// word for word.
Result<std::int64_t> check_schema(const Database& database, const Folder& folder) {
  QUIRE_TRY(const std::int64_t version, pragma(database, "user_version"));
  QUIRE_TRY(const std::int64_t application, pragma(database, "application_id"));
  if (application != kApplicationId) {
    return damaged(folder, "is no index of a quire store");
  }
  if (version != kIndexVersion && version != kVersionBeforeChecksums) {
    return {ErrorCode::kUnsupported,
            base::str_cat((folder.path / kIndexName).string(), ": index format version ", version,
                          ", this build reads versions ", kVersionBeforeChecksums, " and ",
                          kIndexVersion)};
  }
  std::multiset<std::string> wanted(kSchemaBeforeChecksums.begin(), kSchemaBeforeChecksums.end());
  if (version != kVersionBeforeChecksums) {
    wanted.insert(kChecksumsTable);
  }
  QUIRE_TRY(Statement rows,
            database.prepare("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL"));
  for (;;) {
    QUIRE_TRY(const bool row, rows.step());
    if (!row) {
      break;
    }
    if (const auto found = wanted.find(rows.text(0)); found != wanted.end()) {
      wanted.erase(found);
      continue;
    }
    return damaged(folder, base::str_cat("holds ", base::quoted(rows.text(0))));
  }
  if (!wanted.empty()) {
    return damaged(folder, "misses a table");
  }
  return version;
}

Status mark_version(const Database& database) {
  const std::string mark = base::str_cat("PRAGMA user_version = ", kIndexVersion);
  return database.execute(mark.c_str());
}

Status create_schema(const Database& database) {
  QUIRE_TRY(Transaction transaction, Transaction::begin(database));
  for (const char* sql : kSchemaBeforeChecksums) {
    QUIRE_TRY_STATUS(database.execute(sql));
  }
  QUIRE_TRY_STATUS(database.execute(kChecksumsTable));
  const std::string mark = base::str_cat("PRAGMA application_id = ", kApplicationId);
  QUIRE_TRY_STATUS(database.execute(mark.c_str()));
  QUIRE_TRY_STATUS(mark_version(database));
  return transaction.commit();
}

struct IndexFile {
  bool exists = false;
  bool empty = true;  // made, and then nothing more happened
};

Result<IndexFile> examine(const Folder& folder, const std::string& name) {
  struct stat info{};
  if (::fstatat(folder.descriptor.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) {
      return IndexFile{};
    }
    return io_error(folder.path / name, "examine", errno);
  }
  if (!S_ISREG(info.st_mode)) {
    return {ErrorCode::kIo, base::str_cat((folder.path / name).string(), " is not a regular file")};
  }
  return IndexFile{.exists = true, .empty = info.st_size == 0};
}

}  // namespace

StoreIndex::StoreIndex(Database database, std::int64_t version, bool sync)
    : database_(std::make_unique<Database>(std::move(database))),
      has_checksums_(version > kVersionBeforeChecksums),
      sync_(sync) {}

Result<StoreIndex> StoreIndex::make(Database database, const Folder& folder, bool sync) {
  QUIRE_TRY(const std::int64_t version, check_schema(database, folder));
  return StoreIndex(std::move(database), version, sync);
}

Result<StoreIndex> StoreIndex::open_writable(const Folder& folder, bool sync) {
  QUIRE_TRY(const IndexFile file, examine(folder, kIndexName));
  if (!file.exists) {
    // SQLite would make it readable for others; -wal and -shm take over the mode of this file.
    const Descriptor made(::openat(folder.descriptor.get(), kIndexName,
                                   O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (made.get() < 0) {
      return io_error(folder.path / kIndexName, "create", errno);
    }
  }
  QUIRE_TRY(Database database, Database::open(folder.path / kIndexName, Database::Mode::kWrite));
  QUIRE_TRY(const std::int64_t version, pragma(database, "user_version"));
  QUIRE_TRY(const std::int64_t tables, pragma(database, "schema_version"));
  QUIRE_TRY_STATUS(database.execute("PRAGMA journal_mode = WAL"));
  QUIRE_TRY_STATUS(database.execute(sync ? kSync : kNoSync));
  if (version == 0 && tables == 0) {
    QUIRE_TRY_STATUS(create_schema(database));
  }
  QUIRE_TRY(StoreIndex index, make(std::move(database), folder, sync));
  if (!index.has_checksums_) {
    QUIRE_TRY_STATUS(index.add_checksums(folder));
  }
  return index;
}

// Looks at the version again under the lock: another process may have done it meanwhile.
Status StoreIndex::add_checksums(const Folder& folder) {
  QUIRE_TRY(Transaction transaction, begin());
  QUIRE_TRY(const std::int64_t version, check_schema(*database_, folder));
  if (version != kVersionBeforeChecksums) {
    has_checksums_ = true;
    return {};
  }
  QUIRE_TRY_STATUS(database_->execute(kChecksumsTable));
  QUIRE_TRY(Statement rows, database_->prepare(select_entries(false, "")));
  for (;;) {
    QUIRE_TRY(const bool row, rows.step());
    if (!row) {
      break;
    }
    const auto entry = read_entry(rows);
    if (!entry.ok() && entry.error().code != ErrorCode::kCorrupt) {
      return entry.error();
    }
    // A damaged row stays so, for verify to name.
    QUIRE_TRY_STATUS(entry.ok() ? put_checksum(rows.number(0), *entry) : Status());
  }
  QUIRE_TRY_STATUS(mark_version(*database_));
  QUIRE_TRY_STATUS(transaction.commit());
  has_checksums_ = true;
  return {};
}

Status StoreIndex::put_checksum(std::int64_t id, const StoreEntry& entry) const {
  QUIRE_TRY(Statement insert, database_->prepare("INSERT INTO checksums VALUES(?, ?)"));
  return insert.bind(0, id).bind(1, static_cast<std::int64_t>(entry_checksum(entry))).run();
}

Result<StoreIndex> StoreIndex::open_read_only(const Folder& folder) {
  const std::filesystem::path path = folder.path / kIndexName;
  QUIRE_TRY(const IndexFile file, examine(folder, kIndexName));
  if (!file.exists) {
    return {ErrorCode::kNotFound, base::str_cat(path.string(), " is missing")};
  }
  QUIRE_TRY(Database database, Database::open(path, Database::Mode::kRead));
  Result<StoreIndex> index = make(std::move(database), folder, false);
  if (index.ok() || index.error().code != ErrorCode::kIo) {
    return index;
  }
  // A folder without room for SQLite's shared memory. Nobody can be writing there; what a killed
  // writer left in the log must not be passed over, though.
  QUIRE_TRY(const IndexFile log, examine(folder, base::str_cat(kIndexName, kLogEnding)));
  if (!log.empty) {
    return {ErrorCode::kIo,
            base::str_cat(path.string(), " has changes that only a writer can take over (",
                          index.error().message, "); open the store once where it is writable")};
  }
  QUIRE_TRY(Database immutable, Database::open(path, Database::Mode::kImmutable));
  return make(std::move(immutable), folder, false);
}

Status StoreIndex::put(const StoreEntry& entry) {
  QUIRE_TRY_STATUS(remove(entry.key, entry.tenant));
  QUIRE_TRY(Statement insert,
            database_->prepare("INSERT INTO entries(key, tenant, kind, name, metadata, tokens, "
                               "bytes, created_ms, accessed_ms, expires_ms, pinned) "
                               "VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id"));
  insert.bind(0, entry.key)
      .bind(1, entry.tenant)
      .bind(2, entry_kind_name(entry.kind))
      .bind(3, entry.name)
      .bind(4, entry.metadata_json)
      .bind(5, entry.tokens)
      .bind(6, entry.bytes)
      .bind(7, entry.created_ms)
      .bind(8, entry.accessed_ms)
      .bind(9, expires_ms(entry))
      .bind(10, std::int64_t{entry.pinned});
  QUIRE_TRY_STATUS(insert.step());
  const std::int64_t id = insert.number(0);
  QUIRE_TRY_STATUS(insert.step());
  QUIRE_TRY(Statement part, database_->prepare("INSERT INTO parts VALUES(?, ?, ?, ?, ?)"));
  for (std::size_t i = 0; i < entry.parts.size(); ++i) {
    part.bind(0, id)
        .bind(1, static_cast<std::int64_t>(i))
        .bind(2, entry.parts[i].object)
        .bind(3, entry.parts[i].first_token)
        .bind(4, entry.parts[i].tokens);
    QUIRE_TRY_STATUS(part.run());
  }
  return put_checksum(id, entry);
}

Result<std::vector<ObjectRange>> StoreIndex::parts_of(std::int64_t id) const {
  std::vector<ObjectRange> parts;
  QUIRE_TRY(Statement rows,
            database_->prepare(
                "SELECT object, first_token, tokens FROM parts WHERE entry = ? ORDER BY place"));
  rows.bind(0, id);
  for (;;) {
    QUIRE_TRY(const bool row, rows.step());
    if (!row) {
      return parts;
    }
    parts.push_back(
        {.object = rows.text(0), .first_token = rows.number(1), .tokens = rows.number(2)});
  }
}

Result<StoreEntry> StoreIndex::read_entry(const Statement& row) const {
  EntryRow read{.id = row.number(0),
                .entry = {.key = row.text(1),
                          .tenant = row.text(2),
                          .name = row.text(4),
                          .metadata_json = row.text(5),
                          .pinned = row.number(11) != 0,
                          .tokens = row.number(6),
                          .bytes = row.number(7),
                          .created_ms = row.number(8),
                          .accessed_ms = row.number(9)},
                .kind = row.text(3),
                .expires_ms = row.number(10)};
  if (!row.is_null(12)) {
    read.checksum = row.number(12);
  }
  QUIRE_TRY(read.entry.parts, parts_of(read.id));
  return entry_of(std::move(read));
}

Result<std::optional<StoreEntry>> StoreIndex::find(std::string_view key,
                                                   std::string_view tenant) const {
  QUIRE_TRY(Statement rows,
            database_->prepare(select_entries(has_checksums_, "WHERE key = ? AND tenant = ?")));
  QUIRE_TRY(const bool row, rows.bind(0, key).bind(1, tenant).step());
  if (!row) {
    return std::optional<StoreEntry>();
  }
  auto entry = read_entry(rows);
  if (!entry.ok() && entry.error().code == ErrorCode::kCorrupt) {
    return std::optional<StoreEntry>();
  }
  QUIRE_TRY(StoreEntry whole, std::move(entry));
  return std::optional<StoreEntry>(std::move(whole));
}

Result<std::vector<StoreEntry>> StoreIndex::list(const EntryFilter& filter,
                                                 std::vector<DamagedRow>* damaged) const {
  QUIRE_TRY(Statement rows,
            database_->prepare(select_entries(has_checksums_,
                                              "WHERE (?1 = '' OR kind = ?1) AND (?2 = 0 OR tenant "
                                              "= ?3) ORDER BY accessed_ms, id")));
  const std::string tenant = filter.tenant.value_or("");
  rows.bind(0, filter.kind ? entry_kind_name(*filter.kind) : std::string_view(""))
      .bind(1, std::int64_t{filter.tenant.has_value()})
      .bind(2, tenant);
  std::vector<StoreEntry> entries;
  for (;;) {
    QUIRE_TRY(const bool row, rows.step());
    if (!row) {
      return entries;
    }
    auto entry = read_entry(rows);
    if (entry.ok()) {
      entries.push_back(std::move(entry).value());
    } else if (entry.error().code != ErrorCode::kCorrupt) {
      return entry.error();
    } else if (damaged != nullptr) {
      damaged->push_back({.key = rows.text(1), .message = entry.error().message});
    }
  }
}

Result<bool> StoreIndex::remove(std::string_view key, std::string_view tenant) {
  QUIRE_TRY(Statement statement,
            database_->prepare("DELETE FROM entries WHERE key = ? AND tenant = ?"));
  QUIRE_TRY_STATUS(statement.bind(0, key).bind(1, tenant).run());
  return database_->changes() > 0;
}

Result<bool> StoreIndex::update(std::string_view sql, std::string_view key, std::string_view tenant,
                                std::initializer_list<std::int64_t> values) const {
  QUIRE_TRY(Statement statement, database_->prepare(sql));
  statement.bind(0, key).bind(1, tenant);
  int index = 2;
  for (const std::int64_t value : values) {
    statement.bind(index++, value);
  }
  QUIRE_TRY_STATUS(statement.run());
  return database_->changes() > 0;
}

Result<std::int64_t> StoreIndex::write_uses(const LastUses& uses, std::string_view tenant) const {
  QUIRE_TRY(Transaction transaction, begin());
  std::int64_t known = 0;
  for (const auto& [key, at_ms] : uses) {
    QUIRE_TRY(const bool found,
              update("UPDATE entries SET accessed_ms = max(accessed_ms, ?3), expires_ms = "
                     "iif(expires_ms = 0, 0, expires_ms + max(?3 - accessed_ms, 0)) "
                     "WHERE key = ?1 AND tenant = ?2",
                     key, tenant, {at_ms}));
    known += found ? 1 : 0;
  }
  QUIRE_TRY_STATUS(transaction.commit());
  return known;
}

Result<std::int64_t> StoreIndex::set_accessed(const LastUses& uses, std::string_view tenant) {
  // An access time may be lost with the power; it is not worth a wait for the disk.
  QUIRE_TRY_STATUS(database_->execute(kNoSync));
  auto known = write_uses(uses, tenant);
  QUIRE_TRY_STATUS(database_->execute(sync_ ? kSync : kNoSync));
  return known;
}

Result<bool> StoreIndex::set_pinned(std::string_view key, std::string_view tenant, bool pinned) {
  return update("UPDATE entries SET pinned = ?3 WHERE key = ?1 AND tenant = ?2", key, tenant,
                {std::int64_t{pinned}});
}

Result<bool> StoreIndex::set_ttl(std::string_view key, std::string_view tenant,
                                 std::optional<std::int64_t> ttl_ms, std::int64_t now_ms) {
  const StoreEntry used{.ttl_ms = ttl_ms, .accessed_ms = now_ms};
  return update(
      "UPDATE entries SET accessed_ms = ?3, expires_ms = ?4 WHERE key = ?1 AND tenant = ?2", key,
      tenant, {now_ms, expires_ms(used)});
}

Result<std::unordered_map<std::string, std::int64_t>> StoreIndex::references() const {
  QUIRE_TRY(Statement rows, database_->prepare("SELECT object, count(DISTINCT entry) FROM parts "
                                               "GROUP BY object"));
  std::unordered_map<std::string, std::int64_t> counts;
  for (;;) {
    QUIRE_TRY(const bool row, rows.step());
    if (!row) {
      return counts;
    }
    counts.emplace(rows.text(0), rows.number(1));
  }
}

Result<bool> StoreIndex::is_referenced(std::string_view object) const {
  QUIRE_TRY(Statement rows, database_->prepare("SELECT 1 FROM parts WHERE object = ? LIMIT 1"));
  return rows.bind(0, object).step();
}

Result<std::int64_t> StoreIndex::changes_of_others() const {
  return pragma(*database_, "data_version");
}

Status StoreIndex::check() const {
  QUIRE_TRY(Statement rows, database_->prepare("PRAGMA quick_check(1)"));
  QUIRE_TRY(const bool row, rows.step());
  if (row && rows.text(0) == "ok") {
    return {};
  }
  return {ErrorCode::kCorrupt,
          base::str_cat(kIndexName, " is damaged (", row ? rows.text(0) : "no answer",
                        "); `quire store repair` keeps the entries that can be read")};
}

}  // namespace quire::kv_store
