#include "quire/model/cpu_backend.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/mass.h"
#include "quire/attention/run.h"
#include "quire/base/check.h"
#include "quire/base/stopwatch.h"
#include "quire/device/aligned_buffer.h"
#include "quire/kernels/choice.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/elementwise.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/linear.h"
#include "quire/kernels/packed_rows.h"
#include "quire/kernels/packed_weights.h"
#include "quire/kernels/rotary.h"
#include "quire/model/config.h"
#include "quire/model/decoder_backend.h"
#include "quire/model/decoder_weights.h"
#include "quire/model/forward_batch.h"
#include "quire/model/kv_writer.h"
#include "quire/model/latent_attention.h"
#include "quire/model/layer_inputs.h"
#include "quire/model/layer_plan.h"
#include "quire/model/layer_rotary.h"
#include "quire/model/mlp.h"
#include "quire/model/state_layers.h"
#include "quire/model/state_weights.h"
#include "quire/model/step_plans.h"
#include "quire/model/step_rows.h"
#include "quire/result.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/types.h"

namespace quire::model {
namespace {

using base::Stopwatch;
using device::AlignedBuffer;
using tensor::PagedKVView;

// Copies the rows `indices` of `from` together.
void gather_rows(std::span<const float> from, std::span<const std::int32_t> indices,
                 std::int64_t width, std::span<float> to) {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    std::copy_n(from.begin() + indices[i] * width, width,
                to.begin() + static_cast<std::ptrdiff_t>(i) * width);
  }
}

// Multiplies rows [T, width] by sigmoid(gate).
void gate_rows(const kernels::KernelContext& context, std::span<const float> gates,
               std::int64_t stride, std::span<float> rows, std::int64_t width) {
  const auto gate = context.table->gate_mul[static_cast<int>(kernels::Activation::kSigmoid)];
  for (std::int64_t row = 0; row < std::ssize(rows) / width; ++row) {
    float* out = rows.data() + row * width;
    gate({.gate = gates.data() + row * stride, .up = out, .count = width, .out = out});
  }
}

std::vector<LayerPlan> plans_of(const ModelConfig& config, std::size_t layers) {
  std::vector<LayerPlan> plans;
  plans.reserve(layers);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    plans.push_back(config.layer_plan(layer));
  }
  return plans;
}

// Widths: H hidden, Q = heads * head_dim, K = kv_heads * head_dim.
// Rows: T of the batch, S of logits.
struct CpuBackend final : DecoderBackend {
  CpuBackend(const kernels::KernelContext& context, const ModelConfig& config,
             const DecoderWeights& weights)
      : context(context),
        config(config),
        weights(weights),
        layers(plans_of(config, weights.layers.size())),
        plans(context, config, layers) {}

  Result<std::span<float>> forward(const ForwardBatch& batch, std::span<const PagedKVView> kv,
                                   ForwardProbe* probe) override;
  [[nodiscard]] bool chooses() const override { return false; }
  [[nodiscard]] Status launch(const ForwardBatch& batch, std::span<const PagedKVView> kv) override {
    QUIRE_TRY(launched, forward(batch, kv, nullptr));
    return {};
  }
  [[nodiscard]] Result<std::span<float>> await() override { return launched; }
  void abandon() override {}
  void advance_states(std::span<const RightRows> right) override { state_layers.advance(right); }
  [[nodiscard]] std::span<const TokenId> last_chosen() const override { return {}; }
  [[nodiscard]] std::span<const kernels::TokenLogprob> last_logprobs(
      std::size_t /*row*/) const override {
    return {};
  }
  [[nodiscard]] std::span<const std::uint8_t> last_refused() const override {
    const bool any = std::ranges::any_of(refused, [](std::uint8_t why) { return why != 0; });
    return any ? std::span<const std::uint8_t>(refused) : std::span<const std::uint8_t>();
  }
  [[nodiscard]] ForwardTiming last_timing() const override { return timing; }
  [[nodiscard]] attention::PlanCounters last_counters() const override;

  const kernels::KernelContext context;
  const ModelConfig& config;
  const DecoderWeights& weights;
  const std::vector<LayerPlan> layers;
  StepPlans plans;
  ForwardTiming timing;
  std::span<float> launched;          // logits
  std::vector<std::uint8_t> refused;  // [T] rows whose KV the format cannot hold

