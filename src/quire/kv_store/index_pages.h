// The rows of an SQLite file as they lie in its pages (sqlite.org/fileformat2.html). Neither its
// header nor its schema nor the pages above the leaves are needed. So damage costs no row but those
// that it lies in. For repair: SQLite itself stops at damage. Nothing is believed but sizes that
// were compared with the file's; what a row says, the caller checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace quire::kv_store {

using PageValue = std::variant<std::monostate, std::int64_t, std::string>;  // NULL, number, text

struct PageRow {
  bool has_id = false;  // true: a table with row ids; false: a table without, or an SQLite index
  std::int64_t id = 0;
  std::vector<PageValue> values;
};

// Brings what the log of an SQLite file (-wal) has committed into `file`. A damaged frame is left
// out. Returns whether there was none.
bool apply_log(std::span<const std::byte> log, std::size_t page_bytes,
               std::vector<std::byte>& file);

// Calls visit(row) for each row that can be read, in the order of pages. Returns whether every page
// of rows could be read, and every page that another one names is there.
bool for_each_row(std::span<const std::byte> file, std::size_t page_bytes,
                  const std::function<void(const PageRow&)>& visit);

}  // namespace quire::kv_store
