#include "quire/model/cuda/mass_probe.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/mass.h"
#include "quire/attention/entry.h"
#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/model/cuda/device_step.h"
#include "quire/model/forward_batch.h"
#include "quire/result.h"

namespace quire::model::cuda {

using device::cuda::DeviceBuffer;

Status MassProbe::begin(const ForwardBatch& batch, const ForwardProbe& probe) {
  wanted_.clear();
  std::size_t tokens = 0;
  std::vector<std::int32_t> queries(batch.num_formats), blocks(batch.num_formats);
  for (std::size_t i = 0; i < probe.mass.size(); ++i) {
    const attention::Entry& entry = batch.entries[i];
    if (!probe.mass[i].empty()) {
      wanted_.push_back({i, queries[entry.format], blocks[entry.format], tokens});
      tokens += probe.mass[i].size();
    }
    queries[entry.format] += static_cast<std::int32_t>(entry.rows.size());
    blocks[entry.format] += static_cast<std::int32_t>(entry.blocks.size());
  }
  if (mass_.data() == nullptr || mass_.size() < tokens) {
    mass_ = {};
    QUIRE_TRY(mass_,
              DeviceBuffer<double>::make(device_->device_pool(), std::max<std::size_t>(tokens, 1)));
  }
  return device::cuda::fill_async(mass_.data(), 0, tokens * sizeof(double),
                                  device_->compute_stream().get());
}

Status MassProbe::weigh(const ForwardBatch& batch, const WindowStep& window, const FormatPlan& plan,
                        const attention::cuda::AttentionArgs& args, const DeviceStep& step) {
  const std::int64_t width = std::int64_t{args.heads} * args.kv.head_dim;
  const std::int32_t* const query_rows = step.get(plan.query_rows);
  const std::int32_t* const query_ends = step.query_ends() + plan.first_query;
  const std::int32_t* const positions = step.get(window.query_positions) + plan.first_query;
  for (const EntryMass& wanted : wanted_) {
    const attention::Entry& entry = batch.entries[wanted.entry];
    if (entry.format != plan.format) {
      continue;
    }
    QUIRE_TRY_STATUS(device::cuda::to_status(
        attention::cuda::add_mass(
            {.kv = args.kv,
             .blocks = args.work.blocks + plan.first_block + wanted.first_block,
             .first_token = entry.first_token,
             .num_tokens = entry.num_tokens,
             .stored_from = entry.stored_from,
             .window_tokens = window.window_tokens,
             .q = args.q + wanted.first_query * width,
             .query_rows = query_rows + wanted.first_query,
             .query_ends = query_ends + wanted.first_query,
             .query_positions = positions + wanted.first_query,
             .num_queries = static_cast<std::int32_t>(entry.rows.size()),
             .heads = args.heads,
             .kv_heads = args.kv_heads,
             .scale_log2 = args.scale_log2,
             .cap_log2 = args.cap_log2,
             .lse = args.lse,
             .mass = mass_.data() + wanted.first_token},
            device_->compute_stream().get()),
        "add_mass"));
  }
  return {};
}

Status MassProbe::end(ForwardProbe& probe) {
  std::size_t tokens = 0;
  for (const EntryMass& wanted : wanted_) {
    tokens += probe.mass[wanted.entry].size();
  }
  std::vector<double> mass(tokens);
  QUIRE_TRY_STATUS(device::cuda::copy_async(mass.data(), mass_.data(), tokens * sizeof(double),
                                            device_->compute_stream().get()));
  QUIRE_TRY_STATUS(device_->compute_stream().synchronize());
  for (const EntryMass& wanted : wanted_) {
    const std::span<double> to = probe.mass[wanted.entry];
    for (std::size_t token = 0; token < to.size(); ++token) {
      to[token] += mass[wanted.first_token + token];
    }
  }
  return {};
}

}  // namespace quire::model::cuda
