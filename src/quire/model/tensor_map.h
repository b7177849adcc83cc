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
#include "quire/model/tensor_part.h"
#include "quire/result.h"
#include "quire/tensor/code_rows.h"
#include "quire/weights/model_files.h"

namespace quire::model {

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
  [[nodiscard]] std::int64_t layer_of_name(std::string_view name) const;
  [[nodiscard]] bool is_of_drafts(std::string_view name) const;
  [[nodiscard]] bool is_of_shared_kv(std::string_view name) const;
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
