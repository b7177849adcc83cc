// TensorInfo: one named tensor inside a mapped file, and the exact decoding of its rows to fp32.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/mapped_file.h"
#include "quire/tensor/code_rows.h"
#include "quire/weights/encoding.h"  // IWYU pragma: export

namespace quire::weights {

// A file whose tensors are read into memory, not through a mapping. One that another process cuts
// meanwhile gives zeros and is remembered as cut, where a mapping would end the process by SIGBUS.
class TensorFile {
 public:
  explicit TensorFile(base::OpenFile file) : file_(std::move(file)) {}

  // Fills `out` with the bytes from `offset` on. Any number of threads may call it at once.
  void read(std::uint64_t offset, std::span<std::byte> out) const;
  // Returns whether a read found fewer bytes than there were.
  [[nodiscard]] bool was_cut() const { return was_cut_; }

 private:
  base::OpenFile file_;
  mutable std::atomic<bool> was_cut_ = false;
};

// Reads a matrix that lies in several tensors of a file. Any thread.
class MatrixReader {
 public:
  virtual ~MatrixReader() = default;
  [[nodiscard]] virtual CodeKind kind() const = 0;
  [[nodiscard]] virtual const tensor::CodeTable* table() const = 0;  // null: codes are numbers
  // Rows exist, and `out` has their size.
  virtual void read_rows(std::int64_t first_row, std::int64_t num_rows,
                         std::span<float> out) const = 0;
  // Precondition: kind() is not kNone.
  virtual void read_codes(std::int64_t first_row, std::int64_t num_rows,
                          const tensor::CodeRows& out) const = 0;
  // Tells whether read_codes met a scale or zero point that its kind does not hold exactly.
  [[nodiscard]] virtual bool misfits() const = 0;
  // Returns what decides the numbers beside the bytes of the parts.
  [[nodiscard]] virtual std::string rule() const = 0;
};

// One tensor; `bytes` borrows from the mapping and may be unaligned. Row-major; shape [rows,
// columns] for matrices (GGUF's reversed order is already turned round). The readers guarantee that
// no dimension is negative, their product fits in int64, and columns are whole code blocks. `bytes`
// has exactly the size that shape and encoding imply.
struct TensorInfo {
  std::string name;
  Encoding encoding = Encoding::kF32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
  // File that is read instead of `bytes` where it is there; borrowed.
  const TensorFile* file = nullptr;
  std::uint64_t offset = 0;  // place of the first byte in that file
  // Reads the values where they lie in several tensors; `bytes` are the codes then. Borrowed.
  const MatrixReader* reader = nullptr;

  [[nodiscard]] std::int64_t num_values() const;
  [[nodiscard]] std::int64_t columns() const;  // last dimension; 1 for a scalar
  [[nodiscard]] std::int64_t rows() const;     // product of the others
};

// A tensor whose element type is known to the format but not decoded here, e.g. an I64 buffer or a
// Q8_K matrix. The packer of weights decides whether it matters. Those of safetensors know their
// bytes, as TensorInfo does.
struct StoredTensor {
  std::string name;
  std::string type;  // type as the format spells it: "I64", "Q8_K"
  std::vector<std::int64_t> shape = {};
  std::span<const std::byte> bytes = {};
  const TensorFile* file = nullptr;
  std::uint64_t offset = 0;
};
using UnsupportedTensor = StoredTensor;

// Copies bytes of a tensor, from `first` on.
void read_bytes(const StoredTensor& tensor, std::size_t first, std::span<std::byte> out);

// Tensors that a reader found in one file, both lists in order of their data.
struct TensorTable {
  std::vector<TensorInfo> tensors;
  std::vector<UnsupportedTensor> unsupported;
};

// Decodes rows [first_row, first_row + num_rows) to fp32 exactly, as ggml does. Each product and
// sum is rounded once where a block has a minimum or scales of scales. out: [num_rows, columns].
// Precondition: the rows exist and `out` has exactly their size. Any number of threads may call it
// at once; runs at memory speed.
void read_rows(const TensorInfo& tensor, std::int64_t first_row, std::int64_t num_rows,
               std::span<float> out);
// Decodes values [first, first + out.size()) of one row so. Precondition: the tensor holds fp32,
// fp16 or bf16, in one place.
void read_values(const TensorInfo& tensor, std::int64_t row, std::int64_t first,
                 std::span<float> out);
// Returns whether two tensors have the same encoding, shape and bytes.
[[nodiscard]] bool is_same(const TensorInfo& a, const TensorInfo& b);

// Copies the codes of rows [first_row, first_row + num_rows), unchanged. Scales and minimums are
// the file's own, but for Q4_K. There products of two scales are rounded to fp16 (2^-11 of each, or
// 2^-25 where that is more). Preconditions: code_kind is not kNone, the rows exist, `out` has their
// size in what the kind has.
void read_codes(const TensorInfo& tensor, std::int64_t first_row, std::int64_t num_rows,
                const tensor::CodeRows& out);
// Says how a tensor's codes become weights; kNone for one that has none that read_codes takes out.
[[nodiscard]] CodeKind code_kind(const TensorInfo& tensor);
// Returns what the codes of a tensor name; null where they are numbers themselves.
[[nodiscard]] const tensor::CodeTable* code_table(const TensorInfo& tensor);
// Tells whether read_codes met a number that its kind does not hold exactly.
[[nodiscard]] bool has_misfits(const TensorInfo& tensor);

}  // namespace quire::weights
