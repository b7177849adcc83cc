// Files built byte by byte for the tests of this module: good ones, and ones that lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/temporary_folder.h"
#include "quire/weights/tensor_info.h"

namespace quire::weights::testing {

// Returns all values of a tensor.
inline std::vector<float> decoded(const TensorInfo& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.num_values()));
  read_rows(tensor, 0, tensor.rows(), values);
  return values;
}

// Returns the value's little-endian bytes.
template <class T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};  // NOLINT: bytes as text
}

// Returns a GGUF string: its length, then its bytes.
inline std::string counted(std::string_view text) {
  return raw<std::uint64_t>(text.size()) + std::string(text);
}

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Returns a safetensors file with this header and `data_bytes` zeros.
inline std::string safetensors(std::string_view header, std::size_t data_bytes = 0) {
  return raw<std::uint64_t>(header.size()) + std::string(header) + std::string(data_bytes, '\0');
}

// Puts a GGUF file together. The fields may be set to lies before build().
struct GgufBuilder {
  std::uint32_t version = 3;
  std::uint64_t key_count = 0;
  std::uint64_t tensor_count = 0;
  std::string keys;
  std::string tensors;
  std::string data;

  GgufBuilder& key(std::string_view name, std::uint32_t type, std::string_view value) {
    ++key_count;
    keys += counted(name) + raw(type) + std::string(value);
    return *this;
  }
  GgufBuilder& tensor(std::string_view name, std::span<const std::uint64_t> sizes,
                      std::uint32_t type, std::uint64_t offset) {
    ++tensor_count;
    tensors += counted(name) + raw(static_cast<std::uint32_t>(sizes.size()));
    for (const std::uint64_t size : sizes) {
      tensors += raw(size);
    }
    tensors += raw(type) + raw(offset);
    return *this;
  }
  [[nodiscard]] std::string build(std::size_t alignment = 32) const {
    std::string file = "GGUF" + raw(version) + raw(tensor_count) + raw(key_count) + keys + tensors;
    file.resize((file.size() + alignment - 1) / alignment * alignment);
    return file + data;
  }
};

class TempFolder : public base::TemporaryFolder {
 public:
  void write(std::string_view name, std::string_view content) const {
    std::ofstream out(path() / name, std::ios::binary);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
  }
};

}  // namespace quire::weights::testing
