// QuantisedTensor: a matrix of a Hugging Face folder that is stored as several tensors.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/tensor/code_rows.h"
#include "quire/weights/encoding.h"
#include "quire/weights/quantisation.h"
#include "quire/weights/tensor_info.h"

namespace quire::weights {

class QuantisedTensor;

// Bytes of one matrix that are read as a whole, as a row of it lies all over them.
struct LoadedParts {
  std::vector<std::byte> codes;  // where inputs are the rows of the file
  std::vector<std::byte> scales;
  std::vector<std::byte> zeros;
};

// Keeps the parts of the matrices that were read last. Any thread.
class LoadedMatrices {
 public:
  [[nodiscard]] std::shared_ptr<const LoadedParts> parts_of(const QuantisedTensor& tensor);

 private:
  using Entry = std::pair<const QuantisedTensor*, std::shared_ptr<const LoadedParts>>;
  std::mutex mutex_;
  std::deque<Entry> last_;
};

// A matrix [rows, columns]. A weight is scale * (code - zero), or scale * the float of a code.
// Reading rows gives one fp32 product each. Immutable but for what it remembers; any thread.
class QuantisedTensor final : public MatrixReader {
 public:
  // The tensors of the matrix, whose shapes were compared.
  struct Parts {
    StoredTensor codes, scales, zeros;  // zeros without bytes: half of the codes
    std::vector<std::int32_t> groups;   // [columns] of each input; empty: they follow each other
    std::int64_t rows = 0;              // experts of a stack one after the other
    std::int64_t columns = 0;
    std::int64_t group_size = 0;  // inputs that share a scale
    std::int64_t num_groups = 0;  // of a row
    std::int64_t block_rows = 0;  // fp8: rows that share a scale; 0: all
  };

  QuantisedTensor(const Quantisation& how, Parts parts, LoadedMatrices& loaded);

  [[nodiscard]] CodeKind kind() const override { return kind_; }
  [[nodiscard]] const tensor::CodeTable* table() const override;
  void read_rows(std::int64_t first_row, std::int64_t num_rows,
                 std::span<float> out) const override;
  void read_codes(std::int64_t first_row, std::int64_t num_rows,
                  const tensor::CodeRows& out) const override;
  [[nodiscard]] bool misfits() const override { return misfits_; }
  [[nodiscard]] std::string rule() const override;

  [[nodiscard]] LoadedParts load() const;

 private:
  struct Row;
  void read_integers(const LoadedParts& parts, std::int64_t row, Row& out) const;
  void read_codes_of(const LoadedParts& parts, std::int64_t row, Row& out) const;
  void put_row(const Row& row, std::span<std::uint8_t> codes, std::size_t group,
               const tensor::CodeRows& out) const;
  void read_e4m3(const LoadedParts& parts, std::int64_t row, std::span<float> out) const;
  void read_mxfp4(std::int64_t row, std::span<std::uint8_t> codes,
                  std::span<std::uint8_t> exponents) const;
  [[nodiscard]] float scale_at(const LoadedParts& parts, std::int64_t index) const;
  [[nodiscard]] int zero_at(const LoadedParts& parts, std::int64_t row, std::int64_t group) const;
  [[nodiscard]] bool loads_codes() const {
    return how_.method == QuantMethod::kAwq || how_.method == QuantMethod::kGptq;
  }

  Quantisation how_;
  Parts parts_;
  CodeKind kind_ = CodeKind::kNone;
  LoadedMatrices& loaded_;
  mutable std::atomic<bool> misfits_ = false;
};

}  // namespace quire::weights
