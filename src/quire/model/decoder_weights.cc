#include "quire/model/decoder_weights.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "quire/base/str.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/result.h"

namespace quire::model {
namespace {

using kernels::WeightFormat;

// Sums what visit_weights shows, of each layer's experts at most the first `experts`.
struct ParameterCounter {
  int experts;
  std::int64_t total = 0;
  Status matrix(const WeightId& id, const kernels::PackedWeights& /*weights*/, std::int64_t columns,
                std::int64_t depth) {
    total += id.expert < experts ? columns * depth : 0;
    return {};
  }
  Status vector(const WeightId& id, const std::vector<float>& /*values*/, std::int64_t size) {
    total += id.expert < experts ? size : 0;
    return {};
  }
};

std::int64_t count_parameters(const ModelConfig& config, int experts) {
  DecoderWeights shape;
  shape.layers.resize(static_cast<std::size_t>(config.layers));
  ParameterCounter counter{.experts = experts};
  (void)visit_weights(config, shape, counter);  // the counter never fails
  return counter.total;
}

// Sums the bytes that they take once packed.
struct PackedByteCounter {
  const ModelConfig& config;
  kernels::WeightFormat format;
  std::int64_t total = 0;
  Status matrix(const WeightId& id, const kernels::PackedWeights& /*weights*/, std::int64_t columns,
                std::int64_t depth) {
    const auto packed = weight_format(config, id.role, format);
    total += kernels::packed_bytes(packed, columns, depth).value_or(0);
    return {};
  }
  Status vector(const WeightId& /*id*/, const std::vector<float>& /*values*/, std::int64_t size) {
    total += size * static_cast<std::int64_t>(sizeof(float));
    return {};
  }
};

}  // namespace

WeightFormat weight_format(const ModelConfig& config, WeightRole role, WeightFormat format) {
  const bool quantised = format == WeightFormat::kQ8g32 || format == WeightFormat::kQ4g32 ||
                         format == WeightFormat::kF8;
  if (is_router(role)) {
    return WeightFormat::kF32;
  }
  const bool is_looked_up = role == WeightRole::kEmbedding || role == WeightRole::kLayerEmbedding;
  if (is_looked_up && quantised) {
    return WeightFormat::kBf16;
  }
  if (role == WeightRole::kHead && config.tied_embeddings && quantised) {
    return WeightFormat::kQ8g32;
  }
  return format;
}

std::int64_t packed_weight_bytes(const ModelConfig& config, kernels::WeightFormat format) {
  DecoderWeights shape;
  shape.layers.resize(static_cast<std::size_t>(config.layers));
  PackedByteCounter counter{config, format};
  (void)visit_weights(config, shape, counter);  // the counter never fails
  return counter.total;
}

std::int64_t num_parameters(const ModelConfig& config) {
  return count_parameters(config, std::numeric_limits<int>::max());
}

std::int64_t num_active_parameters(const ModelConfig& config) {
  return count_parameters(config, config.experts.chosen);
}

Status check_expert_formats(const DecoderWeights& weights) {
  for (std::size_t i = 0; i < weights.layers.size(); ++i) {
    const auto& experts = weights.layers[i].experts;
    for (std::size_t expert = 1; expert < experts.size(); ++expert) {
      if (experts[expert].gate_up.weights.format() != experts[0].gate_up.weights.format() ||
          experts[expert].down.weights.format() != experts[0].down.weights.format()) {
        return {ErrorCode::kUnsupported,
                base::str_cat("layer ", i, " has experts 0 and ", expert,
                              " in different formats, which is not implemented; name one with "
                              "quantize=")};
      }
    }
  }
  return {};
}

}  // namespace quire::model