  // One step. `residual` is the sum that every layer adds to.
  AlignedBuffer<float> residual;            // [T, H], from the last layer's attention on [S, H]
  AlignedBuffer<float> residual_of_logits;  // [S, H]
  AlignedBuffer<float> qkv;                 // [T, Q + 2 K, Q of gates], or what is to be mixed
  AlignedBuffer<float> state_gates;         // [T, 2 value heads]
  AlignedBuffer<float> attended;            // [T, Q]
  AlignedBuffer<float> attended_of_logits;  // [S, Q], of the last layer
  AlignedBuffer<float> attention_lse;       // [T, heads], for a probe
  AlignedBuffer<float> logits;              // [S, V]
  AlignedBuffer<float> output;              // [T, H], of a part of a layer that is normed or scaled
  kernels::PackedRows packed;               // the input of the matrix product in hand
  StateLayers state_layers{context, config};
  LatentAttention latent_attention{context, config};
  LayerInputs layer_inputs{context, config};
  std::vector<float> ones;         // [head_dim], the weight of a norm without one
  std::vector<PagedKVView> views;  // [formats] of the layer in hand
  Mlp mlp;
  KVWriter kv_writer;
  kernels::LinearScratch linear_scratch;
  attention::AttentionScratch attention_scratch;

 private:
  // The input of a product.
  struct Input {
    std::span<const float> x;  // [rows, inputs]
    std::int64_t rows = 0;
    std::span<const float> norm;  // [inputs]: x is normed on the way; empty: it is not
  };
  void pack(const kernels::PackedWeights& matrix, const Input& input);
  void linear(const kernels::PackedWeights& matrix, const Input& input, std::span<float> out,
              const kernels::Epilogue& epilogue, Stopwatch& watch);
  // Returns where a part of a layer puts its rows: x itself, or a buffer of their own.
  struct Target {
    std::span<float> rows;
    bool accumulate = false;
  };
  Target target_of(const LayerPlan& plan, std::span<float> x);
  void add_output(const Target& target, std::span<const float> norm, std::span<float> x);
  // Arguments of attention_block.
  struct LayerCall {
    const ForwardBatch& batch;
    std::span<const PagedKVView> views;  // [formats]
    std::size_t index = 0;
    ForwardProbe* probe = nullptr;
  };
  // The parts of `qkv`, each from its first row's first element on.
  struct QKV {
    std::span<float> q, k, v, gates;
    std::int64_t stride = 0;
  };
  void project(std::size_t index, std::span<const float> x, std::int64_t rows, const QKV& to,
               Stopwatch& watch);
  void store_kv(const LayerCall& call, const QKV& parts);
  void attend(const LayerCall& call, const QKV& from, std::span<float> out);
  std::span<float> rows_before_layers(const ForwardBatch& batch);
  bool run_layers(const ForwardBatch& batch, std::span<const PagedKVView> kv, ForwardProbe* probe,
                  std::span<float>& x, Stopwatch& watch);
  bool attention_block(const LayerCall& call, std::span<float>& x, Stopwatch& watch);
  [[nodiscard]] bool state_block(const LayerCall& call, std::span<float>& x, Stopwatch& watch);
  void keep_logit_rows(const LayerCall& call, std::span<float>& x);
  void finish_mixer(const LayerCall& call, const LinearWeights& last, std::span<float> out,
                    std::span<float>& x, Stopwatch& watch);
  void mlp_block(std::size_t index, std::span<float> x, std::int64_t rows, Stopwatch& watch);
  void finish_layer(const LayerCall& call, std::span<float> x, Stopwatch& watch);
  void finish_logits(std::span<float> out);
};

// Packs x [rows, inputs], normed where it must be, for the matrix.
void CpuBackend::pack(const kernels::PackedWeights& matrix, const Input& input) {
  const kernels::InputRows x{input.x, matrix.depth(), input.rows, matrix.depth()};
  if (input.norm.empty()) {
    kernels::pack_rows(context, matrix.format(), x, packed);
    return;
  }
  kernels::pack_normed_rows(context, matrix.format(), x, {input.norm, config.norm_epsilon}, packed);
}

