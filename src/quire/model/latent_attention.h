// LatentAttention: what attention over latents computes around the attention itself, on the CPU.
//
// A token's KV is one head: its key is the shared rotated key and the latent behind it, its value
// the latent. A query meets latents instead of keys: the projection of keys is applied to it. That
// of values is applied to the sum of latents. So no keys and values of heads are made.
//
// Thread rule: one call at a time; a call spreads over the pool of its context.
#pragma once

#include <cstdint>
#include <span>

#include "quire/device/aligned_buffer.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/linear.h"
#include "quire/kernels/packed_rows.h"
#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"

namespace quire::model {

class LatentAttention {
 public:
  // Borrows `config`.
  LatentAttention(const kernels::KernelContext& context, const ModelConfig& config)
      : context_(context), config_(config) {}

  // Where the queries, keys and values of T rows go: row r begins at [r * stride].
  struct Rows {
    std::span<float> q;  // [heads * head_dim], not yet rotated
    std::span<float> k;  // [head_dim], not yet rotated
    std::span<float> v;  // [head_dim]; zeros behind the latent
    std::int64_t stride = 0;
  };
  // Computes them from x [T, H].
  void project(const LayerWeights& layer, std::span<const float> x, std::int64_t rows,
               const Rows& to, kernels::LinearScratch& scratch);
  // Returns [T, heads * value_dim] from what the heads have attended to, [T, heads * head_dim].
  // Valid until the next call.
  [[nodiscard]] std::span<float> values_of(const LayerWeights& layer,
                                           std::span<const float> attended, std::int64_t rows,
                                           kernels::LinearScratch& scratch);

 private:
  void make_queries(const LayerWeights& layer, std::span<const float> from, std::int64_t rows,
                    const Rows& to, kernels::LinearScratch& scratch);

  kernels::KernelContext context_;
  const ModelConfig& config_;
  kernels::PackedRows packed_;
  device::AlignedBuffer<float> down_;     // [T, down_width]
  device::AlignedBuffer<float> queries_;  // [T, queries_width], where queries have a rank
  device::AlignedBuffer<float> values_;   // [T, heads * value_dim]
};

}  // namespace quire::model
