// A thin skin over SQLite: connections, statements and transactions that release themselves, and
// errors as values. No exceptions, no SQL built from text of others.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "quire/result.h"

struct sqlite3;
struct sqlite3_stmt;

namespace quire::kv_store {

class Database;

// One prepared statement. Parameters and columns are numbered from 0.
class Statement {
 public:
  Statement& bind(int index, std::int64_t value);
  // Copies nothing: `text` must live until the last step.
  Statement& bind(int index, std::string_view text);
  // Steps to the next row. True means that there is one. kCorrupt for a damaged file, kIo for
  // everything else that fails.
  [[nodiscard]] Result<bool> step();
  // Runs a statement that gives no rows.
  [[nodiscard]] Status run();
  void reset();

  // Tells whether a column of the current row is null; the next functions read one. A column of
  // another type is converted, as SQLite does.
  [[nodiscard]] bool is_null(int column) const;
  [[nodiscard]] std::int64_t number(int column) const;
  [[nodiscard]] std::string text(int column) const;

 private:
  friend class Database;
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const;
  };
  Statement(const Database& database, sqlite3_stmt* statement)
      : database_(&database), statement_(statement) {}
  const Database* database_;
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

// One connection; one thread at a time.
class Database {
 public:
  enum class Mode : std::uint8_t {
    kWrite,      // the file exists
    kRead,       // beside a writer; the folder may have to take SQLite's shared memory
    kImmutable,  // nobody writes, nothing is created
  };
  // Opens a file, hardened against a file of a stranger: no functions in its schema, bounded
  // lengths.
  [[nodiscard]] static Result<Database> open(const std::filesystem::path& path, Mode mode);

  [[nodiscard]] Result<Statement> prepare(std::string_view sql) const;
  // Executes one or more statements without parameters and rows.
  [[nodiscard]] Status execute(const char* sql) const;
  // Ends a transaction without its changes, if there is one. Needs no memory of ours.
  void roll_back() const noexcept;
  // Moves what the log (-wal) holds to the file and cuts the log to nothing. Outside transactions.
  // kIo when others still read or write after `wait_ms`: then it stays.
  [[nodiscard]] Status empty_log(int wait_ms) const;
  // Returns how many rows the last statement changed.
  [[nodiscard]] std::int64_t changes() const;
  // Returns the last failure, as an error that names the file.
  [[nodiscard]] Error failure() const;

 private:
  struct Close {
    void operator()(sqlite3* connection) const;
  };
  Database(std::filesystem::path path, sqlite3* connection)
      : path_(std::move(path)), connection_(connection) {}
  std::filesystem::path path_;
  std::unique_ptr<sqlite3, Close> connection_;
};

// Holds the write lock until commit; not committed, everything is undone.
class Transaction {
 public:
  // Waits some seconds for another writer, then kIo.
  [[nodiscard]] static Result<Transaction> begin(const Database& database);
  Transaction(Transaction&& other) noexcept : database_(std::exchange(other.database_, nullptr)) {}
  Transaction& operator=(Transaction&&) = delete;
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  ~Transaction();
  [[nodiscard]] Status commit();

 private:
  explicit Transaction(const Database& database) : database_(&database) {}
  const Database* database_;
};

}  // namespace quire::kv_store
