// TensorInfo: one named tensor inside a mapped file, and the exact decoding of its rows to fp32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace quire::weights {

// How a tensor's values are encoded in its file. Q8_0, Q4_0 and Q4_1 are ggml's blocks of 32 values
// with an fp16 scale (and, for Q4_1, an fp16 minimum).
// NOLINTNEXTLINE(readability-identifier-naming): ggml's names hold underscores
enum class Encoding : std::uint8_t { kF32, kF16, kBF16, kQ8_0, kQ4_0, kQ4_1 };
[[nodiscard]] const char* encoding_name(Encoding encoding);
// Values of one encoded block (1 or 32) and its bytes.
[[nodiscard]] int encoding_block_values(Encoding encoding);
[[nodiscard]] int encoding_block_bytes(Encoding encoding);

// One tensor; `bytes` borrows from the mapping and may be unaligned. Row-major; shape
// [rows, columns] for matrices (GGUF's reversed order is already turned round). The readers
// guarantee: no dimension is negative, their product fits in int64, columns are whole blocks, and
// `bytes` has exactly the size that shape and encoding imply.
struct TensorInfo {
  std::string name;
  Encoding encoding = Encoding::kF32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;

  [[nodiscard]] std::int64_t num_values() const;
  [[nodiscard]] std::int64_t columns() const;  // last dimension; 1 for a scalar
  [[nodiscard]] std::int64_t rows() const;     // product of the others
};

// A tensor whose element type is known to the format but not decoded here, e.g. an I64 buffer or
// a Q4_K matrix. Whether it matters is for the model's loader to say.
struct UnsupportedTensor {
  std::string name;
  std::string type;  // as the format spells it: "I64", "Q4_K"
};

// What a reader found in one file, both lists in order of their data.
struct TensorTable {
  std::vector<TensorInfo> tensors;
  std::vector<UnsupportedTensor> unsupported;
};

// Decodes rows [first_row, first_row + num_rows) to fp32, exactly (Q4_1 rounds once, as ggml does).
// out: [num_rows, columns]. Precondition: the rows exist and `out` has exactly their size. Any
// number of threads may call it at once; runs at memory speed.
void read_rows(const TensorInfo& tensor, std::int64_t first_row, std::int64_t num_rows,
               std::span<float> out);

}  // namespace quire::weights
