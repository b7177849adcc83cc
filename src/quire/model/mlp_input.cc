#include "quire/model/mlp_input.h"

#include <cstdint>

#include "quire/kernels/kernel_context.h"
#include "quire/kernels/linear.h"
#include "quire/kernels/packed_rows.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"

namespace quire::model {

void pack_mlp_input(const kernels::KernelContext& context, const ModelConfig& config,
                    const MlpInput& input, kernels::WeightFormat format,
                    kernels::PackedRows& packed) {
  const std::int64_t hidden = config.hidden_size;
  const kernels::InputRows x{input.x, hidden, input.rows, hidden};
  if (input.norm.empty()) {
    kernels::pack_rows(context, format, x, packed);
    return;
  }
  kernels::pack_normed_rows(context, format, x, {input.norm, config.norm_epsilon}, packed);
}

}  // namespace quire::model
