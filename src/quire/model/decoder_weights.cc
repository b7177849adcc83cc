#include "quire/model/decoder_weights.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/result.h"

namespace quire::model {
namespace {

using kernels::WeightFormat;

// Sums what visit_weights shows.
struct ParameterCounter {
  std::int64_t total = 0;
  Status matrix(const WeightId& /*id*/, const kernels::PackedWeights& /*weights*/,
                std::int64_t columns, std::int64_t depth) {
    total += columns * depth;
    return {};
  }
  Status vector(const WeightId& /*id*/, const std::vector<float>& /*values*/, std::int64_t size) {
    total += size;
    return {};
  }
};

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
  if (role == WeightRole::kEmbedding && quantised) {
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
  DecoderWeights shape;
  shape.layers.resize(static_cast<std::size_t>(config.layers));
  ParameterCounter counter;
  (void)visit_weights(config, shape, counter);  // the counter never fails
  return counter.total;
}

}  // namespace quire::model
