// Runs the decoder's passes on a GPU. A step's arrays go up in one copy, and its kernels are queued
// one after the other. The host waits once, for the tokens or the logits. Before it does, the next
// step may be queued behind. The kernels of small steps, which decode, are recorded as graphs, one
// for each shape of a step.
#include "quire/model/cuda/cuda_backend.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/fixed_range.h"
#include "quire/base/check.h"
#include "quire/base/stopwatch.h"
#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/choice.h"
#include "quire/kernels/cuda/coded_weights.h"
#include "quire/kernels/cuda/residual.h"
#include "quire/kernels/cuda/rows.h"
#include "quire/kernels/cuda/state_ops.h"
#include "quire/model/config.h"
#include "quire/model/cuda/device_step.h"
#include "quire/model/cuda/device_weights.h"
#include "quire/model/cuda/latent_rows.h"
#include "quire/model/cuda/layer_attention.h"
#include "quire/model/cuda/mlp.h"
#include "quire/model/cuda/products.h"
#include "quire/model/cuda/recorded_steps.h"
#include "quire/model/cuda/state_layers.h"
#include "quire/model/cuda/step_result.h"
#include "quire/model/cuda/stored_rows.h"
#include "quire/model/decoder_backend.h"
#include "quire/model/forward_batch.h"
#include "quire/model/layer_plan.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/types.h"

namespace quire::model {
namespace {

using cuda::DeviceLayer;
using cuda::DeviceMatrix;
using cuda::DeviceStep;
using cuda::StepShape;
using device::cuda::DeviceBuffer;
using device::cuda::DeviceContext;
using device::cuda::PinnedBuffer;
using device::cuda::to_status;
using kernels::cuda::Half;
using tensor::PagedKVView;

constexpr std::size_t kMostGraphRows = 256;

class CudaBackend final : public DecoderBackend {
 public:
  CudaBackend(DeviceContext& device, const ModelConfig& config, cuda::DeviceWeights weights,
              cuda::Products products, bool deterministic)
      : device_(device),
        config_(config),
        weights_(std::move(weights)),
        products_(std::move(products)),
        step_(device, config, deterministic ? attention::kFixedRangeTokens : 0),
        result_(device, config.vocab_size),
        stored_(device),
        recorded_(device),
        attention_(device, config, step_, stored_),
        latents_(device, config, products_, weights_.dtype),
        mlp_(device, config, weights_, products_),
        states_(device, config, step_, weights_.dtype) {
    for (std::size_t layer = 0; layer < weights_.layers.size(); ++layer) {
      plans_.push_back(config.layer_plan(layer));
    }
  }

  [[nodiscard]] Status set_up() { return attention_.set_up(recorded_); }

  [[nodiscard]] Result<std::span<float>> forward(const ForwardBatch& batch,
                                                 std::span<const PagedKVView> kv,
                                                 ForwardProbe* probe) override;
  [[nodiscard]] bool chooses() const override { return true; }
  [[nodiscard]] Status launch(const ForwardBatch& batch, std::span<const PagedKVView> kv) override {
    return start(batch, kv, nullptr);
  }
  [[nodiscard]] Result<std::span<float>> await() override;
  void abandon() override;
  [[nodiscard]] std::span<const TokenId> last_chosen() const override { return result_.chosen(); }
  [[nodiscard]] std::span<const kernels::TokenLogprob> last_logprobs(
      std::size_t row) const override {
    return result_.logprobs(row);
  }
  [[nodiscard]] std::span<const std::uint8_t> last_refused() const override {
    return stored_.refused();
  }
  [[nodiscard]] ForwardTiming last_timing() const override { return {.host = last_.seconds}; }
  [[nodiscard]] attention::PlanCounters last_counters() const override { return last_.counters; }

 private:
  // Seconds that calls have cost the host, and counts of what they have planned.
  struct Work {
    double seconds = 0;  // without waiting
    attention::PlanCounters counters;
  };

  [[nodiscard]] CUstream_st* stream() const { return device_.compute_stream().get(); }
  [[nodiscard]] std::int64_t qkv_width() const {
    const std::int32_t gates = config_.gates_attention ? config_.heads : 0;
    return std::int64_t{config_.heads + 2 * config_.kv_heads + gates} * config_.head_dim;
  }
  template <class T>
  [[nodiscard]] Status reserve(DeviceBuffer<T>& buffer, std::size_t size) {
    return recorded_.reserve(buffer, size);
  }

