// SHA-256 (OpenSSL's) over length-prefixed fields, so that no two field lists collide.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace quire::base {

// Feeds fields one after the other; each is preceded by its length as 8 little-endian bytes.
class FieldHasher {
 public:
  FieldHasher();
  ~FieldHasher();
  FieldHasher(const FieldHasher&) = delete;
  FieldHasher& operator=(const FieldHasher&) = delete;

  FieldHasher& add(std::string_view field);
  FieldHasher& add_bytes(std::span<const std::byte> field);
  FieldHasher& add_int(std::int64_t value);
  // Ends the hash; the object may not be used afterwards.
  [[nodiscard]] std::array<std::uint8_t, 32> finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Lower-case hexadecimal, two digits a byte.
[[nodiscard]] std::string to_hex(std::span<const std::uint8_t> bytes);

}  // namespace quire::base
