#include "quire/diagnostics/bench_floors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "quire/kernels/ceilings.h"
#include "quire/kernels/device_ceilings.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/decoder.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::diagnostics {
namespace {

constexpr std::size_t kReadBytes = std::size_t{1} << 30;

double peak_of(const kernels::KernelContext& context, kernels::WeightFormat format) {
  const kernels::ComputePeaks peaks = kernels::measure_compute_peaks(context);
  switch (format) {
    case kernels::WeightFormat::kF32:
      return peaks.f32;
    case kernels::WeightFormat::kBf16:
      return peaks.bf16;
    default:
      return peaks.int8;
  }
}

struct Matrix {
  double columns, depth;
};

// The four matrices of a layer, as the decoder multiplies them.
std::array<Matrix, 4> layer_matrices(const model::ModelConfig& config) {
  const double hidden = config.hidden_size;
  const double queries = static_cast<double>(config.heads) * config.head_dim;
  const double keys = static_cast<double>(config.kv_heads) * config.head_dim;
  const double inner = config.intermediate_size;
  return {{{queries + 2 * keys, hidden}, {hidden, queries}, {2 * inner, hidden}, {hidden, inner}}};
}

double layer_values(const model::ModelConfig& config) {
  double values = 0;
  for (const Matrix& matrix : layer_matrices(config)) {
    values += matrix.columns * matrix.depth;
  }
  return values * config.layers;
}

double head_values(const model::ModelConfig& config) {
  return static_cast<double>(config.vocab_size) * config.hidden_size;
}

}  // namespace

BenchFloors::BenchFloors(const kernels::KernelContext& context, const model::Decoder& decoder,
                         const tensor::KVGeometry& kv,
                         const std::optional<kernels::DeviceCeilings>& device)
    : context_(context),
      config_(decoder.config()),
      weights_(decoder.pack_report()),
      kv_token_bytes_(
          2.0 * config_.layers * config_.kv_heads *
          (config_.head_dim * tensor::kv_value_bytes(kv.format, kv.dtype) + kv.scale_bytes())),
      read_bandwidth_(device ? device->read_bytes_per_second
                             : kernels::measure_read_bandwidth(context, kReadBytes)),
      peak_(device ? device->flops_per_second : peak_of(context, weights_.main_format)),
      on_device_(device.has_value()) {}

double BenchFloors::layer_flops(const StepWork& work) const {
  const double attention =
      4.0 * config_.layers * config_.heads * config_.head_dim * work.rows * work.attended_tokens;
  return 2.0 * work.rows * layer_values(config_) + attention;
}

double BenchFloors::bytes(const StepWork& work) const {
  const std::int64_t matrices =
      weights_.layer_bytes + (work.logit_rows > 0 ? weights_.head_bytes : 0);
  return static_cast<double>(matrices) + work.kv_tokens * kv_token_bytes_;
}

double BenchFloors::floor_seconds(const StepWork& work) const {
  const double flops = layer_flops(work) + 2.0 * work.logit_rows * head_values(config_);
  return std::max(flops / peak_, bytes(work) / read_bandwidth_);
}

double BenchFloors::linear_seconds(const StepWork& work) {
  if (on_device_) {
    return 0;
  }
  const auto rows = static_cast<std::int64_t>(std::max(1.0, std::round(work.rows)));
  double seconds = 0;
  for (const Matrix& matrix : layer_matrices(config_)) {
    const double rate = kernels::measure_linear_rate(context_, weights_.main_format, rows,
                                                     static_cast<std::int64_t>(matrix.columns),
                                                     static_cast<std::int64_t>(matrix.depth));
    seconds += 2.0 * work.rows * matrix.columns * matrix.depth / rate * config_.layers;
  }
  if (work.logit_rows > 0) {
    const double rate = kernels::measure_linear_rate(context_, weights_.main_format,
                                                     static_cast<std::int64_t>(work.logit_rows),
                                                     config_.vocab_size, config_.hidden_size);
    seconds += 2.0 * work.logit_rows * head_values(config_) / rate;
  }
  return seconds;
}

}  // namespace quire::diagnostics