  [[nodiscard]] Status reserve_all(const PagedKVView& view);
  [[nodiscard]] Status norm(const float* x, const cuda::DeviceVector& weight, std::int64_t rows);
  [[nodiscard]] Status project(const DeviceLayer& layer, std::int64_t rows);
  [[nodiscard]] Status grow_queries();
  // Rows to which a part of a layer adds its output: x itself, or a buffer of their own.
  struct Target {
    float* rows = nullptr;
    bool accumulate = false;
  };
  [[nodiscard]] bool adds_apart() const {
    return config_.norms != NormPlacement::kBefore || config_.scales.residual != 1.0;
  }
  [[nodiscard]] Target target_of(float* x) {
    return adds_apart() ? Target{.rows = output_.data()} : Target{.rows = x, .accumulate = true};
  }
  [[nodiscard]] Status add_output(const cuda::DeviceVector& norm, std::int64_t rows, float* x);
  [[nodiscard]] Status mlp(std::size_t index, float* x, std::int64_t rows);
  [[nodiscard]] Result<bool> attention_block(const ForwardBatch& batch, std::size_t index,
                                             std::span<const PagedKVView> views,
                                             ForwardProbe* probe);
  [[nodiscard]] Status state_block(std::size_t index);
  [[nodiscard]] Result<bool> pass_layer(const ForwardBatch& batch, std::size_t index,
                                        std::span<const PagedKVView> kv, ForwardProbe* probe);

  [[nodiscard]] std::span<const PagedKVView> views_of(std::span<const PagedKVView> kv,
                                                      std::size_t layer);
  [[nodiscard]] Status read_values(std::int64_t rows, ForwardProbe& probe);
  [[nodiscard]] Status queue_logits();
  [[nodiscard]] Result<bool> queue(const ForwardBatch& batch, std::span<const PagedKVView> kv,
                                   ForwardProbe* probe);
  [[nodiscard]] Status start(const ForwardBatch& batch, std::span<const PagedKVView> kv,
                             ForwardProbe* probe);
  [[nodiscard]] Status queue_step(const ForwardBatch& batch, std::span<const PagedKVView> kv,
                                  ForwardProbe* probe);

