// SHA-256 (FIPS 180-4, by OpenSSL) over fields that carry their length, so that two lists of fields
// never hash alike by their borders.
//
// Thread rule: one thread per object.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace quire::base {

// Hashes fields one after the other, each behind its length as 8 little-endian bytes.
class FieldHasher {
 public:
  FieldHasher();
  ~FieldHasher();
  FieldHasher(const FieldHasher&) = delete;
  FieldHasher& operator=(const FieldHasher&) = delete;

  FieldHasher& add(std::string_view field);
  FieldHasher& add_bytes(std::span<const std::byte> field);
  FieldHasher& add_int(std::int64_t value);
  // Returns the hash and ends it. The object may not be used afterwards.
  [[nodiscard]] std::array<std::uint8_t, 32> finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns lower-case hexadecimal, two digits for each byte.
[[nodiscard]] std::string to_hex(std::span<const std::uint8_t> bytes);

}  // namespace quire::base