// Computes out [rows, outputs] = x [rows, inputs] times the matrix.
void CpuBackend::linear(const kernels::PackedWeights& matrix, const Input& input,
                        std::span<float> out, const kernels::Epilogue& epilogue, Stopwatch& watch) {
  watch.lap(timing.other);
  pack(matrix, input);
  kernels::linear(context, matrix, packed, {out, matrix.columns()}, epilogue, linear_scratch);
  watch.lap(timing.linear);
}

// Computes x [T, H] -> qkv [T, Q + 2 K], with q and k normed where the layer does that.
void CpuBackend::project(std::size_t index, std::span<const float> x, std::int64_t rows,
                         const QKV& to, Stopwatch& watch) {
  const LayerWeights& layer = weights.layers[index];
  if (config.latent.is_there()) {
    watch.lap(timing.other);
    latent_attention.project(layer, x, rows, {to.q, to.k, to.v, to.stride}, linear_scratch);
    watch.lap(timing.linear);
    return;
  }
  const LayerPlan& plan = layers[index];
  watch.lap(timing.other);
  pack(layer.qkv.weights, {x, rows, layer.attention_norm});
  kernels::linear(context, layer.qkv.weights, packed, {to.q, to.stride}, {.bias = layer.qkv.bias},
                  linear_scratch);
  watch.lap(timing.linear);
  if (plan.keys_are_values && plan.stores_kv) {
    for (std::int64_t row = 0; row < rows; ++row) {
      std::copy_n(to.k.begin() + row * to.stride, std::int64_t{plan.kv_heads} * plan.head_dim,
                  to.v.begin() + row * to.stride);
    }
  }
  if (plan.norms_values && plan.stores_kv) {
    ones.resize(static_cast<std::size_t>(plan.head_dim), 1.0f);
    kernels::rms_norm_heads(context, {to.v, to.stride, rows, plan.kv_heads}, ones,
                            config.norm_epsilon);
  }
  if (plan.qk_norm == QkNorm::kNone) {
    return;
  }
  const bool by_row = plan.qk_norm == QkNorm::kRows;
  kernels::rms_norm_heads(context, {to.q, to.stride, rows, by_row ? 1 : config.heads}, layer.q_norm,
                          config.norm_epsilon);
  if (plan.stores_kv) {
    kernels::rms_norm_heads(context, {to.k, to.stride, rows, by_row ? 1 : plan.kv_heads},
                            layer.k_norm, config.norm_epsilon);
  }
}

CpuBackend::Target CpuBackend::target_of(const LayerPlan& plan, std::span<float> x) {
  if (!plan.norms_output() && config.scales.residual == 1.0) {
    return {.rows = x, .accumulate = true};
  }
  return {.rows = rows_in(output, std::ssize(x), 1)};
}

// Computes x += residual scale * norm(target), unless the rows were added to x already.
void CpuBackend::add_output(const Target& target, std::span<const float> norm, std::span<float> x) {
  if (target.accumulate) {
    return;
  }
  if (!norm.empty()) {
    kernels::rms_norm(context, target.rows, norm, config.norm_epsilon,
                      std::ssize(x) / config.hidden_size, target.rows);
  }
  kernels::add_scaled(context, target.rows, static_cast<float>(config.scales.residual), x);
}

// Computes q and the cache -> out [T, Q].
void CpuBackend::attend(const LayerCall& call, const QKV& from, std::span<float> out) {
  const WindowPlan& window = plans.of(call.index);
  const kernels::RotaryTable& rotary = window.query_rotary[index_of(layers[call.index].rope)];
  const bool weighs = call.probe != nullptr && !call.probe->mass.empty();
  const auto rows = static_cast<std::int64_t>(call.batch.token_ids.size());
  const std::span<float> lse =
      weighs ? rows_in(attention_lse, rows, config.heads) : std::span<float>();
  attention::run(context,
                 {.shape = plans.shape(call.index),
                  .entries = window.entries,
                  .plan = &window.plan,
                  .window_tokens = window.window_tokens,
                  .q = from.q,
                  .q_stride = from.stride,
                  .rotary = &rotary,
                  .out = out,
                  .lse = lse,
                  .sinks = weights.layers[call.index].sinks,
                  .views = call.views},
                 call.views.front(), attention_scratch);
  if (weighs) {
    attention::add_mass(context,
                        {.shape = plans.shape(call.index),
                         .entries = window.entries,
                         .plan = &window.plan,
                         .window_tokens = window.window_tokens,
                         .q = from.q,
                         .q_stride = from.stride,
                         .rotary = &rotary,
                         .lse = lse,
                         .mass = call.probe->mass,
                         .views = call.views},
                        call.views.front());
  }
}

