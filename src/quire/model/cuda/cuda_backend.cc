// Runs the decoder's passes on a GPU. A step's arrays go up in one copy, and its kernels are queued
// one after the other. The host waits once, for the tokens or the logits. Before it does, the next
// step may be queued behind. The kernels of small steps, which decode, are recorded as graphs, one
// for each shape of a step.
#include "quire/model/cuda/cuda_backend.h"

#include <vector_types.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <numbers>
#include <span>
#include <utility>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/kernels.h"
#include "quire/attention/device_plan.h"
#include "quire/attention/fixed_range.h"
#include "quire/base/check.h"
#include "quire/base/stopwatch.h"
#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/choice.h"
#include "quire/kernels/cuda/coded_weights.h"
#include "quire/kernels/cuda/rotary.h"
#include "quire/kernels/cuda/rows.h"
#include "quire/model/config.h"
#include "quire/model/cuda/device_step.h"
#include "quire/model/cuda/device_weights.h"
#include "quire/model/cuda/mass_probe.h"
#include "quire/model/cuda/products.h"
#include "quire/model/cuda/recorded_steps.h"
#include "quire/model/cuda/step_result.h"
#include "quire/model/cuda/stored_rows.h"
#include "quire/model/decoder_backend.h"
#include "quire/model/forward_batch.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/types.h"

namespace quire::model {
namespace {

using attention::DevicePlan;
using attention::cuda::AttentionArgs;
using cuda::DeviceLayer;
using cuda::DeviceMatrix;
using cuda::DeviceStep;
using cuda::StepShape;
using cuda::Uploaded;
using cuda::WindowStep;
using device::cuda::DeviceBuffer;
using device::cuda::DeviceContext;
using device::cuda::PinnedBuffer;
using device::cuda::to_status;
using kernels::cuda::Half;
using tensor::PagedKVView;

constexpr std::ptrdiff_t kElement = sizeof(Half);
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
        mass_(device) {}

  [[nodiscard]] Status set_up() {
    const std::vector<double>& frequencies = config_.rotary.inverse_frequencies;
    QUIRE_TRY_STATUS(reserve(frequencies_, std::max<std::size_t>(frequencies.size(), 1)));
    return device::cuda::copy_async(frequencies_.data(), frequencies.data(),
                                    frequencies.size() * sizeof(double), stream());
  }

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
  // One layer of a step.
  struct LayerCall {
    const DeviceLayer& weights;
    const PagedKVView& view;
    const WindowStep& window;
  };

  // Seconds that calls have cost the host, and counts of what they have planned.
  struct Work {
    double seconds = 0;  // without waiting
    attention::PlanCounters counters;
  };

  [[nodiscard]] CUstream_st* stream() const { return device_.compute_stream().get(); }
  [[nodiscard]] float scale_log2() const {
    return static_cast<float>(std::numbers::log2e / std::sqrt(double(config_.head_dim)));
  }
  [[nodiscard]] std::int64_t qkv_width() const {
    return std::int64_t{config_.heads + 2 * config_.kv_heads} * config_.head_dim;
  }
  template <class T>
  [[nodiscard]] Status reserve(DeviceBuffer<T>& buffer, std::size_t size) {
    return recorded_.reserve(buffer, size);
  }

  [[nodiscard]] Status reserve_all(const PagedKVView& view);
  [[nodiscard]] Status fill_rotary(Uploaded<std::int32_t> positions, std::int64_t count,
                                   const DeviceBuffer<float>& cosines,
                                   const DeviceBuffer<float>& sines);
  [[nodiscard]] kernels::cuda::RotaryTable table(const DeviceBuffer<float>& cosines,
                                                 const DeviceBuffer<float>& sines) const {
    return {cosines.data(), sines.data(), config_.rotary.rotary_dim() / 2};
  }

