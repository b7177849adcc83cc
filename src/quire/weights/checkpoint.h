// Checkpoint: named tensors of a model file or folder, whatever the container. Safetensors and GGUF
// readers fill it; the model's loader reads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/result.h"

namespace quire::weights {

// How a tensor's values are encoded in its file.
enum class Encoding : std::uint8_t { kF32, kF16, kBF16, kQ8_0, kQ4_0, kQ4_1 };
[[nodiscard]] const char* encoding_name(Encoding encoding);
// Values of one encoded block (1 or 32) and its bytes.
[[nodiscard]] int encoding_block_values(Encoding encoding);
[[nodiscard]] int encoding_block_bytes(Encoding encoding);

// One tensor; views borrow from the Checkpoint. Row-major; shape [rows, columns] for matrices
// (GGUF's reversed order is already turned round).
struct TensorInfo {
  std::string name;
  Encoding encoding = Encoding::kF32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;

  [[nodiscard]] std::int64_t num_values() const;
  [[nodiscard]] std::int64_t columns() const;  // last dimension; 1 for a scalar
  [[nodiscard]] std::int64_t rows() const;     // product of the others
};

// Decodes rows [first_row, first_row + num_rows) to fp32 (exactly). out: [num_rows, columns].
void read_rows(const TensorInfo& tensor, std::int64_t first_row, std::int64_t num_rows,
               std::span<float> out);

class Checkpoint {
 public:
  // A folder with model.safetensors or model.safetensors.index.json, or a .gguf file. Every offset,
  // shape, overlap and header bound is checked before it returns. Errors name file and tensor.
  [[nodiscard]] static Result<Checkpoint> open(const std::filesystem::path& path);

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  [[nodiscard]] const TensorInfo* find(std::string_view name) const;  // nullptr when absent
  [[nodiscard]] std::span<const TensorInfo> tensors() const;          // in file order
  [[nodiscard]] std::int64_t total_bytes() const;                     // of tensor data
  // Tells the kernel that the tensor's pages are no longer needed (after packing it).
  void release(const TensorInfo& tensor) const;
  // Digest of names, shapes, encodings and all data bytes; reads everything once (cached).
  [[nodiscard]] const class GgufFile* gguf()
      const;  // metadata when it is a GGUF file, else nullptr

 private:
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::weights