// Stores keys and values of all rows. Keys are stored rotated to their segment's positions; queries
// are rotated where they are used.
void CpuBackend::store_kv(const LayerCall& call, const QKV& parts) {
  kv_writer.store(context, call.batch, call.views,
                  {.k = parts.k,
                   .v = parts.v,
                   .k_stride = parts.stride,
                   .v_stride = parts.stride,
                   .head_dim = layers[call.index].head_dim,
                   .rotary = &plans.key_rotary(layers[call.index].rope),
                   .refused = refused,
                   .errors = call.batch.kv_errors});
}

// Computes x [T, H] += attention of one layer; the layer's keys and values of all rows are stored.
// In the last layer x becomes [S, H]: from there on only rows of logits matter. False when the
// probe or the band of layers ends the pass.
bool CpuBackend::attention_block(const LayerCall& call, std::span<float>& x, Stopwatch& watch) {
  const LayerWeights& layer = weights.layers[call.index];
  const auto rows = static_cast<std::int64_t>(call.batch.token_ids.size());
  const LayerPlan& plan = layers[call.index];
  const std::int64_t q_width = std::int64_t{config.heads} * plan.head_dim;
  const std::int64_t kv_width =
      plan.stores_kv ? std::int64_t{plan.kv_heads} * plan.head_dim : std::int64_t{0};
  const bool gates = plan.gates_output;
  QKV parts{.stride = q_width + 2 * kv_width + (gates ? q_width : 0)};
  parts.q = rows_in(qkv, rows, parts.stride);
  parts.k = parts.q.subspan(static_cast<std::size_t>(q_width));
  parts.v = parts.k.subspan(static_cast<std::size_t>(kv_width));
  parts.gates = gates ? parts.v.subspan(static_cast<std::size_t>(kv_width)) : std::span<float>();
  project(call.index, x, rows, parts, watch);

  ForwardProbe* probe = call.probe;
  if (probe != nullptr && std::cmp_equal(call.index, probe->values_layer)) {
    probe->values.clear();
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto first = parts.v.begin() + row * parts.stride;
      probe->values.insert(probe->values.end(), first, first + kv_width);
    }
    return false;
  }
  const LayerBand* band = call.batch.band;
  const bool stores = band != nullptr ? band->stores_layer(static_cast<std::int64_t>(call.index))
                                      : probe == nullptr || probe->values_layer < 0;
  if (stores && plan.stores_kv) {
    store_kv(call, parts);
  }
  if (band != nullptr && std::cmp_equal(call.index, band->last)) {
    return false;
  }
  if (call.batch.before_layer != nullptr) {
    (*call.batch.before_layer)(layers[call.index].group_index);
  }
  watch.lap(timing.other);
  if (config.scales.query_growth != 0.0) {
    grow_queries(context, config, call.batch, parts.q, parts.stride);
  }
  if (probe != nullptr && probe->queries != nullptr) {
    (*probe->queries)({static_cast<int>(call.index), parts.q, parts.stride,
                       &plans.key_rotary(layers[call.index].rope)});
  }
  auto out = rows_in(attended, rows, q_width);
  attend(call, parts, out);
  watch.lap(timing.attention);
  if (config.latent.is_there()) {
    out = latent_attention.values_of(layer, out, rows, linear_scratch);
    watch.lap(timing.linear);
  }
  if (gates) {
    gate_rows(context, parts.gates, parts.stride, out, q_width);
  }
  finish_mixer(call, layer.output, out, x, watch);
  return true;
}