  [[nodiscard]] Status norm(const float* x, const cuda::DeviceVector& weight, std::int64_t rows);
  [[nodiscard]] Status linear(const DeviceMatrix& matrix, const Half* x, std::int64_t rows,
                              float* out, bool accumulate);
  [[nodiscard]] Status project(const DeviceLayer& layer, std::int64_t rows);
  [[nodiscard]] kernels::cuda::KVLayer stored_layer(const PagedKVView& view) const;
  [[nodiscard]] Status append_and_rotate(const LayerCall& call, bool stores,
                                         const std::function<void()>& between);
  [[nodiscard]] AttentionArgs attention_args(const LayerCall& call, bool with_lse) const;
  [[nodiscard]] Status mlp(const DeviceLayer& layer, float* x, std::int64_t rows);
  [[nodiscard]] Result<bool> pass_layer(const ForwardBatch& batch, std::size_t index,
                                        const PagedKVView& view, ForwardProbe* probe);

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
  DeviceBuffer<double> frequencies_;
  // One step. T rows, S of them with logits; widths as in cpu_backend.cc.
  DeviceBuffer<float> key_cosines_, key_sines_;  // [T, half]
  DeviceBuffer<float> residual_;                 // [T, H]
  DeviceBuffer<float> kept_;                     // [S, H]
  DeviceBuffer<Half> normed_;                    // [T, H]
  DeviceBuffer<float> qkv_;                      // [T, Q + 2 K]
  DeviceBuffer<Half> queries_;                   // [entry rows, heads, stored head_dim]
  DeviceBuffer<Half> attended_;                  // [T, Q]
  DeviceBuffer<float> partial_values_, partial_stats_;
  DeviceBuffer<std::uint32_t> partials_there_;  // [T, heads]
  DeviceBuffer<float> lse_;                     // [T, heads], for a probe
  DeviceBuffer<float> gate_up_;                 // [T, 2 I]
  DeviceBuffer<Half> gated_;                    // [T, I]
  Work since_await_, last_;                     // the latter: before the last await ended
  cuda::MassProbe mass_;
};

Status CudaBackend::fill_rotary(Uploaded<std::int32_t> positions, std::int64_t count,
                                const DeviceBuffer<float>& cosines,
                                const DeviceBuffer<float>& sines) {
  return to_status(
      kernels::cuda::fill_rotary(frequencies_.data(), config_.rotary.scale, step_.get(positions),
                                 count, table(cosines, sines), stream()),
      "fill_rotary");
}

// Makes room for a step of this shape.
Status CudaBackend::reserve_all(const PagedKVView& view) {
  const auto rows = static_cast<std::size_t>(step_.shape().rows);
  const auto logit_rows = static_cast<std::size_t>(step_.shape().logit_rows);
  const auto hidden = static_cast<std::size_t>(config_.hidden_size);
  const auto inner = static_cast<std::size_t>(config_.intermediate_size);
  const auto heads = static_cast<std::size_t>(config_.heads);
  const auto stored = static_cast<std::size_t>(view.head_dim);
  const auto half = static_cast<std::size_t>(config_.rotary.rotary_dim()) / 2;
  std::size_t partials = 0, queries = 0;
  for (WindowStep& window : step_.windows()) {
    partials = std::max(partials, static_cast<std::size_t>(window.plan.num_partials));
    queries = std::max(queries, static_cast<std::size_t>(window.shape.queries));
    QUIRE_TRY_STATUS(
        reserve(window.cosines, static_cast<std::size_t>(window.shape.queries) * half));
    QUIRE_TRY_STATUS(reserve(window.sines, static_cast<std::size_t>(window.shape.queries) * half));
  }
  // Partials grow with the length of what is read; a step seldom needs more than the one before.
  partials = std::bit_ceil(std::max<std::size_t>(partials, 1));
  QUIRE_TRY_STATUS(reserve(key_cosines_, rows * half));
  QUIRE_TRY_STATUS(reserve(key_sines_, rows * half));
  QUIRE_TRY_STATUS(reserve(residual_, rows * hidden));
  QUIRE_TRY_STATUS(reserve(kept_, logit_rows * hidden));
  QUIRE_TRY_STATUS(reserve(normed_, rows * hidden));
  QUIRE_TRY_STATUS(reserve(qkv_, rows * static_cast<std::size_t>(qkv_width())));
  QUIRE_TRY_STATUS(reserve(queries_, queries * heads * stored));
  QUIRE_TRY_STATUS(reserve(attended_, rows * heads * static_cast<std::size_t>(config_.head_dim)));
  QUIRE_TRY_STATUS(reserve(partial_values_, partials * heads * stored));
  QUIRE_TRY_STATUS(reserve(partial_stats_, partials * heads * 2));
  if (partials_there_.size() < rows * heads) {
    QUIRE_TRY_STATUS(reserve(partials_there_, rows * heads));
    if (Status zero = device::cuda::fill_async(
            partials_there_.data(), 0, partials_there_.size() * sizeof(std::uint32_t), stream());
        !zero.ok()) {
      partials_there_ = {};
      return zero;
    }
  }
  QUIRE_TRY_STATUS(reserve(lse_, rows * heads));
  QUIRE_TRY_STATUS(reserve(gate_up_, rows * 2 * inner));
  QUIRE_TRY_STATUS(reserve(gated_, rows * inner));
  QUIRE_TRY_STATUS(stored_.reserve(step_.shape(), recorded_));
  return result_.reserve(step_.shape(), recorded_);
}

// Computes x [rows, H] -> normed_.
Status CudaBackend::norm(const float* x, const cuda::DeviceVector& weight, std::int64_t rows) {
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

Status CudaBackend::linear(const DeviceMatrix& matrix, const Half* x, std::int64_t rows, float* out,
                           bool accumulate) {
  QUIRE_TRY_STATUS(products_.run(matrix, x, rows, out, accumulate));
  if (matrix.bias.data() == nullptr) {
    return {};
  }
  return to_status(kernels::cuda::add_bias(out, matrix.bias.data(), rows,
                                           static_cast<std::int32_t>(matrix.outputs), stream()),
                   "add_bias");
}

// Computes residual_ [T, H] -> qkv_ [T, Q + 2 K].
Status CudaBackend::project(const DeviceLayer& layer, std::int64_t rows) {
  QUIRE_TRY_STATUS(norm(residual_.data(), layer.attention_norm, rows));
  QUIRE_TRY_STATUS(linear(layer.qkv, normed_.data(), rows, qkv_.data(), false));
  if (!config_.qk_norm) {
    return {};
  }
  kernels::cuda::HeadNormParams heads{.x = qkv_.data(),
                                      .stride = qkv_width(),
                                      .rows = rows,
                                      .heads = config_.heads,
                                      .head_dim = config_.head_dim,
                                      .weight = layer.q_norm.data(),
                                      .epsilon = static_cast<float>(config_.norm_epsilon)};
  QUIRE_TRY_STATUS(to_status(kernels::cuda::rms_norm_heads(heads, stream()), "rms_norm_heads"));
  heads.x += std::int64_t{config_.heads} * config_.head_dim;
  heads.heads = config_.kv_heads;
  heads.weight = layer.k_norm.data();
  return to_status(kernels::cuda::rms_norm_heads(heads, stream()), "rms_norm_heads");
}

// Where a block's scales of V lie, in words.
std::ptrdiff_t v_scale_offset(const PagedKVView& view) {
  return view.scale_offset / kElement + view.stored_block_tokens();
}

kernels::cuda::KVLayer CudaBackend::stored_layer(const PagedKVView& view) const {
  return {.dtype = view.dtype,
          .data = reinterpret_cast<Half*>(view.data),
          .head_stride = view.head_stride / kElement,
          .block_stride = view.block_stride / kElement,
          .v_offset = view.v_offset / kElement,
          .stored_dim = view.head_dim,
          .format = view.format,
          .scale_offset = view.scale_offset / kElement,
          .v_scale_offset = v_scale_offset(view),
          .refused = stored_.refused(step_.shape()),
          .errors = stored_.errors(step_.shape())};
}

// Stores the keys and values of qkv_ where `stores`, and computes its queries -> queries_. One
// kernel does both where nothing comes between them.
Status CudaBackend::append_and_rotate(const LayerCall& call, bool stores,
                                      const std::function<void()>& between) {
  const WindowStep& window = call.window;
  const PagedKVView& view = call.view;
  const kernels::cuda::QKVRows qkv{.qkv = qkv_.data(),
                                   .stride = qkv_width(),
                                   .heads = config_.heads,
                                   .kv_heads = config_.kv_heads,
                                   .head_dim = config_.head_dim};
  const kernels::cuda::AppendedRows rows{table(key_cosines_, key_sines_), step_.slots(),
                                         stores ? step_.shape().rows : 0};
  const tensor::DType dtype = attention::cuda::query_dtype(view.dtype, view.format);
  const kernels::cuda::QueryRows queries{.dtype = dtype,
                                         .rows = step_.get(window.query_rows),
                                         .count = window.shape.queries,
                                         .stored_dim = view.head_dim,
                                         .out = queries_.data(),
                                         .saturates = dtype != view.dtype};
  const kernels::cuda::KVLayer layer = stored_layer(view);
  const kernels::cuda::RotaryTable query_table = table(window.cosines, window.sines);
  if (!between && view.format == tensor::KVFormat::kPlain) {
    return to_status(
        kernels::cuda::append_and_rotate(qkv, rows, layer, query_table, queries, stream()),
        "append_and_rotate");
  }
  QUIRE_TRY_STATUS(to_status(kernels::cuda::append_kv(qkv, rows, layer, stream()), "append_kv"));
  if (between) {
    between();
  }
  return to_status(kernels::cuda::rotate_queries(qkv, query_table, queries, stream()),
                   "rotate_queries");
}

AttentionArgs CudaBackend::attention_args(const LayerCall& call, bool with_lse) const {
  const PagedKVView& view = call.view;
  const WindowStep& window = call.window;
  return {.kv = {.data = reinterpret_cast<Half*>(view.data),
                 .head_stride = view.head_stride / kElement,
                 .block_stride = view.block_stride / kElement,
                 .v_offset = view.v_offset / kElement,
                 .block_tokens = view.block_tokens,
                 .block_shift = attention::cuda::block_shift(view.block_tokens),
                 .head_dim = view.head_dim,
                 .dtype = view.dtype,
                 .format = view.format,
                 .scale_offset = view.scale_offset / kElement,
                 .v_scale_offset = v_scale_offset(view)},
          .work = {.few = step_.get(window.few),
                   .many = step_.get(window.many),
                   .rows = step_.get(window.rows),
                   .partials = step_.get(window.partials),
                   .blocks = step_.blocks(),
                   .queues = step_.get(window.queues),
                   .num_few = window.shape.few,
                   .num_many = window.shape.many,
                   .wide = window.shape.wide,
                   .num_rows = step_.shape().rows,
                   .merges = window.shape.merges,
                   .like_many = window.plan.like_many,
                   .partial_values = partial_values_.data(),
                   .partial_stats = reinterpret_cast<float2*>(partial_stats_.data()),
                   .partials_there = partials_there_.data()},
          .q = queries_.data(),
          .heads = config_.heads,
          .kv_heads = config_.kv_heads,
          .head_dim = config_.head_dim,
          .scale_log2 = scale_log2(),
          .out = attended_.data(),
          .lse = with_lse ? lse_.data() : nullptr};
}

// Computes x [rows, H] += down(silu(gate(normed)) * up(normed)).
Status CudaBackend::mlp(const DeviceLayer& layer, float* x, std::int64_t rows) {
  QUIRE_TRY_STATUS(norm(x, layer.mlp_norm, rows));
  QUIRE_TRY_STATUS(linear(layer.gate_up, normed_.data(), rows, gate_up_.data(), false));
  QUIRE_TRY_STATUS(to_status(kernels::cuda::silu_mul({.dtype = weights_.dtype,
                                                      .gate_up = gate_up_.data(),
                                                      .rows = rows,
                                                      .width = config_.intermediate_size,
                                                      .out = gated_.data()},
                                                     stream()),
                             "silu_mul"));
  return linear(layer.down, gated_.data(), rows, x, true);
}

// Reads the values of qkv_, as the probe wants them.
Status CudaBackend::read_values(std::int64_t rows, ForwardProbe& probe) {
  std::vector<float> all(static_cast<std::size_t>(rows * qkv_width()));
  QUIRE_TRY_STATUS(
      device::cuda::copy_async(all.data(), qkv_.data(), all.size() * sizeof(float), stream()));
  QUIRE_TRY_STATUS(device_.compute_stream().synchronize());
  const std::int64_t width = std::int64_t{config_.kv_heads} * config_.head_dim;
  probe.values.clear();
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto end = all.begin() + (row + 1) * qkv_width();
    probe.values.insert(probe.values.end(), end - width, end);
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
  QUIRE_TRY_STATUS(linear(weights_.head, normed_.data(), rows, result_.logits(), false));
  return step_.shape().chooses ? result_.choose(step_) : Status();
}

// Passes residual_ through one layer; of the last one only its attention. False when the probe ends
// the pass.
Result<bool> CudaBackend::pass_layer(const ForwardBatch& batch, std::size_t index,
                                     const PagedKVView& view, ForwardProbe* probe) {
  const std::int64_t rows = step_.shape().rows;
  const LayerCall call{weights_.layers[index], view, step_.window_of(index)};
  QUIRE_TRY_STATUS(project(call.weights, rows));
  if (probe != nullptr && std::cmp_equal(index, probe->values_layer)) {
    QUIRE_TRY_STATUS(read_values(std::ssize(batch.token_ids), *probe));
    return false;
  }
  std::function<void()> between;
  if (batch.before_layer != nullptr) {
    between = [&] { (*batch.before_layer)(static_cast<int>(index)); };
  }
  const bool stores = probe == nullptr || probe->values_layer < 0;
  QUIRE_TRY_STATUS(append_and_rotate(call, stores, between));
  const bool weighs = probe != nullptr && !probe->mass.empty();
  QUIRE_TRY_STATUS(to_status(
      attention::cuda::launch_attention(attention_args(call, weighs), stream()), "attention"));
  if (weighs) {
    QUIRE_TRY_STATUS(mass_.weigh(batch, attention_args(call, true),
                                 step_.get(call.window.query_rows), step_.query_ends()));
  }
  QUIRE_TRY_STATUS(linear(call.weights.output, attended_.data(), rows, residual_.data(), true));
  if (index + 1 < weights_.layers.size()) {
    QUIRE_TRY_STATUS(mlp(call.weights, residual_.data(), rows));
  }
  return true;
}

// Queues all kernels of a step whose arrays are on their way. False when the probe ends the pass.
Result<bool> CudaBackend::queue(const ForwardBatch& batch, std::span<const PagedKVView> kv,
                                ForwardProbe* probe) {
  const std::int64_t rows = step_.shape().rows, kept = step_.shape().logit_rows;
  QUIRE_TRY_STATUS(stored_.clear(step_.shape()));
  QUIRE_TRY_STATUS(fill_rotary(step_.positions(), rows, key_cosines_, key_sines_));
  for (const WindowStep& window : step_.windows()) {
    QUIRE_TRY_STATUS(
        fill_rotary(window.query_positions, window.shape.queries, window.cosines, window.sines));
  }
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
  for (std::size_t i = 0; i < weights_.layers.size(); ++i) {
    QUIRE_TRY(const bool goes_on, pass_layer(batch, i, kv[i], probe));
    if (!goes_on) {
      return false;
    }
  }
  // All KV is stored: from here on only the rows of logits matter.
  QUIRE_TRY_STATUS(
      to_status(kernels::cuda::gather_rows(residual_.data(), step_.logit_rows(), kept,
                                           config_.hidden_size, kept_.data(), stream()),
                "gather_rows"));
  QUIRE_TRY_STATUS(kept == 0 ? Status() : mlp(weights_.layers.back(), kept_.data(), kept));
  QUIRE_TRY_STATUS(queue_logits());
  return true;
}

Result<std::span<float>> CudaBackend::forward(const ForwardBatch& batch,
                                              std::span<const PagedKVView> kv,
                                              ForwardProbe* probe) {
  QUIRE_CHECK(result_.num_sent() == 0, "a step that was launched is not awaited yet");
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
  QUIRE_TRY_STATUS(step_.prepare(batch, kv.front(), small));
  QUIRE_TRY_STATUS(reserve_all(kv.front()));
  const bool weighs = probe != nullptr && !probe->mass.empty();
  if (weighs) {
    QUIRE_TRY_STATUS(mass_.begin(batch, *probe));
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
    QUIRE_TRY_STATUS(mass_.end(*probe));
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
