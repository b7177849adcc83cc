// QuantisedFolder: makes one matrix of the several tensors in which a folder stores it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "quire/result.h"
#include "quire/weights/quantisation.h"
#include "quire/weights/quantised_tensor.h"
#include "quire/weights/tensor_info.h"

namespace quire::weights {

// Owns what the tensors borrow that combine() makes. Immutable afterwards.
class QuantisedFolder {
 public:
  // Replaces the parts of each quantised matrix by the matrix, named as if it was not quantised. A
  // folder whose config has no "quantization_config", or that has no config, stays as it is. All
  // shapes, sizes and indices are checked. kCorrupt, naming the tensor, for what does not add up;
  // kUnsupported for a method that is not implemented.
  [[nodiscard]] Status combine(const std::string& config_file, TensorTable& table);
  [[nodiscard]] Status combine(const Quantisation& how, TensorTable& table);

 private:
  std::unique_ptr<LoadedMatrices> loaded_ = std::make_unique<LoadedMatrices>();
  std::vector<std::unique_ptr<QuantisedTensor>> tensors_;
};

}  // namespace quire::weights
