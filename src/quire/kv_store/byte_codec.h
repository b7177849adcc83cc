// Little-endian numbers to bytes and back, with every length checked before it is believed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire::kv_store {

// Appends numbers of any integer type, lowest byte first.
class ByteWriter {
 public:
  explicit ByteWriter(std::size_t bytes) { bytes_.reserve(bytes); }

  template <class T>
  void put(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i)));
    }
  }
  void put_bytes(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void put_text(std::string_view text) {
    put_bytes(std::as_bytes(std::span(text.data(), text.size())));
  }
  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }
  [[nodiscard]] std::vector<std::byte> take() && { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Past the end every number is zero and failed() is true from then on.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <class T>
  T get() {
    std::uint64_t value = 0;
    const auto bytes = get_bytes(sizeof(T));
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      value |= static_cast<std::uint64_t>(bytes[i]) << (8 * i);
    }
    return static_cast<T>(value);
  }
  // Returns the next `count` bytes, or nothing when fewer are left.
  std::span<const std::byte> get_bytes(std::size_t count) {
    if (count > rest_.size()) {
      failed_ = true;
      rest_ = {};
      return {};
    }
    const auto bytes = rest_.first(count);
    rest_ = rest_.subspan(count);
    return bytes;
  }
  std::string get_text(std::size_t count) {
    const auto bytes = get_bytes(count);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  // Returns whether `count` elements of `size` bytes can follow: to be asked before making room for
  // them.
  [[nodiscard]] bool holds(std::uint64_t count, std::size_t size) {
    failed_ = failed_ || count > rest_.size() / size;
    return !failed_;
  }
  // Reads `count` numbers. Returns false, and allocates nothing, when fewer are left.
  template <class T>
  [[nodiscard]] bool get_all(std::uint64_t count, std::vector<T>& to) {
    if (!holds(count, sizeof(T))) {
      return false;
    }
    to.resize(static_cast<std::size_t>(count));
    for (T& value : to) {
      value = get<T>();
    }
    return true;
  }
  [[nodiscard]] bool failed() const { return failed_; }
  [[nodiscard]] std::size_t left() const { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
  bool failed_ = false;
};

}  // namespace quire::kv_store
