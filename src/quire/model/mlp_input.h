// The rows that MLPs and experts begin with.
#pragma once

#include <cstdint>
#include <span>

#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_rows.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"

namespace quire::model {

// The input of a layer's MLP.
struct MlpInput {
  std::span<const float> norm;  // [hidden]; empty: it is not normed
  std::span<const float> x;     // [rows, hidden]
  std::int64_t rows = 0;
};

// Packs the input, normed where the layer does that, for a matrix of `format`.
void pack_mlp_input(const kernels::KernelContext& context, const ModelConfig& config,
                    const MlpInput& input, kernels::WeightFormat format,
                    kernels::PackedRows& packed);

}  // namespace quire::model
