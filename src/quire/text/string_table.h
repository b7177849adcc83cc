// Strings to small integers and back: one arena of bytes and an open-addressing hash table.
//
// Thread rule: immutable after building; any number of threads may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire::text {

// Returns a 64-bit hash, equal in every process. A hash is a hint: callers compare the bytes.
[[nodiscard]] std::uint64_t hash_bytes(std::string_view bytes);

class StringTable {
 public:
  // Associates `id` (>= 0) with `text` unless `text` is known already; returns the id that `text`
  // has afterwards. Ids may come in any order; memory is O(bytes) plus O(highest id).
  std::int32_t insert(std::string_view text, std::int32_t id);

  // Returns the id of a string, or -1 when it is unknown. Expected O(bytes).
  [[nodiscard]] std::int32_t find(std::string_view text) const {
    return find(text, hash_bytes(text));
  }
  [[nodiscard]] std::int32_t find(std::string_view text, std::uint64_t hash) const;

  // Tells whether there is a string of `id`, which text() returns (a known string may be empty).
  [[nodiscard]] bool has(std::int32_t id) const;
  [[nodiscard]] std::string_view text(std::int32_t id) const;

  [[nodiscard]] std::int32_t end_id() const { return static_cast<std::int32_t>(spans_.size()); }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  struct Span {
    std::uint32_t offset = 0;
    std::uint32_t length = kNone;
  };
  struct Slot {
    std::uint32_t tag = 0;  // high half of the hash
    std::int32_t id = -1;
  };
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;

  void grow();

  std::string arena_;
  std::vector<Span> spans_;  // by id
  std::vector<Slot> slots_;  // a power of two, at most half full
  std::size_t size_ = 0;
};

}  // namespace quire::text
