#include "quire/model/cuda/expert_mlp.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "quire/device/cuda/cuda_error.h"
#include "quire/kernels/cuda/coded_products.h"
#include "quire/kernels/cuda/experts.h"
#include "quire/kernels/cuda/grouped_products.h"
#include "quire/kernels/cuda/rows.h"
#include "quire/model/config.h"
#include "quire/model/cuda/device_weights.h"
#include "quire/model/cuda/recorded_steps.h"
#include "quire/model/layer_plan.h"
#include "quire/result.h"

namespace quire::model::cuda {

using device::cuda::to_status;
using kernels::cuda::GroupedWeights;
using kernels::cuda::Half;

namespace {

// Rows of a part of a step. More at a time take more memory for their products, and gain little.
constexpr std::int64_t kPartRows = 1024;
constexpr int kLeastBlockRows = 8;  // of grouped_block_rows()

}  // namespace

ExpertMlp::ExpertMlp(device::cuda::DeviceContext& device, const ModelConfig& config,
                     const DeviceWeights& weights)
    : device_(device),
      config_(config),
      weights_(weights),
      is_wide_(kernels::cuda::can_multiply_wide()) {}

GroupedWeights ExpertMlp::kind_of(const DeviceExperts& experts) const {
  const bool some = experts.gate_up.format.has_value() || experts.down.format.has_value();
  const bool all = experts.gate_up.format.has_value() && experts.down.format.has_value();
  return all && is_wide_ ? GroupedWeights::kWideCodes
         : some          ? GroupedWeights::kCodes
                         : GroupedWeights::kFloats;
}

std::int64_t ExpertMlp::images_bytes(const DeviceExperts& experts, std::int64_t places) const {
  const std::int32_t count = config_.experts.count;
  const int block_rows = kernels::cuda::grouped_block_rows(places, count, kind_of(experts));
  if (block_rows != kernels::cuda::kGroupedWideRows) {
    return 0;
  }
  const std::int64_t groups = kernels::cuda::most_expert_rows(places, count, block_rows);
  const auto bytes = [&](const DeviceMatrix& matrix) {
    return kernels::cuda::grouped_images_bytes(*matrix.format, groups, matrix.inputs);
  };
  return std::max(bytes(experts.gate_up), bytes(experts.down));
}

Status ExpertMlp::reserve(std::int64_t rows, RecordedSteps& recorded) {
  const Experts& experts = config_.experts;
  const auto part = static_cast<std::size_t>(std::min(rows, kPartRows));
  const std::size_t places = part * static_cast<std::size_t>(experts.chosen);
  const auto inner = static_cast<std::size_t>(experts.intermediate_size);
  const auto groups = kernels::cuda::most_expert_rows(static_cast<std::int64_t>(places),
                                                      experts.count, kLeastBlockRows);
  QUIRE_TRY_STATUS(recorded.reserve(logits_, part * static_cast<std::size_t>(experts.count)));
  QUIRE_TRY_STATUS(recorded.reserve(ids_, places));
  QUIRE_TRY_STATUS(recorded.reserve(shares_, places));
  QUIRE_TRY_STATUS(recorded.reserve(row_of_, places));
  QUIRE_TRY_STATUS(recorded.reserve(places_of_, places));
  QUIRE_TRY_STATUS(recorded.reserve(groups_, static_cast<std::size_t>(groups)));
  QUIRE_TRY_STATUS(recorded.reserve(gate_up_, places * 2 * inner));
  QUIRE_TRY_STATUS(recorded.reserve(gated_, places * inner));
  QUIRE_TRY_STATUS(
      recorded.reserve(products_, places * static_cast<std::size_t>(config_.hidden_size)));
  std::int64_t images = 0;
  for (const DeviceLayer& layer : weights_.layers) {
    images = std::max(images, images_bytes(layer.experts, static_cast<std::int64_t>(places)));
  }
  return recorded.reserve(images_, static_cast<std::size_t>(images));
}

// Sets `ids_` and `shares_`.
Status ExpertMlp::choose(const MlpCall& call) {
  const Experts& experts = config_.experts;
  const DeviceExperts& layer = call.layer.experts;
  QUIRE_TRY_STATUS(
      to_status(kernels::cuda::route({.x = call.x,
                                      .norm = call.layer.mlp_norm.data(),
                                      .epsilon = static_cast<float>(config_.norm_epsilon),
                                      .weights = layer.router.data(),
                                      .bias = layer.router_bias.data(),
                                      .rows = call.rows,
                                      .width = config_.hidden_size,
                                      .experts = experts.count,
                                      .logits = logits_.data()},
                                     stream()),
                "route"));
  const bool by_sigmoid =
      experts.rule == RouterRule::kSigmoidOfAll || experts.rule == RouterRule::kSigmoidOfChosen;
  return to_status(
      kernels::cuda::choose_experts({.logits = logits_.data(),
                                     .rows = call.rows,
                                     .experts = experts.count,
                                     .chosen = experts.chosen,
                                     .groups = experts.groups,
                                     .chosen_groups = experts.chosen_groups,
                                     .by_sigmoid = by_sigmoid,
                                     .of_chosen = experts.rule == RouterRule::kSoftmaxOfChosen ||
                                                  experts.rule == RouterRule::kSigmoidOfChosen,
                                     .sum_epsilon = experts.sum_epsilon,
                                     .weight_scale = experts.weight_scale,
                                     .bias = layer.choice_bias.data(),
                                     .ids = ids_.data(),
                                     .weights = shares_.data()},
                                    stream()),
      "choose_experts");
}

// Sets `row_of_`, `places_of_` and `groups_`.
Result<ExpertMlp::Groups> ExpertMlp::group(const MlpCall& call) {
  const Experts& experts = config_.experts;
  Groups groups{.places = call.rows * experts.chosen};
  groups.block_rows =
      kernels::cuda::grouped_block_rows(groups.places, experts.count, kind_of(call.layer.experts));
  groups.count = kernels::cuda::most_expert_rows(groups.places, experts.count, groups.block_rows);
  QUIRE_TRY_STATUS(to_status(kernels::cuda::group_rows({.ids = ids_.data(),
                                                        .rows = call.rows,
                                                        .experts = experts.count,
                                                        .chosen = experts.chosen,
                                                        .block_rows = groups.block_rows,
                                                        .row_of = row_of_.data(),
                                                        .places_of = places_of_.data(),
                                                        .groups = groups_.data()},
                                                       stream()),
                             "group_rows"));
  return groups;
}

// Computes out [places, outputs] from rows of x, with the biases of the experts.
Status ExpertMlp::multiply(const DeviceMatrix& matrix, const Groups& groups, const Half* x,
                           const std::int32_t* row_of, float* out) {
  QUIRE_TRY_STATUS(to_status(kernels::cuda::multiply_groups({.dtype = weights_.dtype,
                                                             .weights = experts_of(matrix),
                                                             .x = x,
                                                             .row_of = row_of,
                                                             .groups = groups_.data(),
                                                             .num_groups = groups.count,
                                                             .block_rows = groups.block_rows,
                                                             .out = out,
                                                             .images = images_.data()},
                                                            stream()),
                             "multiply_groups"));
  if (matrix.bias.data() == nullptr) {
    return {};
  }
  return to_status(
      kernels::cuda::add_expert_bias({.groups = groups_.data(),
                                      .num_groups = groups.count,
                                      .bias = matrix.bias.data(),
                                      .width = static_cast<std::int32_t>(matrix.outputs),
                                      .out = out},
                                     stream()),
      "add_expert_bias");
}

Status ExpertMlp::run_part(const MlpCall& call) {
  const DeviceExperts& layer = call.layer.experts;
  QUIRE_TRY_STATUS(choose(call));
  QUIRE_TRY(const Groups groups, group(call));
  QUIRE_TRY_STATUS(multiply(layer.gate_up, groups, call.normed, row_of_.data(), gate_up_.data()));
  QUIRE_TRY_STATUS(to_status(kernels::cuda::gate_mul({.dtype = weights_.dtype,
                                                      .activation = config_.activation,
                                                      .has_gates = config_.gates_mlp,
                                                      .gate_up = gate_up_.data(),
                                                      .rows = groups.places,
                                                      .width = config_.experts.intermediate_size,
                                                      .out = gated_.data()},
                                                     stream()),
                             "gate_mul"));
  QUIRE_TRY_STATUS(multiply(layer.down, groups, gated_.data(), nullptr, products_.data()));
  return to_status(kernels::cuda::sum_experts({.products = products_.data(),
                                               .places_of = places_of_.data(),
                                               .weights = shares_.data(),
                                               .rows = call.rows,
                                               .chosen = config_.experts.chosen,
                                               .width = config_.hidden_size,
                                               .out = call.out,
                                               .accumulate = call.accumulate},
                                              stream()),
                   "sum_experts");
}

Status ExpertMlp::run(const MlpCall& call) {
  const std::int64_t hidden = config_.hidden_size;
  for (std::int64_t first = 0; first < call.rows; first += kPartRows) {
    QUIRE_TRY_STATUS(run_part({.layer = call.layer,
                               .x = call.x + first * hidden,
                               .normed = call.normed + first * hidden,
                               .rows = std::min(kPartRows, call.rows - first),
                               .out = call.out + first * hidden,
                               .accumulate = call.accumulate}));
  }
  return {};
}

}  // namespace quire::model::cuda
