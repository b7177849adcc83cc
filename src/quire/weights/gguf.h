// GGUF v3 container: typed metadata and tensor directory, every count, length and offset checked.
// Format: ggml docs/gguf.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "quire/result.h"
#include "quire/weights/checkpoint.h"

namespace quire::weights {

// A metadata value. Integers of every width are kept as int64 (uint64 above 2^63 is refused),
// floats as double; arrays are homogeneous.
using GgufValue = std::variant<std::int64_t, double, bool, std::string, std::vector<std::int64_t>,
                               std::vector<double>, std::vector<std::string>>;

class GgufFile {
 public:
  // Parses `bytes` (borrowed; must outlive the object). `name` is used in errors.
  [[nodiscard]] static Result<GgufFile> parse(std::span<const std::byte> bytes,
                                              std::string_view name);

  GgufFile(GgufFile&&) noexcept;
  GgufFile& operator=(GgufFile&&) noexcept;
  ~GgufFile();

  [[nodiscard]] const GgufValue* find(std::string_view key) const;
  [[nodiscard]] std::span<const TensorInfo> tensors() const;

  // Typed access: absent gives `fallback`, another type is kCorrupt naming the key.
  [[nodiscard]] Result<std::int64_t> get_int(std::string_view key, std::int64_t fallback) const;
  [[nodiscard]] Result<double> get_double(std::string_view key, double fallback) const;
  [[nodiscard]] Result<std::string> get_string(std::string_view key,
                                               std::string_view fallback) const;
  [[nodiscard]] std::vector<std::string> keys() const;

 private:
  struct Impl;
  explicit GgufFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::weights
