#include "quire/model/layer_rotary.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/kernels/elementwise.h"
#include "quire/kernels/kernel_context.h"
#include "quire/model/config.h"
#include "quire/model/forward_batch.h"
#include "quire/model/layer_plan.h"

namespace quire::model {

void fill_rotary(const kernels::KernelContext& context, const ModelConfig& config,
                 const WantedRopes& wanted, std::span<const std::int32_t> positions,
                 RotaryTables& tables) {
  if (wanted[index_of(RopeKind::kMain)]) {
    tables[index_of(RopeKind::kMain)].fill(context, config.rotary, positions);
  }
  if (wanted[index_of(RopeKind::kLocal)]) {
    tables[index_of(RopeKind::kLocal)].fill(context, config.local_rotary, positions);
  }
}

void grow_queries(const kernels::KernelContext& context, const ModelConfig& config,
                  const ForwardBatch& batch, std::span<float> q, std::int64_t stride) {
  const std::span<const std::int32_t> positions =
      batch.use_positions.empty() ? batch.positions : batch.use_positions;
  const auto width =
      static_cast<std::size_t>(config.heads) * static_cast<std::size_t>(config.head_dim);
  for (std::size_t row = 0; row < positions.size(); ++row) {
    const std::int32_t steps = positions[row] / config.scales.query_length;
    if (steps > 0) {
      const double factor = 1.0 + config.scales.query_growth * std::log(1.0 + steps);
      kernels::scale(context, static_cast<float>(factor),
                     q.subspan(row * static_cast<std::size_t>(stride), width));
    }
  }
}

}  // namespace quire::model
