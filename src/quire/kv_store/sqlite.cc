#include "quire/kv_store/sqlite.h"

#include <sqlite3.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

#include "quire/base/check.h"
#include "quire/base/no_memory.h"
#include "quire/base/str.h"
#include "quire/kv_store/out_of_fork.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

constexpr int kBusyMs = 10'000;
constexpr int kMaxValueBytes = 4 << 20;

// Writes a path as the file part of a URI.
std::string uri_of(const std::filesystem::path& path, std::string_view parameters) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/-._~";
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string uri = "file:";
  for (const char c : std::filesystem::absolute(path).string()) {
    if (kPlain.find(c) != std::string_view::npos) {
      uri += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    uri += '%';
    uri += kDigits[byte >> 4U];
    uri += kDigits[byte & 15U];
  }
  return uri.append(parameters);
}

Error error_of(const std::filesystem::path& path, sqlite3* connection) {
  const int code = connection == nullptr ? SQLITE_NOMEM : sqlite3_errcode(connection);
  if (connection == nullptr || code == SQLITE_NOMEM ||
      sqlite3_extended_errcode(connection) == SQLITE_IOERR_NOMEM) {
    return base::no_memory("the index of a store");
  }
  const char* reason = sqlite3_errmsg(connection);
  // Our statements are fixed: what SQLite cannot make sense of is the file.
  if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB || code == SQLITE_ERROR) {
    return {.code = ErrorCode::kCorrupt,
            .message = base::str_cat(path.string(), " is damaged (", reason,
                                     "); `quire store repair` keeps the entries that can be read")};
  }
  const int cause = sqlite3_system_errno(connection);
  const bool of_system = cause != 0 && (code == SQLITE_IOERR || code == SQLITE_CANTOPEN);
  const std::string why =
      of_system ? base::str_cat(" (", std::generic_category().message(cause), ")") : "";
  const char* hint = code == SQLITE_BUSY       ? "; another process uses it, try again"
                     : code == SQLITE_READONLY ? "; the store is read-only"
                                               : "";
  return {.code = ErrorCode::kIo,
          .message = base::str_cat("cannot use ", path.string(), ": ", reason, why, hint),
          .system_error = of_system ? cause : 0};
}

}  // namespace

void Statement::Finalize::operator()(sqlite3_stmt* statement) const {
  const OutOfFork here;
  sqlite3_finalize(statement);
}

Statement& Statement::bind(int index, std::int64_t value) {
  QUIRE_CHECK(sqlite3_bind_int64(statement_.get(), index + 1, value) == SQLITE_OK, "no parameter");
  return *this;
}

Statement& Statement::bind(int index, std::string_view text) {
  // A text that is too long is an error of step(): the parameter stays NULL in a NOT NULL column.
  static_cast<void>(sqlite3_bind_text64(statement_.get(), index + 1, text.data(), text.size(),
                                        SQLITE_STATIC, SQLITE_UTF8));
  return *this;
}

Result<bool> Statement::step() {
  const OutOfFork here;
  const int code = sqlite3_step(statement_.get());
  if (code != SQLITE_ROW && code != SQLITE_DONE) {
    return database_->failure();
  }
  return code == SQLITE_ROW;
}

Status Statement::run() {
  const auto row = step();
  reset();
  return row.ok() ? Status() : Status(row.error());
}

void Statement::reset() {
  const OutOfFork here;
  sqlite3_reset(statement_.get());
}

bool Statement::is_null(int column) const {
  return sqlite3_column_type(statement_.get(), column) == SQLITE_NULL;
}

std::int64_t Statement::number(int column) const {
  return sqlite3_column_int64(statement_.get(), column);
}

std::string Statement::text(int column) const {
  const OutOfFork here;
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_.get(), column));
  const auto bytes = static_cast<std::size_t>(sqlite3_column_bytes(statement_.get(), column));
  if (text == nullptr && sqlite3_errcode(sqlite3_db_handle(statement_.get())) == SQLITE_NOMEM) {
    throw std::bad_alloc();
  }
  return text == nullptr ? std::string() : std::string(text, bytes);
}

void Database::Close::operator()(sqlite3* connection) const {
  const OutOfFork here;
  sqlite3_close(connection);
}

Result<Database> Database::open(const std::filesystem::path& path, Mode mode) {
  const OutOfFork here;
  const std::string uri = uri_of(path, mode == Mode::kImmutable ? "?immutable=1" : "");
  const int flags =
      SQLITE_OPEN_URI | (mode == Mode::kWrite ? SQLITE_OPEN_READWRITE : SQLITE_OPEN_READONLY);
  Database database(path, nullptr);  // copies the path: a connection would be lost if that threw
  sqlite3* connection = nullptr;
  const int code = sqlite3_open_v2(uri.c_str(), &connection, flags, nullptr);
  database.connection_.reset(connection);
  if (code != SQLITE_OK) {
    return database.failure();
  }
  sqlite3_busy_timeout(connection, kBusyMs);
  sqlite3_db_config(connection, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(connection, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_db_config(connection, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
  sqlite3_db_config(connection, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
  sqlite3_limit(connection, SQLITE_LIMIT_LENGTH, kMaxValueBytes);
  QUIRE_TRY_STATUS(database.execute(
      "PRAGMA cell_size_check = ON; PRAGMA foreign_keys = ON; PRAGMA secure_delete = ON"));
  return database;
}

Result<Statement> Database::prepare(std::string_view sql) const {
  const OutOfFork here;
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v2(connection_.get(), sql.data(), static_cast<int>(sql.size()),
                                      &statement, nullptr);
  if (code != SQLITE_OK) {
    return failure();
  }
  return Statement(*this, statement);
}

Status Database::execute(const char* sql) const {
  const OutOfFork here;
  if (sqlite3_exec(connection_.get(), sql, nullptr, nullptr, nullptr) != SQLITE_OK) {
    return failure();
  }
  return {};
}

Status Database::empty_log(int wait_ms) const {
  const OutOfFork here;
  sqlite3_busy_timeout(connection_.get(), wait_ms);
  const int code = sqlite3_wal_checkpoint_v2(connection_.get(), nullptr, SQLITE_CHECKPOINT_TRUNCATE,
                                             nullptr, nullptr);
  sqlite3_busy_timeout(connection_.get(), kBusyMs);
  return code == SQLITE_OK ? Status() : Status(failure());
}

std::int64_t Database::changes() const { return sqlite3_changes64(connection_.get()); }

Error Database::failure() const {
  const OutOfFork here;
  return error_of(path_, connection_.get());
}

void Database::roll_back() const noexcept {
  const OutOfFork here;
  sqlite3_exec(connection_.get(), "ROLLBACK", nullptr, nullptr, nullptr);
}

Result<Transaction> Transaction::begin(const Database& database) {
  QUIRE_TRY_STATUS(database.execute("BEGIN IMMEDIATE"));
  return Transaction(database);
}

Transaction::~Transaction() {
  if (database_ != nullptr) {
    database_->roll_back();
  }
}

Status Transaction::commit() {
  QUIRE_TRY_STATUS(database_->execute("COMMIT"));  // refused: the destructor undoes it
  database_ = nullptr;
  return {};
}

}  // namespace quire::kv_store
