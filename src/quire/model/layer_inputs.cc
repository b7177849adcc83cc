#include "quire/model/layer_inputs.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/elementwise.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/linear.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"
#include "quire/model/step_rows.h"
#include "quire/types.h"

namespace quire::model {

void LayerInputs::prepare(const DecoderWeights& weights, std::span<const TokenId> token_ids,
                          std::span<const float> embedded, kernels::LinearScratch& scratch) {
  const std::int64_t size = config_.layer_inputs.size;
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t width = size * config_.layers;
  const auto rows = std::ssize(token_ids);
  const kernels::PackedWeights& projection = weights.layer_projection.weights;
  const auto vectors = rows_in(vectors_, rows, width);
  kernels::pack_rows(context_, projection.format(), {embedded, hidden, rows, hidden}, packed_);
  kernels::linear(context_, projection, packed_, {vectors, width}, {}, scratch);
  kernels::scale(context_, static_cast<float>(1.0 / std::sqrt(static_cast<double>(hidden))),
                 vectors);
  kernels::rms_norm_heads(context_, {vectors, width, rows, config_.layers},
                          weights.layer_input_norm, config_.norm_epsilon);
  const auto looked_up = rows_in(looked_up_, rows, width);
  kernels::embed(context_, weights.layer_embedding, token_ids, looked_up);
  kernels::add_scaled(context_, looked_up,
                      config_.rounded_factor(std::sqrt(static_cast<double>(size))), vectors);
  kernels::scale(context_, static_cast<float>(std::sqrt(0.5)), vectors);
}

void LayerInputs::add(const LayerWeights& layer, std::size_t index,
                      std::span<const std::int32_t> kept, std::span<float> x,
                      kernels::LinearScratch& scratch) {
  const std::int64_t size = config_.layer_inputs.size;
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t width = size * config_.layers;
  const std::int64_t rows = std::ssize(x) / hidden;
  const kernels::PackedWeights& gate = layer.input_gate.weights;
  const auto gates = rows_in(gates_, rows, size);
  kernels::pack_rows(context_, gate.format(), {x, hidden, rows, hidden}, packed_);
  kernels::linear(context_, gate, packed_, {gates, size}, {}, scratch);
  const auto multiply = context_.table->gate_mul[static_cast<int>(config_.activation)];
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t token = kept.empty() ? row : kept[static_cast<std::size_t>(row)];
    const float* vector = vectors_.data() + token * width + static_cast<std::int64_t>(index) * size;
    float* out = gates.data() + row * size;
    multiply({.gate = out, .up = vector, .count = size, .out = out});
  }
  const kernels::PackedWeights& up = layer.input_projection.weights;
  const auto output = rows_in(output_, rows, hidden);
  kernels::pack_rows(context_, up.format(), {gates, size, rows, size}, packed_);
  kernels::linear(context_, up, packed_, {output, hidden}, {}, scratch);
  kernels::rms_norm(context_, output, layer.input_norm, config_.norm_epsilon, rows, output);
  kernels::add_scaled(context_, output, 1.0f, x);
}

}  // namespace quire::model