// Computes x [T, H] += mixed rows of a layer with a state, and stores the states behind its rows.
// False when the band of layers ends the pass.
bool CpuBackend::state_block(const LayerCall& call, std::span<float>& x, Stopwatch& watch) {
  const LayerWeights& layer = weights.layers[call.index];
  const StateWeights& state = layer.state;
  const auto rows = static_cast<std::int64_t>(call.batch.token_ids.size());
  StateLayers::Rows parts = {.in = rows_in(qkv, rows, config.state.in_width()),
                             .out = rows_in(attended, rows, config.state.out_width())};
  linear(state.in.weights, {x, rows, layer.attention_norm}, parts.in, {.bias = state.in.bias},
         watch);
  if (layers[call.index].mixer != MixerKind::kShortConv) {
    parts.gates = rows_in(state_gates, rows, std::int64_t{2} * config.state.value_heads);
  }
  if (layers[call.index].mixer == MixerKind::kGatedDelta) {
    linear(state.gates.weights, {x, rows, layer.attention_norm}, parts.gates, {}, watch);
  }
  state_layers.mix(call.batch, layers[call.index], state, parts);
  watch.lap(timing.other);
  if (call.batch.band != nullptr && std::cmp_equal(call.index, call.batch.band->last)) {
    return false;
  }
  finish_mixer(call, state.out, parts.out, x, watch);
  return true;
}

// Makes x the rows of logits, in the last layer.
void CpuBackend::keep_logit_rows(const LayerCall& call, std::span<float>& x) {
  if (call.index + 1 == weights.layers.size()) {
    const std::span<const std::int32_t> kept = call.batch.logit_rows;
    const auto x_kept = rows_in(residual_of_logits, std::ssize(kept), config.hidden_size);
    gather_rows(x, kept, config.hidden_size, x_kept);
    x = x_kept;
  }
}

// Computes x += `last` times `out`, the rows that a layer has mixed. In the last layer both become
// the rows of logits.
void CpuBackend::finish_mixer(const LayerCall& call, const LinearWeights& last,
                              std::span<float> out, std::span<float>& x, Stopwatch& watch) {
  const std::int64_t width = last.weights.depth();
  if (call.index + 1 == weights.layers.size()) {
    const std::span<const std::int32_t> kept = call.batch.logit_rows;
    const auto out_kept = rows_in(attended_of_logits, std::ssize(kept), width);
    gather_rows(out, kept, width, out_kept);
    out = out_kept;
  }
  keep_logit_rows(call, x);
  const Target target = target_of(layers[call.index], x);
  linear(last.weights, {out, std::ssize(out) / width}, target.rows,
         {.bias = last.bias, .accumulate = target.accumulate}, watch);
  add_output(target, weights.layers[call.index].attention_out_norm, x);
}

// Computes x [rows, H] += MLP or experts of x, with the layer's norms.
void CpuBackend::mlp_block(std::size_t index, std::span<float> x, std::int64_t rows,
                           Stopwatch& watch) {
  if (layers[index].mlp == MlpKind::kNone) {
    return;
  }
  const LayerWeights& layer = weights.layers[index];
  const Target target = target_of(layers[index], x);
  watch.lap(timing.other);
  mlp.run(context, config,
          {.layer = layer,
           .plan = layers[index],
           .x = x,
           .rows = rows,
           .out = target.rows,
           .accumulate = target.accumulate},
          linear_scratch);
  watch.lap(timing.linear);
  add_output(target, layer.mlp_out_norm, x);
}

// Adds what the layer makes of its own inputs to x [rows, H], and scales x, where a layer does so.
void CpuBackend::finish_layer(const LayerCall& call, std::span<float> x, Stopwatch& watch) {
  const LayerWeights& layer = weights.layers[call.index];
  if (config.layer_inputs.size > 0) {
    const bool is_last = call.index + 1 == weights.layers.size();
    watch.lap(timing.other);
    layer_inputs.add(layer, call.index,
                     is_last ? call.batch.logit_rows : std::span<const std::int32_t>(), x,
                     linear_scratch);
    watch.lap(timing.linear);
  }
  if (!layer.scale.empty()) {
    kernels::scale(context, layer.scale.front(), x);
  }
}

void CpuBackend::finish_logits(std::span<float> out) {
  const Scales& scales = config.scales;
  if (scales.logits != 1.0) {
    kernels::scale(context, static_cast<float>(1.0 / scales.logits), out);
  }
  if (scales.logit_cap != 0.0) {
    kernels::soft_cap(context, static_cast<float>(scales.logit_cap), out);
  }
}

