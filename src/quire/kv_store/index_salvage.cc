#include "quire/kv_store/index_salvage.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "quire/base/str.h"
#include "quire/kv_store/entry_row.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/index_pages.h"
#include "quire/kv_store/index_schema.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_layout.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

// Ours is SQLite's default, the first; but who says so is the file's header.
constexpr std::array<std::size_t, 8> kPageBytes = {4096, 512,   1024,  2048,
                                                   8192, 16384, 32768, 65536};
constexpr std::size_t kPagesAt = 28, kVersionAt = 60, kApplicationIdAt = 68;  // in the header

constexpr std::size_t kEntryColumns = 12, kPartColumns = 5, kChecksumColumns = 2;

struct IndexBytes {
  std::vector<std::byte> file, log;
  bool there = false;  // either of them
};

Result<bool> read_whole(const Folder& folder, const std::string& name, std::vector<std::byte>& to) {
  const auto file = open_file(folder, name);
  if (!file.ok()) {
    return file.error().code == ErrorCode::kNotFound ? Result<bool>(false) : file.error();
  }
  QUIRE_TRY(const std::int64_t size, file_size(*file, folder.path / name));
  to.resize(static_cast<std::size_t>(size));
  QUIRE_TRY_STATUS(read_at(*file, to, 0, folder.path / name));
  return true;
}

Result<IndexBytes> read_index(const Folder& folder) {
  IndexBytes bytes;
  QUIRE_TRY(const bool file, read_whole(folder, kIndexName, bytes.file));
  QUIRE_TRY(const bool log, read_whole(folder, base::str_cat(kIndexName, kLogEnding), bytes.log));
  bytes.there = file || log;
  return bytes;
}

// The rows that were found, before one is compared with another.
class FoundRows {
 public:
  void add(const PageRow& row) {
    if (row.has_id && row.values.size() == kEntryColumns) {
      add_entry(row);
    } else if (row.has_id && row.values.size() == kChecksumColumns) {
      add_checksum(row);
    } else if (!row.has_id && row.values.size() == kPartColumns) {
      add_part(row);
    }
  }

  // Returns the entries that are as they were written. `complete` means that nothing tells of
  // others.
  [[nodiscard]] Salvage entries() const {
    Salvage salvage;
    std::set<std::int64_t> found;
    for (const auto& [id, row] : entries_) {
      auto entry = entry_of_row(row);
      if (entry) {
        found.insert(id);
        salvage.entries.push_back(std::move(*entry));
      }
    }
    for (const std::int64_t id : named_) {
      salvage.complete = salvage.complete && found.contains(id);
    }
    std::ranges::stable_sort(salvage.entries, [](const StoreEntry& a, const StoreEntry& b) {
      return a.created_ms > b.created_ms;
    });
    return salvage;
  }

 private:
  using Parts = std::map<std::int64_t, std::vector<ObjectRange>>;  // by place; damage makes several

  template <class T>
  static const T* value_of(const PageRow& row, std::size_t column) {
    return std::get_if<T>(&row.values[column]);
  }

  void add_entry(const PageRow& row) {
    named_.insert(row.id);
    for (std::size_t column = 1; column < kEntryColumns; ++column) {
      const bool is_text = column < 6;
      if (row.values[column].index() != (is_text ? 2U : 1U)) {
        return;
      }
    }
    const auto text = [&](std::size_t column) { return *value_of<std::string>(row, column); };
    const auto number = [&](std::size_t column) { return *value_of<std::int64_t>(row, column); };
    entries_.emplace(row.id, EntryRow{.id = row.id,
                                      .entry = {.key = text(1),
                                                .tenant = text(2),
                                                .name = text(4),
                                                .metadata_json = text(5),
                                                .pinned = number(11) != 0,
                                                .tokens = number(6),
                                                .bytes = number(7),
                                                .created_ms = number(8),
                                                .accessed_ms = number(9)},
                                      .kind = text(3),
                                      .expires_ms = number(10)});
  }

  void add_checksum(const PageRow& row) {
    named_.insert(row.id);
    if (const auto* value = value_of<std::int64_t>(row, 1)) {
      checksums_[row.id].push_back(*value);
    }
  }

  void add_part(const PageRow& row) {
    const auto* entry = value_of<std::int64_t>(row, 0);
    const auto* place = value_of<std::int64_t>(row, 1);
    const auto* object = value_of<std::string>(row, 2);
    const auto* first = value_of<std::int64_t>(row, 3);
    const auto* tokens = value_of<std::int64_t>(row, 4);
    if (entry == nullptr || place == nullptr || object == nullptr || first == nullptr ||
        tokens == nullptr) {
      return;
    }
    named_.insert(*entry);
    parts_[*entry][*place].push_back({.object = *object, .first_token = *first, .tokens = *tokens});
  }

  // Gives times that a clock before 1970 wrote the nearest ones that may be.
  static void mend_times(EntryRow& row) {
    const std::int64_t accessed = row.entry.accessed_ms;
    if (accessed < 0 && row.expires_ms != 0) {
      row.expires_ms = 1 + std::clamp<std::int64_t>(row.expires_ms - accessed, 0, kMaxTtlMs);
    }
    row.entry.accessed_ms = possible_time_ms(accessed);
    row.entry.created_ms = possible_time_ms(row.entry.created_ms);
  }

  // Returns the entry of a row, or nothing where it is damaged.
  [[nodiscard]] std::optional<StoreEntry> entry_of_row(const EntryRow& found) const {
    const auto parts = parts_.find(found.id);
    static const Parts no_parts;
    EntryRow row = found;
    if (!put_parts(parts == parts_.end() ? no_parts : parts->second, row)) {
      return std::nullopt;
    }
    mend_times(row);
    row.checksum.reset();  // compared already
    auto entry = entry_of(std::move(row));
    return entry.ok() ? std::optional(std::move(*entry)) : std::nullopt;
  }

