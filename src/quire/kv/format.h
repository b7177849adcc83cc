// Formats of blocks, as far as the ledger knows them: numbers and sizes.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace quire::kv {

// Names a format by its index in LedgerConfig::formats. The default is the pool's own format: that
// of open runs and of all that the prefix index knows.
struct FormatId {
  std::uint8_t value = 0;
  friend auto operator<=>(FormatId, FormatId) = default;
};

// The pool's own format.
inline constexpr FormatId kOwnFormat{};
inline constexpr std::size_t kMaxFormats = 8;

struct BlockFormat {
  std::int64_t block_bytes = 1;
  // The format of a segment's last block while it is not full; absent: the same. Such a format is
  // written block by block, when a block is full.
  std::optional<FormatId> open;
};

// Numbers of blocks by format.
struct BlockCounts {
  std::array<std::int32_t, kMaxFormats> of{};
  [[nodiscard]] std::int32_t& operator[](FormatId format) { return of[format.value]; }
  [[nodiscard]] std::int32_t operator[](FormatId format) const { return of[format.value]; }
  friend bool operator==(const BlockCounts&, const BlockCounts&) = default;
};

// Adds numbers of blocks to others.
inline void add(const BlockCounts& more, BlockCounts& to) {
  for (std::size_t format = 0; format < kMaxFormats; ++format) {
    to.of[format] += more.of[format];
  }
}

}  // namespace quire::kv
