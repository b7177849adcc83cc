// ByteReader: a cursor over untrusted little-endian bytes that never passes their end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace quire::weights {

// Every read returns false, and moves nothing, when fewer bytes are left than it needs.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  [[nodiscard]] bool read(T& value) {
    if (left() < sizeof(T)) {
      return false;
    }
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return true;
  }

  // Reads a length in 8 bytes, then that many characters. `text` borrows from the bytes.
  [[nodiscard]] bool read_string(std::string_view& text) {
    const std::size_t start = position_;
    std::uint64_t length = 0;
    if (!read(length) || length > left()) {
      position_ = start;
      return false;
    }
    text = {reinterpret_cast<const char*>(bytes_.data() + position_),  // NOLINT: bytes as text
            static_cast<std::size_t>(length)};
    position_ += text.size();
    return true;
  }

  [[nodiscard]] std::size_t left() const { return bytes_.size() - position_; }
  [[nodiscard]] std::size_t position() const { return position_; }

 private:
  std::span<const std::byte> bytes_;
  std::size_t position_ = 0;
};

}  // namespace quire::weights