  DeviceContext& device_;
  const ModelConfig& config_;
  const cuda::DeviceWeights weights_;
  cuda::Products products_;
  DeviceStep step_;
  cuda::StepResult result_;
  cuda::StoredRows stored_;
  cuda::RecordedSteps recorded_;
  cuda::LayerAttention attention_;
  cuda::LatentRows latents_;
  cuda::Mlp mlp_;
  cuda::StateLayers states_;
  std::vector<LayerPlan> plans_;  // of the layers
  // One step. T rows, S of them with logits; widths as in cpu_backend.cc.
  DeviceBuffer<float> residual_;          // [T, H]
  DeviceBuffer<float> kept_;              // [S, H]
  DeviceBuffer<Half> normed_;             // [T, H]
  DeviceBuffer<float> qkv_;               // [T, Q + 2 K, Q of gates], or what is to be mixed
  DeviceBuffer<float> output_;            // [T, H], of a part of a layer that is normed or scaled
  Work since_await_, last_;               // the latter: before the last await ended
  std::vector<PagedKVView> layer_views_;  // of one layer, by format
};

// Makes room for a step of this shape.
Status CudaBackend::reserve_all(const PagedKVView& view) {
  const auto rows = static_cast<std::size_t>(step_.shape().rows);
  const auto logit_rows = static_cast<std::size_t>(step_.shape().logit_rows);
  const auto hidden = static_cast<std::size_t>(config_.hidden_size);
  QUIRE_TRY_STATUS(reserve(residual_, rows * hidden));
  QUIRE_TRY_STATUS(reserve(kept_, logit_rows * hidden));
  QUIRE_TRY_STATUS(reserve(normed_, rows * hidden));
  const bool has_states = config_.state.kind != MixerKind::kAttention;
  const std::int64_t width = std::max(qkv_width(), has_states ? config_.state.in_width() : 0);
  QUIRE_TRY_STATUS(reserve(qkv_, rows * static_cast<std::size_t>(width)));
  QUIRE_TRY_STATUS(attention_.reserve(view.head_dim, recorded_));
  if (config_.latent.is_there()) {
    QUIRE_TRY_STATUS(latents_.reserve(step_.shape().rows, recorded_));
  }
  QUIRE_TRY_STATUS(mlp_.reserve(step_.shape().rows, recorded_));
  QUIRE_TRY_STATUS(reserve(output_, adds_apart() ? rows * hidden : 0));
  if (has_states) {
    QUIRE_TRY_STATUS(states_.reserve(step_.shape().rows, recorded_));
  }
  QUIRE_TRY_STATUS(stored_.reserve(step_.shape(), recorded_));
  return result_.reserve(step_.shape(), recorded_);
}

// Computes x [rows, H] -> normed_; without a weight rows are rounded alone.
Status CudaBackend::norm(const float* x, const cuda::DeviceVector& weight, std::int64_t rows) {
  if (weight.data() == nullptr) {
    return to_status(kernels::cuda::gate_rows({.x = x,
                                               .rows = rows,
                                               .width = config_.hidden_size,
                                               .dtype = weights_.dtype,
                                               .rounded = normed_.data()},
                                              stream()),
                     "gate_rows");
  }
  return to_status(kernels::cuda::rms_norm({.dtype = weights_.dtype,
                                            .x = x,
                                            .weight = weight.data(),
                                            .epsilon = static_cast<float>(config_.norm_epsilon),
                                            .rows = rows,
                                            .width = config_.hidden_size,
                                            .out = normed_.data()},
                                           stream()),
                   "rms_norm");
}

// Computes x += residual scale * norm(output_), unless the rows were added to x already.
Status CudaBackend::add_output(const cuda::DeviceVector& norm, std::int64_t rows, float* x) {
  if (!adds_apart()) {
    return {};
  }
  return to_status(
      kernels::cuda::add_residual({.x = output_.data(),
                                   .norm = norm.data(),
                                   .epsilon = static_cast<float>(config_.norm_epsilon),
                                   .factor = static_cast<float>(config_.scales.residual),
                                   .rows = rows,
                                   .width = config_.hidden_size,
                                   .out = x},
                                  stream()),
      "add_residual");
}

// Computes residual_ [T, H] -> qkv_ [T, Q + 2 K].
Status CudaBackend::project(const DeviceLayer& layer, std::int64_t rows) {
  QUIRE_TRY_STATUS(norm(residual_.data(), layer.attention_norm, rows));
  if (config_.latent.is_there()) {
    return latents_.project(layer, normed_.data(), rows, qkv_.data(), qkv_width());
  }
  QUIRE_TRY_STATUS(products_.linear(layer.qkv, normed_.data(), rows, qkv_.data(), false));
  if (!config_.qk_norm) {
    return {};
  }
  const bool by_row = config_.qk_norms_rows;
  const auto norm_heads = [&](std::int64_t first, std::int32_t heads, const float* weight) {
    return to_status(
        kernels::cuda::rms_norm_heads({.x = qkv_.data() + first * config_.head_dim,
                                       .stride = qkv_width(),
                                       .rows = rows,
                                       .heads = by_row ? 1 : heads,
                                       .head_dim = config_.head_dim * (by_row ? heads : 1),
                                       .weight = weight,
                                       .epsilon = static_cast<float>(config_.norm_epsilon)},
                                      stream()),
        "rms_norm_heads");
  };
  QUIRE_TRY_STATUS(norm_heads(0, config_.heads, layer.q_norm.data()));
  return norm_heads(config_.heads, config_.kv_heads, layer.k_norm.data());
}

// Computes x [rows, H] += the MLP of a layer, if there is one.
Status CudaBackend::mlp(std::size_t index, float* x, std::int64_t rows) {
  if (plans_[index].mlp == MlpKind::kNone) {
    return {};
  }
  const DeviceLayer& layer = weights_.layers[index];
  const Target target = target_of(x);
  QUIRE_TRY_STATUS(norm(x, layer.mlp_norm, rows));
  QUIRE_TRY_STATUS(mlp_.run({.layer = layer,
                             .x = x,
                             .normed = normed_.data(),
                             .rows = rows,
                             .out = target.rows,
                             .accumulate = target.accumulate}));
  return add_output(layer.mlp_out_norm, rows, x);
}

// Reads the values of qkv_, as the probe wants them.
Status CudaBackend::read_values(std::int64_t rows, ForwardProbe& probe) {
  std::vector<float> all(static_cast<std::size_t>(rows * qkv_width()));
  QUIRE_TRY_STATUS(
      device::cuda::copy_async(all.data(), qkv_.data(), all.size() * sizeof(float), stream()));
  QUIRE_TRY_STATUS(device_.compute_stream().synchronize());
  const std::int64_t width = std::int64_t{config_.kv_heads} * config_.head_dim;
  const std::int64_t first = std::int64_t{config_.heads} * config_.head_dim + width;
  probe.values.clear();
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto values = all.begin() + row * qkv_width() + first;
    probe.values.insert(probe.values.end(), values, values + width);
  }
  return {};
}

// Queues the logits: kept_ [S, H] -> result_.
Status CudaBackend::queue_logits() {
  const std::int64_t rows = step_.shape().logit_rows;
  if (rows == 0) {
    return {};
  }
  QUIRE_TRY_STATUS(norm(kept_.data(), weights_.final_norm, rows));
  QUIRE_TRY_STATUS(products_.linear(weights_.head, normed_.data(), rows, result_.logits(), false));
  const Scales& scales = config_.scales;
  if (scales.logits != 1.0 || scales.logit_cap != 0.0) {
    QUIRE_TRY_STATUS(
        to_status(kernels::cuda::scale({.values = result_.logits(),
                                        .count = rows * config_.vocab_size,
                                        .factor = static_cast<float>(1.0 / scales.logits),
                                        .cap = static_cast<float>(scales.logit_cap)},
                                       stream()),
                  "scale"));
  }
  return step_.shape().chooses ? result_.choose(step_) : Status();
}

// Multiplies the queries in qkv_ by the factors of their positions (Scales::query_growth).
Status CudaBackend::grow_queries() {
  const Scales& scales = config_.scales;
  if (scales.query_growth == 0.0) {
    return {};
  }
  return to_status(kernels::cuda::grow_queries({.q = qkv_.data(),
                                                .stride = qkv_width(),
                                                .rows = step_.shape().rows,
                                                .width = config_.heads * config_.head_dim,
                                                .positions = step_.use_positions(),
                                                .growth = scales.query_growth,
                                                .length = scales.query_length},
                                               stream()),
                   "grow_queries");
}

// Computes residual_ += attention of one layer. False when the probe ends the pass.
Result<bool> CudaBackend::attention_block(const ForwardBatch& batch, std::size_t index,
                                          std::span<const PagedKVView> views, ForwardProbe* probe) {
  const std::int64_t rows = step_.shape().rows;
  const DeviceLayer& layer = weights_.layers[index];
  QUIRE_TRY_STATUS(project(layer, rows));
  if (probe != nullptr && std::cmp_equal(index, probe->values_layer)) {
    QUIRE_TRY_STATUS(read_values(std::ssize(batch.token_ids), *probe));
    return false;
  }
  QUIRE_TRY_STATUS(grow_queries());
  cuda::LayerAttention::Call call{.layer = index,
                                  .views = views,
                                  .qkv = qkv_.data(),
                                  .qkv_width = qkv_width(),
                                  .sinks = layer.sinks.data(),
                                  .stores = probe == nullptr || probe->values_layer < 0};
  if (batch.before_layer != nullptr) {
    call.before_read = [&] { (*batch.before_layer)(plans_[index].group_index); };
  }
  if (probe != nullptr && !probe->mass.empty()) {
    call.weighed = &batch;
  }
  QUIRE_TRY_STATUS(attention_.run(call));
  if (config_.gates_attention) {
    const std::int32_t width = config_.heads * config_.head_dim;
    QUIRE_TRY_STATUS(
        to_status(kernels::cuda::gate_output({.dtype = weights_.dtype,
                                              .x = attention_.attended(),
                                              .gates = qkv_.data() + qkv_width() - width,
                                              .stride = qkv_width(),
                                              .rows = rows,
                                              .width = width},
                                             stream()),
                  "gate_output"));
  }
  const Half* mixed = attention_.attended();
  if (config_.latent.is_there()) {
    QUIRE_TRY_STATUS(latents_.make_values(layer, mixed, rows));
    mixed = latents_.values();
  }
  const Target target = target_of(residual_.data());
  QUIRE_TRY_STATUS(products_.linear(layer.output, mixed, rows, target.rows, target.accumulate));
  QUIRE_TRY_STATUS(add_output(layer.attention_out_norm, rows, residual_.data()));
  return true;
}

// Computes residual_ += the mixed rows of a layer with a state.
Status CudaBackend::state_block(std::size_t index) {
  const std::int64_t rows = step_.shape().rows;
  const DeviceLayer& layer = weights_.layers[index];
  QUIRE_TRY_STATUS(norm(residual_.data(), layer.attention_norm, rows));
  QUIRE_TRY_STATUS(products_.linear(layer.state.in, normed_.data(), rows, qkv_.data(), false));
  if (plans_[index].mixer == MixerKind::kGatedDelta) {
    QUIRE_TRY_STATUS(
        products_.linear(layer.state.gates, normed_.data(), rows, states_.gates(), false));
  }
  QUIRE_TRY_STATUS(states_.mix(
      {.weights = layer.state, .group_index = plans_[index].group_index, .in = qkv_.data()}));
  const Target target = target_of(residual_.data());
  QUIRE_TRY_STATUS(
      products_.linear(layer.state.out, states_.mixed(), rows, target.rows, target.accumulate));
  return add_output(layer.attention_out_norm, rows, residual_.data());
}

// Passes residual_ through one layer; of the last one not through its MLP. False when the probe
// ends the pass.
Result<bool> CudaBackend::pass_layer(const ForwardBatch& batch, std::size_t index,
                                     std::span<const PagedKVView> kv, ForwardProbe* probe) {
  if (plans_[index].mixer == MixerKind::kAttention) {
    const auto group = static_cast<std::size_t>(plans_[index].group_index);
    QUIRE_TRY(const bool goes_on, attention_block(batch, index, views_of(kv, group), probe));
    if (!goes_on) {
      return false;
    }
  } else if (plans_[index].mixer != MixerKind::kNone) {
    QUIRE_TRY_STATUS(state_block(index));
  }
  if (index + 1 < weights_.layers.size()) {
    QUIRE_TRY_STATUS(mlp(index, residual_.data(), step_.shape().rows));
  }
  return true;
}

// Returns the views of one layer with KV, those of all formats.
std::span<const PagedKVView> CudaBackend::views_of(std::span<const PagedKVView> kv,
                                                   std::size_t layer) {
  layer_views_.clear();
  for (std::size_t at = layer; at < kv.size();
       at += static_cast<std::size_t>(config_.kv_layers())) {
    layer_views_.push_back(kv[at]);
  }
  return layer_views_;
}

// Queues all kernels of a step whose arrays are on their way. False when the probe ends the pass.
Result<bool> CudaBackend::queue(const ForwardBatch& batch, std::span<const PagedKVView> kv,
                                ForwardProbe* probe) {
  const std::int64_t rows = step_.shape().rows, kept = step_.shape().logit_rows;
  QUIRE_TRY_STATUS(stored_.clear(step_.shape()));
  QUIRE_TRY_STATUS(attention_.begin_step());
  const DeviceMatrix& table = config_.tied_embeddings ? weights_.head : weights_.embedding;
  const kernels::cuda::EmbedParams embed{
      .dtype = config_.tied_embeddings ? weights_.dtype : weights_.embedding_dtype,
      .table = table.weights.data(),
      .ids = step_.ids(),
      .from = step_.ids_from(),
      .chosen = result_.chosen_on_device(),
      .rows = rows,
      .width = config_.hidden_size,
      .out = residual_.data()};
  QUIRE_TRY_STATUS(
      to_status(table.format ? kernels::cuda::embed_codes(cuda::codes_of(table), embed, stream())
                             : kernels::cuda::embed(embed, stream()),
                "embed"));
  if (const float factor = config_.embedding_factor(); factor != 1.0f) {
    QUIRE_TRY_STATUS(to_status(
        kernels::cuda::scale(
            {.values = residual_.data(), .count = rows * config_.hidden_size, .factor = factor},
            stream()),
        "scale"));
  }
  for (std::size_t i = 0; i < weights_.layers.size(); ++i) {
    QUIRE_TRY(const bool goes_on, pass_layer(batch, i, kv, probe));
    if (!goes_on) {
      return false;
    }
  }
  // All KV is stored: from here on only the rows of logits matter.
  QUIRE_TRY_STATUS(
      to_status(kernels::cuda::gather_rows(residual_.data(), step_.logit_rows(), kept,
                                           config_.hidden_size, kept_.data(), stream()),
                "gather_rows"));
  QUIRE_TRY_STATUS(kept == 0 ? Status() : mlp(weights_.layers.size() - 1, kept_.data(), kept));
  QUIRE_TRY_STATUS(queue_logits());
  return true;
}

Result<std::span<float>> CudaBackend::forward(const ForwardBatch& batch,
                                              std::span<const PagedKVView> kv,
                                              ForwardProbe* probe) {
  QUIRE_CHECK(result_.num_sent() == 0, "a step that was launched is not awaited yet");
  QUIRE_CHECK(batch.band == nullptr, "a GPU runs all layers");
  QUIRE_TRY_STATUS(start(batch, kv, probe));
  if (result_.num_sent() == 0) {
    stored_.forget_refused();
    return std::span<float>();
  }
  return await();
}

Status CudaBackend::start(const ForwardBatch& batch, std::span<const PagedKVView> kv,
                          ForwardProbe* probe) {
  QUIRE_CHECK(kv.front().on_device && kv.front().dtype == weights_.dtype,
              "a GPU computes on KV in its own memory, of the type of the weights");
  QUIRE_TRY_STATUS(device_.make_current());
  base::Stopwatch watch;
  Status queued = queue_step(batch, kv, probe);
  if (!queued.ok()) {
    // Queued work still reads this step's arrays, which the next one overwrites.
    [[maybe_unused]] const Status known_already = device_.compute_stream().synchronize();
    return queued;
  }
  const attention::PlanCounters planned = step_.counters();
  since_await_.counters.entries += planned.entries;
  since_await_.counters.rows += planned.rows;
  since_await_.counters.blocks_read += planned.blocks_read;
  watch.lap(since_await_.seconds);
  return {};
}

Result<std::span<float>> CudaBackend::await() {
  QUIRE_TRY_STATUS(device_.make_current());
  base::Stopwatch watch;
  auto logits = result_.fetch();
  watch.lap(since_await_.seconds);
  since_await_.seconds -= result_.waited_seconds();
  last_ = std::exchange(since_await_, {});
  if (!logits.ok()) {
    abandon();
    return logits;
  }
  stored_.fetch();
  return logits;
}

// Gives up the steps under way. An error that fails here fails the next step too.
void CudaBackend::abandon() {
  result_.forget_sent();
  stored_.forget_sent();
  [[maybe_unused]] const Status ignored = device_.compute_stream().synchronize();
}

// Plans and queues all of a step, or as much as the probe wants; then nothing is sent.
Status CudaBackend::queue_step(const ForwardBatch& batch, std::span<const PagedKVView> kv,
                               ForwardProbe* probe) {
  // Shapes are rounded where nothing is recorded, too: a product of a new small number of rows
  // tries algorithms first.
  const bool small = batch.token_ids.size() <= kMostGraphRows;
  QUIRE_TRY_STATUS(step_.prepare(batch, views_of(kv, 0), small));
  QUIRE_TRY_STATUS(reserve_all(kv.front()));
  const bool weighs = probe != nullptr && !probe->mass.empty();
  if (weighs) {
    QUIRE_TRY_STATUS(attention_.begin_mass(batch, *probe));
  }
  bool all_passed = true;
  const auto queue_all = [&]() -> Status {
    QUIRE_TRY(all_passed, queue(batch, kv, probe));
    return {};
  };
  const bool records = small && probe == nullptr && batch.before_layer == nullptr;
  QUIRE_TRY_STATUS(records ? recorded_.run(step_.shape(), queue_all) : queue_all());
  if (!all_passed) {
    return {};
  }
  if (weighs) {
    QUIRE_TRY_STATUS(attention_.end_mass(*probe));
  }
  QUIRE_TRY_STATUS(stored_.send(batch.token_ids.size(), batch.kv_errors, step_.shape()));
  Status sent = result_.send(batch.logit_rows.size(), step_.shape());
  if (!sent.ok()) {
    stored_.take_back();
  }
  return sent;
}

}  // namespace

Result<std::unique_ptr<DecoderBackend>> cuda::make_backend(DeviceContext& device,
                                                           const ModelConfig& config,
                                                           cuda::DeviceWeights weights,
                                                           bool deterministic) {
  QUIRE_TRY(auto products, cuda::Products::create(device, weights, deterministic));
  auto backend = std::make_unique<CudaBackend>(device, config, std::move(weights),
                                               std::move(products), deterministic);
  QUIRE_TRY_STATUS(backend->set_up());
  return std::unique_ptr<DecoderBackend>(std::move(backend));
}

}  // namespace quire::model
