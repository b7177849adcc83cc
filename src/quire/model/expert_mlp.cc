#include "quire/model/expert_mlp.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "quire/base/divide.h"
#include "quire/kernels/elementwise.h"
#include "quire/kernels/grouped_linear.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/linear.h"
#include "quire/kernels/packed_rows.h"
#include "quire/kernels/packed_weights.h"
#include "quire/kernels/parallel.h"
#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"
#include "quire/model/layer_plan.h"
#include "quire/model/mlp_input.h"
#include "quire/model/routing.h"
#include "quire/model/state_weights.h"
#include "quire/model/step_rows.h"

namespace quire::model {
namespace {

// Up to so many values of products are kept until all are there; more would leave the caches.
constexpr std::int64_t kKeptProducts = std::int64_t{1} << 18;
// An expert's exponential costs as much as so many elements of a row operation.
constexpr std::int64_t kElementsPerLogit = 16;

// The products of a row, one for each of its experts.
struct RowProducts {
  const float* products = nullptr;  // [places][stride]
  std::int64_t stride = 0;
  std::span<const std::int32_t> places;  // of the row's experts, in order of ids
  std::span<const float> weights;        // of all places
};

// Adds up columns [first, first + count), as linear_groups_summed does.
void add_up(const RowProducts& from, std::int64_t first, std::int64_t count, bool accumulate,
            float* out) {
  constexpr std::int64_t kMost = 32;
  float sums[kMost] = {};
  for (const std::int32_t place : from.places) {
    const float weight = from.weights[static_cast<std::size_t>(place)];
    float products[kMost];
    std::memcpy(products, from.products + place * from.stride + first, sizeof(products));
    for (int i = 0; i < kMost; ++i) {
      sums[i] = sums[i] + weight * products[i];
    }
  }
  for (std::int64_t i = 0; i < count; ++i) {
    out[first + i] = accumulate ? out[first + i] + sums[i] : sums[i];
  }
}

}  // namespace

// Sets `routing_`: logits of the router, each row's experts, and rows grouped by expert.
void ExpertMlp::route(const kernels::KernelContext& context, const ModelConfig& config,
                      const Call& call, kernels::LinearScratch& scratch) {
  const Experts& experts = config.experts;
  const auto count = static_cast<std::size_t>(experts.count);
  const auto chosen = static_cast<std::size_t>(experts.chosen);
  const LinearWeights& router = call.layer.router;
  const bool has_norms = experts.has_norms;
  pack_mlp_input(context, config,
                 {has_norms ? call.layer.router_norm : call.layer.mlp_norm, call.x, call.rows},
                 router.weights.format(), packed_);
  const auto logits = rows_in(logits_, call.rows, experts.count);
  kernels::linear(context, router.weights, packed_, {logits, experts.count}, {.bias = router.bias},
                  scratch);
  ids_.resize(static_cast<std::size_t>(call.rows) * chosen);
  weights_.resize(ids_.size());
  kernels::parallel_ranges(
      context, call.rows, experts.count * kElementsPerLogit,
      [&](std::int64_t begin, std::int64_t end) {
        for (auto row = static_cast<std::size_t>(begin); std::cmp_less(row, end); ++row) {
          choose_experts(experts, call.layer.choice_bias, logits.subspan(row * count, count),
                         std::span(ids_).subspan(row * chosen, chosen),
                         std::span(weights_).subspan(row * chosen, chosen));
          for (std::size_t i = row * chosen; has_norms && i < (row + 1) * chosen; ++i) {
            weights_[i] *= call.layer.expert_scales[static_cast<std::size_t>(ids_[i])];
          }
        }
      });
  group_rows(experts, ids_, weights_, routing_);
}

void ExpertMlp::set_groups(const LayerWeights& layer, bool down) {
  groups_.clear();
  for (const Routing::Group& group : routing_.groups) {
    const LayerWeights::Expert& expert = layer.experts[static_cast<std::size_t>(group.expert)];
    const LinearWeights& linear = down ? expert.down : expert.gate_up;
    groups_.push_back({.weights = &linear.weights,
                       .bias = linear.bias,
                       .first = group.first,
                       .rows = group.rows});
  }
}

// Sets `grouped_`: the input of the experts.
void ExpertMlp::gather(const kernels::KernelContext& context, const ModelConfig& config,
                       const Call& call) {
  const LayerWeights& layer = call.layer;
  pack_mlp_input(
      context, config,
      {config.experts.has_norms ? layer.experts_norm : layer.mlp_norm, call.x, call.rows},
      groups_.front().weights->format(), packed_);
  kernels::gather_packed_rows(context, packed_, routing_.rows, groups_, grouped_);
}

// Sets `gated_` for experts whose gate and up share a panel, one expert after the other.
void ExpertMlp::gate_each(const kernels::KernelContext& context, const ModelConfig& config,
                          const Call& call, kernels::LinearScratch& scratch) {
  const std::int64_t width = config.experts.intermediate_size;
  const std::int64_t both_width = config.mlp_parts() * width;
  const auto places = std::ssize(routing_.rows);
  const auto inner = rows_in(inner_, places, width);
  for (const kernels::RowGroup& group : groups_) {
    const kernels::RowGroup alone = {.weights = group.weights, .first = 0, .rows = group.rows};
    kernels::gather_packed_rows(
        context, packed_,
        std::span(routing_.rows)
            .subspan(static_cast<std::size_t>(group.first), static_cast<std::size_t>(group.rows)),
        {&alone, 1}, one_);
    const auto both = rows_in(both_, group.rows, both_width);
    kernels::linear(context, *group.weights, one_, {both, both_width}, {.bias = group.bias},
                    scratch);
    const auto own = inner.subspan(static_cast<std::size_t>(group.first * width),
                                   static_cast<std::size_t>(group.rows * width));
    if (config.gates_mlp) {
      kernels::gate_mul(context, call.plan.activation, both, group.rows, own);
    } else {
      kernels::gate_self(context, call.plan.activation, both, own);
    }
  }
  kernels::PackedRows& all = one_;
  kernels::pack_rows(context, call.layer.experts.front().down.weights.format(),
                     {inner, width, places, width}, all);
  ids_.resize(static_cast<std::size_t>(places));
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    ids_[i] = static_cast<std::int32_t>(i);
  }
  kernels::gather_packed_rows(context, all, ids_, groups_, gated_);
}

