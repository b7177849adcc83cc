// TensorMap: which rows of which tensors of model files make each weight of a decoder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"
#include "quire/model/family.h"
#include "quire/result.h"
#include "quire/tensor/code_rows.h"
#include "quire/weights/model_files.h"

namespace quire::model {

// Every so many rows of a tensor: row i is row i % rows of group i / rows, and groups begin
// `stride` rows apart.
struct RowGroups {
  std::int64_t rows = 0;  // 0: all rows, in order
  std::int64_t stride = 0;
};

// Rows of one tensor from `first_row` on: all, those of an expert, or those of some groups. Where
// `interleaved_head_dim` is not 0 the file keeps the rows of each head of that size in the order 0,
// half, 1, half + 1, ... (llama.cpp's order for queries and keys, which rotates neighbours);
// reading puts them back.
struct TensorPart {
  const weights::TensorInfo* tensor = nullptr;
  std::int64_t rows = 0;  // values, for a vector
  std::int32_t interleaved_head_dim = 0;
  std::int64_t first_row = 0;
  RowGroups groups = {};
  // Not 0: rows are columns of so many rows of the tensor, from `first_line` on.
  std::int64_t lines = 0;
  std::int64_t first_line = 0;
};

// Reads rows [first_row, first_row + num_rows) of the parts' rows laid one after the other;
// thread-safe. out: [num_rows, columns of the tensors].
void read_parts(std::span<const TensorPart> parts, std::int64_t first_row, std::int64_t num_rows,
                std::span<float> out);
// Reads rows of tensors that have codes (weights::read_codes) so.
void read_part_codes(std::span<const TensorPart> parts, std::int64_t first_row,
                     std::int64_t num_rows, const tensor::CodeRows& out);
// Returns all values of one-dimensional parts, one after the other.
[[nodiscard]] std::vector<float> read_vectors(std::span<const TensorPart> parts);

// Borrows its arguments.
class TensorMap {
 public:
  TensorMap(const ModelConfig& config, const weights::ModelFiles& model_files);

  // Finds the tensors of a matrix (depth > 0) or vector (depth 0), and checks their shapes.
  [[nodiscard]] Result<std::vector<TensorPart>> find(const WeightId& id, std::int64_t columns,
                                                     std::int64_t depth) const;
  // Finds every weight of the config and then asks of every tensor in the files that it was
  // among them. A GGUF file must be of the config's family: others order rows otherwise.
  [[nodiscard]] Status check_all() const;
  // Number of tensors of parts for images and sounds, which check_all lets pass. 0 but for the text
  // part of a model of several parts.
  [[nodiscard]] std::int64_t num_skipped() const;
  // Turns the values of a vector, as the files have them, into those of the decoder.
  void finish_vector(const WeightId& id, std::vector<float>& values) const;

 private:
  [[nodiscard]] std::vector<std::string> names(const WeightId& id) const;
  [[nodiscard]] Result<std::vector<TensorPart>> find_of_experts(const WeightId& id,
                                                                std::int64_t columns,
                                                                std::int64_t depth) const;
  [[nodiscard]] Status check_part(const weights::TensorInfo& tensor, const WeightId& id,
                                  std::int64_t rows, std::int64_t depth) const;
  [[nodiscard]] Result<TensorPart> stacked_part(const weights::TensorInfo& tensor,
                                                const WeightId& id, std::int64_t rows,
                                                std::int64_t depth) const;
  [[nodiscard]] std::string placed(std::string_view name) const;
  [[nodiscard]] bool is_of_drafts(std::string_view name) const;
  [[nodiscard]] bool is_skipped(std::string_view name) const;
  [[nodiscard]] Status check_architecture() const;
  [[nodiscard]] Status check_tied_head(const weights::TensorInfo& head) const;
  [[nodiscard]] Status check_unused(const std::set<const weights::TensorInfo*>& used) const;

  const ModelConfig& config_;
  const weights::ModelFiles& model_files_;
  TensorNames names_;
  // Beginnings that the files give to names of the text part: before all of them, or instead of
  // "model.".
  std::string_view before_all_, before_model_;
};

}  // namespace quire::model
