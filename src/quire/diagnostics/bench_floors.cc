#include "quire/diagnostics/bench_floors.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "quire/attention/cpu/kernel_table.h"
#include "quire/diagnostics/peaks.h"
#include "quire/kernels/ceilings.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/decoder.h"
#include "quire/model/layer_plan.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::diagnostics {
namespace {

using kernels::WeightFormat;

// Returns the product that takes as long as those of KV. Scores and values are products of queries
// and probabilities with KV, as those of rows with weights of the same type. Vectors multiply int8
// codes with integers of 16 bits. Formats of blocks are widened first.
kernels::Product product_of(const kernels::KernelContext& context, const tensor::KVGeometry& kv) {
  const bool codes_as_bf16 = attention::kernels_for(context.table->isa).bf16_code_queries;
  if (kv.format == tensor::KVFormat::kInt8 && !codes_as_bf16) {
    return kernels::Product::kInt16Pairs;
  }
  const bool fp32 =
      tensor::is_written_by_block(kv.format)
          ? !codes_as_bf16
          : kv.format == tensor::KVFormat::kPlain && kv.dtype == tensor::DType::kFloat32;
  return kernels::product_of(context, fp32 ? WeightFormat::kF32 : WeightFormat::kBf16, 1);
}

double bytes_of_layer(const tensor::KVGeometry& kv) {
  if (tensor::is_written_by_block(kv.format)) {
    const double stored = 2.0 * kv.stored_head_dim() * kv.stored_block_tokens();
    return 2.0 * kv.kv_heads * kv.head_dim * static_cast<double>(kv.head_block_bytes()) / stored;
  }
  const double number_bytes = tensor::kv_value_bytes(kv.format, kv.dtype);
  return 2.0 * kv.kv_heads * (kv.head_dim * number_bytes + kv.scale_bytes());
}

double values_of(WeightFormat format, std::int64_t bytes) {
  constexpr double kStepValues = double{kernels::kPanelColumns} * kernels::kStepDepth;
  return static_cast<double>(bytes) / kernels::step_bytes(format) * kStepValues;
}

}  // namespace

double StepWork::seen_tokens(std::int32_t window) const {
  const double first = own_tokens + shared_tokens + 1;  // tokens that the first row sees
  const double last = first + rows - 1;
  if (window == 0 || last <= window) {
    return (first + last) / 2;
  }
  const double growing = std::max(0.0, window - first + 1);  // rows that see fewer
  return (growing * (first + window) / 2 + (rows - growing) * window) / rows;
}

double StepWork::read_tokens(std::int32_t window) const {
  if (window == 0) {
    return sequences * own_tokens + shared_tokens;
  }
  const double own = std::min<double>(own_tokens, window - 1);
  return sequences * own + std::clamp(window - 1 - own_tokens, 0.0, shared_tokens);
}

BenchFloors::BenchFloors(Peaks& peaks, const model::Decoder& decoder, const tensor::KVGeometry& kv)
    : peaks_(peaks),
      config_(decoder.config()),
      weights_(decoder.pack_report()),
      kv_product_(product_of(peaks.context(), kv)),
      kv_layer_bytes_(bytes_of_layer(kv)) {}

double BenchFloors::mlp_rows(model::MlpKind kind, const StepWork& work) const {
  double rows = 0;
  for (std::int32_t layer = 0; layer < config_.layers; ++layer) {
    const bool is_last = layer + 1 == config_.layers;
    if (config_.layer_plan(static_cast<std::size_t>(layer)).mlp == kind) {
      rows += is_last ? work.logit_rows : work.all_rows();
    }
  }
  return rows;
}

double BenchFloors::experts_read(double rows) const {
  const double chosen = static_cast<double>(config_.experts.chosen) / config_.experts.count;
  return 1 - std::pow(1 - chosen, rows);
}

double BenchFloors::expert_bytes(const StepWork& work) const {
  double layers_read = 0;
  double expert_layers = 0;
  for (std::size_t layer = 0; layer < config_.mlps.size(); ++layer) {
    const bool is_last = layer + 1 == config_.mlps.size();
    if (config_.mlps[layer] == model::MlpKind::kExperts) {
      layers_read += experts_read(is_last ? work.logit_rows : work.all_rows());
      expert_layers += 1;
    }
  }
  return static_cast<double>(weights_.expert_bytes) * layers_read / std::max(expert_layers, 1.0);
}

