// Rotation of queries and keys where layers differ: the tables of each RopeKind, and queries that
// grow with their position.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/kernels/kernel_context.h"
#include "quire/kernels/rotary.h"
#include "quire/model/config.h"
#include "quire/model/forward_batch.h"
#include "quire/model/layer_plan.h"

namespace quire::model {

// Both by RopeKind. The table of no rope stays empty, so that it rotates nothing.
using WantedRopes = std::array<bool, kRopeKinds>;
using RotaryTables = std::array<kernels::RotaryTable, kRopeKinds>;

constexpr std::size_t index_of(RopeKind rope) { return static_cast<std::size_t>(rope); }

// Fills the tables of the wanted ropes, a row for each position.
void fill_rotary(const kernels::KernelContext& context, const ModelConfig& config,
                 const WantedRopes& wanted, std::span<const std::int32_t> positions,
                 RotaryTables& tables);

// Multiplies each query by the factor of its position in the sequence (Scales::query_growth). Row r
// begins at q[r * stride].
void grow_queries(const kernels::KernelContext& context, const ModelConfig& config,
                  const ForwardBatch& batch, std::span<float> q, std::int64_t stride);

}  // namespace quire::model
