// LayerInputs: vectors of a token for each layer (Gemma 4), on the CPU. A layer adds a gated
// projection of its own to its rows.
//
// Thread rule: one call at a time; a call spreads over the pool of its context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/device/aligned_buffer.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/linear.h"
#include "quire/kernels/packed_rows.h"
#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"
#include "quire/types.h"

namespace quire::model {

class LayerInputs {
 public:
  // Borrows both.
  LayerInputs(const kernels::KernelContext& context, const ModelConfig& config)
      : context_(context), config_(config) {}

  // Computes the vectors of T tokens, from their own and from their scaled embeddings [T, H].
  void prepare(const DecoderWeights& weights, std::span<const TokenId> token_ids,
               std::span<const float> embedded, kernels::LinearScratch& scratch);
  // Adds to x [rows, H] what layer `index` makes of its vectors. `kept` names the token of each
  // row; empty: row r is of token r.
  void add(const LayerWeights& layer, std::size_t index, std::span<const std::int32_t> kept,
           std::span<float> x, kernels::LinearScratch& scratch);

 private:
  kernels::KernelContext context_;
  const ModelConfig& config_;
  kernels::PackedRows packed_;
  device::AlignedBuffer<float> vectors_;  // [T, layers * size]
  device::AlignedBuffer<float> looked_up_;
  device::AlignedBuffer<float> gates_;   // [rows, size]
  device::AlignedBuffer<float> output_;  // [rows, H]
};

}  // namespace quire::model