// Sets `gated_`: activation(gate) * up of each expert's rows.
void ExpertMlp::gate(const kernels::KernelContext& context, const ModelConfig& config,
                     const Call& call, kernels::LinearScratch& scratch) {
  set_groups(call.layer, false);
  gather(context, config, call);
  if (!config.gates_mlp || !kernels::can_gate(*groups_.front().weights)) {
    gate_each(context, config, call, scratch);
    return;
  }
  kernels::linear_gated_groups(
      context, groups_, grouped_,
      {gated_, call.layer.experts.front().down.weights.format(), call.plan.activation}, scratch);
}

// Adds up the products of few rows, which are kept until all are there.
void ExpertMlp::add_products(const kernels::KernelContext& context, const ModelConfig& config,
                             const Call& call, kernels::LinearScratch& scratch) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t panels = base::divide_up(hidden, std::int64_t{kernels::kPanelColumns});
  const std::int64_t width = panels * kernels::kPanelColumns;
  const auto chosen = static_cast<std::size_t>(config.experts.chosen);
  const auto products = rows_in(products_, std::ssize(routing_.rows), width);
  kernels::linear_groups(context, groups_, gated_, {products, width}, scratch);
  const std::span<const std::int32_t> places = routing_.places;
  kernels::parallel_ranges(
      context, call.rows * panels, std::int64_t{kernels::kPanelColumns} * config.experts.chosen,
      [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t row = i / panels;
          const std::int64_t first = i % panels * kernels::kPanelColumns;
          add_up({products.data(), width,
                  places.subspan(static_cast<std::size_t>(row) * chosen, chosen), routing_.weights},
                 first, std::min<std::int64_t>(kernels::kPanelColumns, hidden - first),
                 call.accumulate, call.out.data() + row * hidden);
        }
      });
}

// Adds up the products of many rows as they come.
void ExpertMlp::sum_products(const kernels::KernelContext& context, const ModelConfig& config,
                             const Call& call, kernels::LinearScratch& scratch) {
  const std::int64_t hidden = config.hidden_size;
  const auto sums = call.accumulate ? rows_in(sums_, call.rows, hidden) : call.out;
  kernels::linear_groups_summed(context, groups_, gated_,
                                {call.rows, routing_.rows, routing_.weights}, {sums, hidden},
                                scratch);
  if (call.accumulate) {
    kernels::add_scaled(context, sums, 1.0f, call.out);
  }
}

void ExpertMlp::run(const kernels::KernelContext& context, const ModelConfig& config,
                    const Call& call, kernels::LinearScratch& scratch) {
  if (call.rows == 0) {
    return;
  }
  route(context, config, call, scratch);
  gate(context, config, call, scratch);
  set_groups(call.layer, true);
  if (std::ssize(routing_.rows) * config.hidden_size <= kKeptProducts) {
    add_products(context, config, call, scratch);
  } else {
    sum_products(context, config, call, scratch);
  }
}

}  // namespace quire::model