  // Gives the row the parts, and the checksum, with which it is as it was written. False where
  // there are none. A part of another entry may have got among its own by damage of its number.
  [[nodiscard]] bool put_parts(const Parts& parts, EntryRow& row) const {
    std::vector<ObjectRange>& own = row.entry.parts;
    for (const auto& [place, several] : parts) {
      if (place != static_cast<std::int64_t>(own.size())) {
        break;
      }
      own.push_back(several.front());
    }
    const auto sums = checksums_.find(row.id);
    if (sums == checksums_.end()) {
      return (checksums_.empty() || !own.empty()) && is_as_written(row);
    }
    for (const std::int64_t sum : sums->second) {
      row.checksum = sum;
      if (is_as_written(row) || fits_otherwise(parts, row)) {
        return true;
      }
    }
    return false;
  }

  // Tries one part fewer, and another part in one place.
  [[nodiscard]] static bool fits_otherwise(const Parts& parts, EntryRow& row) {
    std::vector<ObjectRange>& own = row.entry.parts;
    if (own.empty()) {
      return false;
    }
    const ObjectRange last = own.back();
    own.pop_back();
    if (is_as_written(row)) {
      return true;
    }
    own.push_back(last);
    for (std::size_t place = 0; place < own.size(); ++place) {
      const ObjectRange first = own[place];
      for (const ObjectRange& other : parts.at(static_cast<std::int64_t>(place))) {
        own[place] = other;
        if (!(other == first) && is_as_written(row)) {
          return true;
        }
      }
      own[place] = first;
    }
    return false;
  }

  std::multimap<std::int64_t, EntryRow> entries_;  // by id
  std::map<std::int64_t, Parts> parts_;
  std::map<std::int64_t, std::vector<std::int64_t>> checksums_;
  std::set<std::int64_t> named_;  // ids in any row
};

struct Reading {
  Salvage salvage;
  std::vector<std::byte> first_page;
};

std::uint32_t header_number(const std::vector<std::byte>& page, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    value = value << 8U | std::to_integer<std::uint32_t>(page[at + i]);
  }
  return value;
}

// Returns whether the file has as many pages as its header says.
bool is_of_full_length(const std::vector<std::byte>& file, std::size_t page_bytes) {
  return file.size() > page_bytes && header_number(file, kPagesAt) == file.size() / page_bytes;
}

Reading read_with(const IndexBytes& bytes, std::size_t page_bytes) {
  std::vector<std::byte> file = bytes.file;
  const bool log_whole = apply_log(bytes.log, page_bytes, file);
  FoundRows rows;
  const bool pages_whole =
      for_each_row(file, page_bytes, [&](const PageRow& row) { rows.add(row); });
  Reading reading{.salvage = rows.entries()};
  reading.salvage.complete =
      reading.salvage.complete && log_whole && pages_whole && is_of_full_length(file, page_bytes);
  file.resize(std::min(file.size(), page_bytes));
  reading.first_page = std::move(file);
  return reading;
}

Reading read_best(const IndexBytes& bytes) {
  const auto rank = [](const Reading& each) {
    return std::tuple(each.salvage.entries.size(), each.salvage.complete);
  };
  Reading best = read_with(bytes, kPageBytes[0]);
  for (const std::size_t page_bytes : std::span(kPageBytes).subspan(1)) {
    if (best.salvage.complete) {
      break;
    }
    Reading reading = read_with(bytes, page_bytes);
    if (rank(reading) > rank(best)) {
      best = std::move(reading);
    }
  }
  return best;
}

// Returns the version that a later build wrote, or nothing. A new version has a new schema: another
// number over ours is damage. One flipped bit can look like version 3, the next one.
std::optional<std::uint32_t> later_version(const std::vector<std::byte>& page) {
  if (page.size() < kPageBytes[1] || header_number(page, kApplicationIdAt) != kApplicationId) {
    return std::nullopt;
  }
  const std::uint32_t version = header_number(page, kVersionAt);
  const std::string_view text(reinterpret_cast<const char*>(page.data()), page.size());
  const bool sums = text.find(kChecksumsTable) != std::string_view::npos;
  const std::int64_t written = sums ? kIndexVersion : kVersionBeforeChecksums;
  const bool ours = std::ranges::all_of(kSchemaBeforeChecksums, [&](const char* sql) {
    return text.find(sql) != std::string_view::npos;
  });
  const bool flipped = std::has_single_bit(version ^ static_cast<std::uint32_t>(written));
  const bool damage = ours && flipped && version != kIndexVersion + 1;
  return version > kIndexVersion && !damage ? std::optional(version) : std::nullopt;
}

}  // namespace

Result<Salvage> salvage_index(const Folder& folder, bool any_version) {
  QUIRE_TRY(const IndexBytes bytes, read_index(folder));
  if (!bytes.there) {
    return Salvage();
  }
  Reading reading = read_best(bytes);
  const auto later = later_version(reading.first_page);
  if (later && !any_version) {
    return {ErrorCode::kUnsupported,
            base::str_cat((folder.path / kIndexName).string(), ": index format version ", *later,
                          ", this build reads versions ", kVersionBeforeChecksums, " and ",
                          kIndexVersion,
                          "; repair it with a build that reads it, or with --force "
                          "keep what this one can read")};
  }
  reading.salvage.complete = reading.salvage.complete && !later;
  return std::move(reading.salvage);
}

}  // namespace quire::kv_store
