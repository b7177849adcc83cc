// GGUF container, versions 2 and 3: typed metadata and tensor directory, every count, length and
// offset checked. Format: ggml docs/gguf.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "quire/result.h"
#include "quire/weights/gguf_value.h"  // IWYU pragma: export
#include "quire/weights/tensor_info.h"

namespace quire::weights {

// Immutable after parsing; any thread may read it.
class GgufFile {
 public:
  // Parses `bytes` (borrowed; must outlive the object). `name` is used in errors. kCorrupt for what
  // does not add up, kUnsupported for another version or byte order, and element types that ggml
  // does not define.
  [[nodiscard]] static Result<GgufFile> parse(std::span<const std::byte> bytes,
                                              std::string_view name);

  [[nodiscard]] const GgufValue* find(std::string_view key) const;
  [[nodiscard]] std::span<const TensorInfo> tensors() const { return table_.tensors; }
  // Returns the tensors of known ggml types that are not decoded here.
  [[nodiscard]] std::span<const UnsupportedTensor> unsupported() const {
    return table_.unsupported;
  }

  // Finds a value of a type. Returns nullptr when it is absent, where the next functions return
  // their fallback. Another type is kCorrupt naming the key. T is one of GgufValue's types.
  template <class T>
  [[nodiscard]] Result<const T*> find_as(std::string_view key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) {
      return nullptr;
    }
    const T* typed = std::get_if<T>(value);
    if (typed == nullptr) {
      return wrong_type(key, *value);
    }
    return typed;
  }
  [[nodiscard]] Result<std::int64_t> get_int(std::string_view key, std::int64_t fallback) const;
  // Returns a tokenizer.ggml id. Returns -1 where it is absent or written as none, which is -1 or
  // its 32 bits.
  [[nodiscard]] Result<std::int64_t> get_token_id(std::string_view key) const;
  [[nodiscard]] Result<double> get_double(std::string_view key, double fallback) const;
  [[nodiscard]] Result<bool> get_bool(std::string_view key, bool fallback) const;
  [[nodiscard]] Result<std::string> get_string(std::string_view key,
                                               std::string_view fallback) const;
  [[nodiscard]] std::vector<std::string> keys() const;  // sorted

 private:
  GgufFile(std::string name, GgufMetadata metadata, TensorTable table)
      : name_(std::move(name)), metadata_(std::move(metadata)), table_(std::move(table)) {}

  [[nodiscard]] Error wrong_type(std::string_view key, const GgufValue& value) const;

  std::string name_;
  GgufMetadata metadata_;
  TensorTable table_;
};

}  // namespace quire::weights
