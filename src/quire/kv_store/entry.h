// What a user named: an entry of the store and the objects that hold its KV. Plain structs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/result.h"

namespace quire::kv_store {

inline constexpr std::size_t kMaxNameBytes = 1024;  // of an entry
// Of an entry: longer than anybody waits, and no sum with a time overflows.
inline constexpr std::int64_t kMaxTtlMs = std::int64_t{1'000'000} * 366 * 24 * 3'600'000;

enum class EntryKind : std::uint8_t { kChunk, kSequence, kContext, kCheckpoint };

[[nodiscard]] std::string_view entry_kind_name(EntryKind kind);  // "chunk"
// kInvalidArgument naming the kinds there are.
[[nodiscard]] Result<EntryKind> parse_entry_kind(std::string_view name);

// `tokens` tokens of an object's KV from `first_token` on, counted over its runs in order.
struct EntryPart {
  std::string object;  // hash
  std::int64_t first_token = 0;
  std::int64_t tokens = 0;
  friend bool operator==(const EntryPart&, const EntryPart&) = default;
};

// Times are milliseconds since 1970, UTC.
struct Entry {
  std::string key;  // 64 hexadecimal digits, with `tenant` the identity
  std::string tenant;
  EntryKind kind = EntryKind::kSequence;
  std::string name;  // for people; need not be unique
  std::string metadata_json = "{}";
  std::vector<EntryPart> parts;
  bool pinned = false;  // never evicted, never expires
  // It expires so long after its last use; nothing: never. At most kMaxTtlMs.
  std::optional<std::int64_t> ttl_ms;
  // Set by the store:
  std::int64_t tokens = 0;       // of all parts
  std::int64_t bytes = 0;        // of all objects named, each once
  std::int64_t created_ms = 0;   // 0: now
  std::int64_t accessed_ms = 0;  // its last use; 0: now
};

// Of its parts together.
[[nodiscard]] std::int64_t tokens_of(const Entry& entry);

// When it expires as things stand, whether pinned or not; 0: never.
[[nodiscard]] std::int64_t expires_ms(const Entry& entry);

// The objects that its parts name, each once, in the order of their first part.
[[nodiscard]] std::vector<std::string> objects_of(const Entry& entry);

// Of all that says what the entry is: everything but `pinned`, `ttl_ms` and `accessed_ms`, which
// change while it stays the same.
[[nodiscard]] std::uint64_t entry_checksum(const Entry& entry);

// Returns the time nearest to `ms` that an entry may have: a clock that says less than 1970, or
// what no sum with a lifetime can hold, is wrong.
[[nodiscard]] std::int64_t possible_time_ms(std::int64_t ms);

// kInvalidArgument below 0 and above kMaxTtlMs.
[[nodiscard]] Status check_ttl(std::optional<std::int64_t> ttl_ms);
// kInvalidArgument naming the field.
[[nodiscard]] Status check_entry(const Entry& entry);

}  // namespace quire::kv_store