// Returns x [T, H] before the first layer of the pass.
std::span<float> CpuBackend::rows_before_layers(const ForwardBatch& batch) {
  const auto x = rows_in(residual, std::ssize(batch.token_ids), config.hidden_size);
  const bool begins_later = batch.band != nullptr && batch.band->first > 0;
  if (!begins_later || config.layer_inputs.size > 0) {
    const bool tied = config.tied_embeddings;
    kernels::embed(context, tied ? weights.head : weights.embedding, batch.token_ids, x);
    if (const float factor = config.embedding_factor(); factor != 1.0f) {
      kernels::scale(context, factor, x);
    }
  }
  if (config.layer_inputs.size > 0) {
    layer_inputs.prepare(weights, batch.token_ids, x, linear_scratch);
  }
  if (begins_later) {
    std::ranges::copy(batch.band->before, x.begin());
  }
  return x;
}

// Computes x [T, H] -> [S, H] through the layers. Returns false when the pass ends before its
// logits.
bool CpuBackend::run_layers(const ForwardBatch& batch, std::span<const PagedKVView> kv,
                            ForwardProbe* probe, std::span<float>& x, Stopwatch& watch) {
  const LayerBand* band = batch.band;
  const auto stride = static_cast<std::size_t>(config.kv_layers());
  auto layer = static_cast<std::size_t>(band != nullptr ? band->first : 0);
  for (; layer < weights.layers.size(); ++layer) {
    if (band != nullptr && std::cmp_equal(layer, band->last) && !band->behind.empty()) {
      std::ranges::copy(x, band->behind.begin());
      return false;
    }
    views.clear();
    const bool ends = band != nullptr && std::cmp_equal(layer, band->last);
    if (layers[layer].mixer == MixerKind::kNone) {
      if (ends) {
        return false;
      }
      keep_logit_rows({batch, views, layer, probe}, x);
      mlp_block(layer, x, std::ssize(x) / config.hidden_size, watch);
      continue;
    }
    if (layers[layer].mixer != MixerKind::kAttention) {
      if (!state_block({batch, views, layer, probe}, x, watch)) {
        return false;
      }
      mlp_block(layer, x, std::ssize(x) / config.hidden_size, watch);
      continue;
    }
    for (auto at = static_cast<std::size_t>(layers[layer].group_index); at < kv.size();
         at += stride) {
      views.push_back(kv[at]);
    }
    if (!attention_block({batch, views, layer, probe}, x, watch)) {
      return false;
    }
    mlp_block(layer, x, std::ssize(x) / config.hidden_size, watch);
    finish_layer({batch, views, layer, probe}, x, watch);
  }
  return band == nullptr;
}

Result<std::span<float>> CpuBackend::forward(const ForwardBatch& batch,
                                             std::span<const PagedKVView> kv, ForwardProbe* probe) {
  QUIRE_CHECK(!kv.front().on_device, "the CPU computes on KV in host memory");
  timing = {};
  Stopwatch watch;
  plans.prepare(batch, kv.front().block_tokens, probe, timing, watch);
  refused.assign(batch.token_ids.size(), 0);

  state_layers.begin(batch);
  std::span<float> x = rows_before_layers(batch);
  if (!run_layers(batch, kv, probe, x, watch)) {
    return std::span<float>();
  }

  // x [S, H] -> logits [S, V]
  const std::int64_t rows = std::ssize(batch.logit_rows);
  const auto out = rows_in(logits, rows, config.vocab_size);
  linear(weights.head, {x, rows, weights.final_norm}, out, {}, watch);
  finish_logits(out);
  watch.lap(timing.other);
  return out;
}

attention::PlanCounters CpuBackend::last_counters() const {
  attention::PlanCounters sum;
  for (std::size_t layer = 0; layer < weights.layers.size(); ++layer) {
    if (layers[layer].mixer != MixerKind::kAttention) {
      continue;
    }
    const attention::PlanCounters& read = plans.of(layer).plan.counters;
    sum.entries += read.entries;
    sum.rows += read.rows;
    sum.blocks_read += read.blocks_read;
  }
  return sum;
}

}  // namespace

std::unique_ptr<DecoderBackend> make_cpu_backend(const kernels::KernelContext& context,
                                                 const ModelConfig& config,
                                                 const DecoderWeights& weights) {
  return std::make_unique<CpuBackend>(context, config, weights);
}

}  // namespace quire::model