// Returns the matrices of all layers. The last layer goes on with rows of logits alone, once the
// keys and values of all rows are there.
std::vector<BenchFloors::Matrix> BenchFloors::layer_matrices(const StepWork& work) const {
  const double hidden = config_.hidden_size;
  const double queries = static_cast<double>(config_.heads) * config_.head_dim;
  const double keys = static_cast<double>(config_.kv_heads) * config_.head_dim;
  const double inner = config_.intermediate_size;
  const auto parts = static_cast<double>(config_.mlp_parts());
  const double projected = layers() * work.all_rows();
  const double others = projected - work.all_rows() + work.logit_rows;
  const double dense = mlp_rows(model::MlpKind::kDense, work);
  std::vector<Matrix> matrices = {
      {.columns = queries + 2 * keys, .depth = hidden, .rows = projected},
      {.columns = hidden, .depth = queries, .rows = others}};
  if (config_.mlps.empty() || dense > 0) {
    matrices.push_back({.columns = parts * inner, .depth = hidden, .rows = dense});
    matrices.push_back({.columns = hidden, .depth = inner, .rows = dense});
  }
  const double routed = mlp_rows(model::MlpKind::kExperts, work);
  if (routed > 0) {
    const double expert = config_.experts.intermediate_size;
    const double shared = config_.experts.shared_size;
    const double taken = routed * config_.experts.chosen;
    matrices.push_back(
        {.columns = double{1} * config_.experts.count, .depth = hidden, .rows = routed});
    matrices.push_back(
        {.columns = parts * expert, .depth = hidden, .rows = taken, .of_experts = true});
    matrices.push_back({.columns = hidden, .depth = expert, .rows = taken, .of_experts = true});
    if (shared > 0) {
      matrices.push_back({.columns = parts * shared, .depth = hidden, .rows = routed});
      matrices.push_back({.columns = hidden, .depth = shared, .rows = routed});
    }
  }
  return matrices;
}

BenchFloors::Matrix BenchFloors::head(const StepWork& work) const {
  return {.columns = static_cast<double>(config_.vocab_size),
          .depth = static_cast<double>(config_.hidden_size),
          .rows = work.logit_rows};
}

double BenchFloors::attention_flops(const StepWork& work) const {
  double pairs = 0;  // pairs of rows and tokens, in all layers
  for (std::size_t layer = 0; layer < config_.window_tokens.size(); ++layer) {
    const bool is_last = layer + 1 == config_.window_tokens.size();
    pairs += (is_last ? work.logit_rows : work.all_rows()) *
             work.seen_tokens(config_.window_tokens[layer]);
  }
  return 4.0 * config_.heads * config_.head_dim * pairs;
}

double BenchFloors::bytes(const StepWork& work) const {
  double kv = 0;
  for (const std::int32_t window : config_.window_tokens) {
    kv += work.read_tokens(window) * kv_layer_bytes_;
  }
  const auto layer_bytes = static_cast<double>(weights_.layer_bytes - weights_.expert_bytes);
  const double experts = expert_bytes(work);
  if (work.logit_rows > 0) {
    return layer_bytes + experts + static_cast<double>(weights_.head_bytes) + kv;
  }
  double values = 0;  // values that the last layer reads, and those of a whole layer
  double all_values = 0;
  for (const Matrix& matrix : layer_matrices({})) {
    if (matrix.of_experts) {
      continue;
    }
    all_values += matrix.columns * matrix.depth;
    values += matrix.rows < layers() ? 0 : matrix.columns * matrix.depth;
  }
  return layer_bytes * (1 - (1 - values / all_values) / layers()) + experts + kv;
}

double BenchFloors::floor_seconds(const StepWork& work) const {
  double flops = 0;
  for (const Matrix& matrix : layer_matrices(work)) {
    flops += matrix.flops();
  }
  double all_values = 0;
  for (int i = 0; i < kernels::kWeightFormats; ++i) {
    all_values += values_of(static_cast<WeightFormat>(i),
                            weights_.layer_bytes_of[static_cast<std::size_t>(i)]);
  }
  double seconds = attention_flops(work) / peaks_.flops(kv_product_);
  for (int i = 0; i < kernels::kWeightFormats; ++i) {
    const auto format = static_cast<WeightFormat>(i);
    const double values = values_of(format, weights_.layer_bytes_of[static_cast<std::size_t>(i)]);
    if (values > 0) {
      seconds += flops * values / all_values / peaks_.flops(format, work.all_rows());
    }
  }
  if (work.logit_rows > 0) {
    seconds += head(work).flops() / peaks_.flops(weights_.head_format, work.logit_rows);
  }
  return std::max(seconds, peaks_.read_seconds(bytes(work)));
}

double BenchFloors::linear_seconds(const StepWork& work) const {
  if (peaks_.on_device()) {
    return 0;
  }
  const auto seconds_of = [&](const Matrix& matrix, WeightFormat format, double rows) {
    const double rate = kernels::measure_linear_rate(
        peaks_.context(), format, static_cast<std::int64_t>(std::max(1.0, std::round(rows))),
        static_cast<std::int64_t>(matrix.columns), static_cast<std::int64_t>(matrix.depth));
    return matrix.flops() / rate;
  };
  double seconds = 0;
  for (const Matrix& matrix : layer_matrices(work)) {
    double rows = work.all_rows();
    if (matrix.of_experts) {
      rows *= config_.experts.chosen / (config_.experts.count * experts_read(rows));
    }
    seconds += seconds_of(matrix, weights_.main_format, rows);
  }
  if (work.logit_rows > 0) {
    seconds += seconds_of(head(work), weights_.head_format, work.logit_rows);
  }
  return seconds;
}

}  // namespace quire::diagnostics
