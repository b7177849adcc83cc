#include "quire/model/tensor_shape.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/weights/model_files.h"
#include "quire/weights/tensor_info.h"

namespace quire::model {
namespace {

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) {
    text += base::str_cat(text.size() == 1 ? "" : ", ", size);
  }
  return text + "]";
}

}  // namespace

Status check_shape(const weights::TensorInfo& tensor, const std::vector<std::int64_t>& wanted) {
  if (tensor.shape == wanted) {
    return {};
  }
  return {ErrorCode::kCorrupt,
          base::str_cat("tensor ", base::quoted(tensor.name), " has shape ",
                        shape_text(tensor.shape), ", the config wants ", shape_text(wanted))};
}

}  // namespace quire::model
