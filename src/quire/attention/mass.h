// Attention mass: how much query rows look at each token, from the log-sum-exp that run() gives.
// Used to choose what to compute again, not to compute anything; so plain code, fp32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/attention/attention_plan.h"
#include "quire/attention/entry.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/rotary.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::attention {

struct MassParams {
  AttentionShape shape;
  std::span<const Entry> entries;
  const AttentionPlan* plan = nullptr;  // plan made of these entries
  std::int32_t window_tokens = 0;       // as given to PlanMaker
  std::span<const float> q;             // queries as in RunParams
  std::ptrdiff_t q_stride = 0;
  const kernels::RotaryTable* rotary = nullptr;
  std::span<const float> lse;                       // [rows, heads], of run() over all entries
  std::span<const std::span<double>> mass;          // [entries] of [tokens of the run], or empty
  std::span<const tensor::PagedKVView> views = {};  // as in RunParams
};

// Adds to mass[e][token] the probability that the rows of entry e give the token, summed over rows
// and heads. Cost: 2 * rows * heads * tokens * head_dim FLOP.
void add_mass(const kernels::KernelContext& context, const MassParams& params,
              const tensor::PagedKVView& view);

}  // namespace quire::attention
