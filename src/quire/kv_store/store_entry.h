// StoreEntry: a name that a user gave in a store, and the objects that hold its KV. Plain structs
// and functions without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/result.h"

namespace quire::kv_store {

inline constexpr std::size_t kMaxNameBytes = 1024;  // longest name of an entry
// The longest lifetime of an entry. Adding it to a time does not overflow.
inline constexpr std::int64_t kMaxTtlMs = std::int64_t{1'000'000} * 366 * 24 * 3'600'000;

enum class EntryKind : std::uint8_t { kChunk, kSequence, kContext, kCheckpoint };

[[nodiscard]] std::string_view entry_kind_name(EntryKind kind);  // "chunk"
// Returns the kind of that name, or kInvalidArgument that lists the kinds.
[[nodiscard]] Result<EntryKind> parse_entry_kind(std::string_view name);

// A range of an object's KV: `tokens` tokens from `first_token` on, counted over its runs in order.
struct ObjectRange {
  std::string object;  // hash
  std::int64_t first_token = 0;
  std::int64_t tokens = 0;
  friend bool operator==(const ObjectRange&, const ObjectRange&) = default;
};

// An entry. Key and tenant identify it. Times are milliseconds since 1970, UTC.
struct StoreEntry {
  std::string key;  // 64 hexadecimal digits
  std::string tenant;
  EntryKind kind = EntryKind::kSequence;
  std::string name;  // for people; need not be unique
  std::string metadata_json = "{}";
  std::vector<ObjectRange> parts;
  bool pinned = false;  // never evicted, never expires
  // The entry expires this long after its last use; absent: never. At most kMaxTtlMs.
  std::optional<std::int64_t> ttl_ms;
  // Set by the store:
  std::int64_t tokens = 0;       // tokens of all parts
  std::int64_t bytes = 0;        // bytes of all named objects, each once
  std::int64_t created_ms = 0;   // 0: now
  std::int64_t accessed_ms = 0;  // time of its last use; 0: now
};

// Returns the tokens of all its parts.
[[nodiscard]] std::int64_t tokens_of(const StoreEntry& entry);

// Returns the time at which it expires without another use, pinned or not; 0: never.
[[nodiscard]] std::int64_t expires_ms(const StoreEntry& entry);

// Returns true if its lifetime is over at `now_ms`. A pinned entry does not expire.
[[nodiscard]] bool has_expired(const StoreEntry& entry, std::int64_t now_ms);

// Returns the objects that its parts name, each once, in the order of their first part.
[[nodiscard]] std::vector<std::string> objects_of(const StoreEntry& entry);

// Returns a checksum over everything but `pinned`, `ttl_ms` and `accessed_ms`, which change while
// the entry stays the same.
[[nodiscard]] std::uint64_t entry_checksum(const StoreEntry& entry);

// Returns the time nearest to `ms` that an entry may have. A wrong clock may give a time before
// 1970, or one whose sum with a lifetime overflows.
[[nodiscard]] std::int64_t possible_time_ms(std::int64_t ms);

// Returns kInvalidArgument below 0 and above kMaxTtlMs.
[[nodiscard]] Status check_ttl(std::optional<std::int64_t> ttl_ms);
// Returns kInvalidArgument that names the first bad field.
[[nodiscard]] Status check_entry(const StoreEntry& entry);

}  // namespace quire::kv_store
