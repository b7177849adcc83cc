#include "quire/model/cpu_backend.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/entry.h"
#include "quire/attention/mass.h"
#include "quire/attention/plan_maker.h"
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
#include "quire/model/layer_plan.h"
#include "quire/model/layer_rotary.h"
#include "quire/model/mlp.h"
#include "quire/model/state_layers.h"
#include "quire/model/state_weights.h"
#include "quire/result.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/types.h"

namespace quire::model {
namespace {

using base::Stopwatch;
using device::AlignedBuffer;
using tensor::PagedKVView;

// State that all layers with one window share during a step.
struct WindowPlan {
  std::int32_t window_tokens = 0;
  WantedRopes has_rope = {};  // some layer has the window and the rope
  std::span<const attention::Entry> entries;
  attention::AttentionPlan plan;  // plan of the entries
  RotaryTables query_rotary;      // rows as plan.query_positions
};

// Returns rows of fp32 that grow to the largest step and stay.
std::span<float> rows_of(AlignedBuffer<float>& buffer, std::int64_t rows, std::int64_t width) {
  const auto size = static_cast<std::size_t>(rows * width);
  buffer.require(size);
  return buffer.span().first(size);
}

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

// Widths: H hidden, Q = heads * head_dim, K = kv_heads * head_dim.
// Rows: T of the batch, S of logits.
struct CpuBackend final : DecoderBackend {
  CpuBackend(const kernels::KernelContext& context, const ModelConfig& config,
             const DecoderWeights& weights)
      : context(context), config(config), weights(weights) {
    for (std::size_t layer = 0; layer < weights.layers.size(); ++layer) {
      const LayerPlan& plan = layers.emplace_back(config.layer_plan(layer));
      if (plan.mixer != MixerKind::kAttention) {
        continue;
      }
      auto known = std::ranges::find(plans, plan.window_tokens, &WindowPlan::window_tokens);
      if (known == plans.end()) {
        known = plans.insert(known, {.window_tokens = plan.window_tokens});
      }
      known->has_rope[index_of(plan.rope)] = true;
      has_rope[index_of(plan.rope)] = true;
    }
  }

  Result<std::span<float>> forward(const ForwardBatch& batch, std::span<const PagedKVView> kv,
                                   ForwardProbe* probe) override;
  [[nodiscard]] bool chooses() const override { return false; }
  [[nodiscard]] Status launch(const ForwardBatch& batch, std::span<const PagedKVView> kv) override {
    QUIRE_TRY(launched, forward(batch, kv, nullptr));
    return {};
  }
  [[nodiscard]] Result<std::span<float>> await() override { return launched; }
  void abandon() override {}
  [[nodiscard]] std::span<const TokenId> last_chosen() const override { return {}; }
  [[nodiscard]] std::span<const kernels::TokenLogprob> last_logprobs(
      std::size_t /*row*/) const override {
    return {};
  }
  [[nodiscard]] std::span<const std::uint8_t> last_refused() const override {
    const bool any = std::ranges::find(refused, std::uint8_t{1}) != refused.end();
    return any ? std::span<const std::uint8_t>(refused) : std::span<const std::uint8_t>();
  }
  [[nodiscard]] ForwardTiming last_timing() const override { return timing; }
  [[nodiscard]] attention::PlanCounters last_counters() const override;

  const kernels::KernelContext context;
  const ModelConfig& config;
  const DecoderWeights& weights;
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
  std::vector<LayerPlan> layers;            // [layers]
  StateLayers state_layers{context, config};
  std::vector<WindowPlan> plans;  // one per distinct window
  WantedRopes has_rope = {};      // of some layer
  RotaryTables key_rotary;        // by RopeKind; rows as batch.positions
  // The last layer's, of rows of logits only, and what it is made of. Not where all rows have
  // logits, or a probe wants to know about them.
  bool last_is_less = false;
  WindowPlan last_plan;
  std::vector<attention::Entry> last_entries;
  std::vector<attention::EntryRow> last_rows;
  std::vector<PagedKVView> views;  // [formats] of the layer in hand
  Mlp mlp;
  KVWriter kv_writer;
  attention::PlanMaker plan_maker;
  kernels::LinearScratch linear_scratch;
  attention::AttentionScratch attention_scratch;

 private:
  [[nodiscard]] attention::AttentionShape attention_shape() const {
    return {.heads = config.heads,
            .kv_heads = config.kv_heads,
            .head_dim = config.head_dim,
            .softmax_scale = config.score_scale(),
            .soft_cap = config.scales.score_cap};
  }

  void prepare(const ForwardBatch& batch, std::int32_t block_tokens, const ForwardProbe* probe,
               Stopwatch& watch);
  void make_plan(WindowPlan& window, std::span<const attention::Entry> entries,
                 std::int32_t block_tokens, Stopwatch& watch);
  void keep_rows_of_logits(const ForwardBatch& batch);
  const WindowPlan& plan_for(std::size_t layer) const;

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
  bool attention_block(const LayerCall& call, std::span<float>& x, Stopwatch& watch);
  void state_block(const LayerCall& call, std::span<float>& x, Stopwatch& watch);
  void keep_logit_rows(const LayerCall& call, std::span<float>& x);
  void finish_mixer(const LayerCall& call, const LinearWeights& last, std::span<float> out,
                    std::span<float>& x, Stopwatch& watch);
  void mlp_block(std::size_t index, std::span<float> x, std::int64_t rows, Stopwatch& watch);
  void finish_logits(std::span<float> out);
};

void CpuBackend::make_plan(WindowPlan& window, std::span<const attention::Entry> entries,
                           std::int32_t block_tokens, Stopwatch& watch) {
  watch.lap(timing.other);
  window.entries = entries;
  plan_maker.make(attention_shape(), entries, block_tokens, window.window_tokens,
                  context.pool->threads(), window.plan);
  watch.lap(timing.host);
  fill_rotary(context, config, window.has_rope, window.plan.query_positions, window.query_rotary);
}

// Sets last_entries to those of the batch, with rows of logits only.
void CpuBackend::keep_rows_of_logits(const ForwardBatch& batch) {
  std::size_t most = 0;
  for (const attention::Entry& entry : batch.entries) {
    most += entry.rows.size();
  }
  last_entries.clear();
  last_rows.clear();
  last_rows.reserve(most);  // entries point to it
  for (const attention::Entry& entry : batch.entries) {
    const std::size_t first = last_rows.size();
    for (const attention::EntryRow& row : entry.rows) {
      if (std::binary_search(batch.logit_rows.begin(), batch.logit_rows.end(), row.row)) {
        last_rows.push_back(row);
      }
    }
    if (last_rows.size() > first) {
      last_entries.push_back(entry);
      last_entries.back().rows = std::span(last_rows).subspan(first);
    }
  }
}

// Plans and rotary tables: everything that does not depend on the layer.
void CpuBackend::prepare(const ForwardBatch& batch, std::int32_t block_tokens,
                         const ForwardProbe* probe, Stopwatch& watch) {
  fill_rotary(context, config, has_rope, batch.positions, key_rotary);
  for (WindowPlan& window : plans) {
    make_plan(window, batch.entries, block_tokens, watch);
  }
  last_is_less = probe == nullptr && batch.logit_rows.size() < batch.token_ids.size() &&
                 layers.back().mixer == MixerKind::kAttention;
  if (last_is_less) {
    keep_rows_of_logits(batch);
    last_plan.window_tokens = layers.back().window_tokens;
    last_plan.has_rope = {};
    last_plan.has_rope[index_of(layers.back().rope)] = true;
    make_plan(last_plan, last_entries, block_tokens, watch);
  }
}

const WindowPlan& CpuBackend::plan_for(std::size_t layer) const {
  if (last_is_less && layer + 1 == weights.layers.size()) {
    return last_plan;
  }
  return *std::find_if(plans.begin(), plans.end(), [&](const WindowPlan& plan) {
    return plan.window_tokens == layers[layer].window_tokens;
  });
}

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
  linear(layer.qkv.weights, {x, rows, layer.attention_norm}, to.q, {.bias = layer.qkv.bias}, watch);
  if (layers[index].qk_norm == QkNorm::kNone) {
    return;
  }
  const bool by_row = layers[index].qk_norm == QkNorm::kRows;
  kernels::rms_norm_heads(context, {to.q, to.stride, rows, by_row ? 1 : config.heads}, layer.q_norm,
                          config.norm_epsilon);
  kernels::rms_norm_heads(context, {to.k, to.stride, rows, by_row ? 1 : config.kv_heads},
                          layer.k_norm, config.norm_epsilon);
}

CpuBackend::Target CpuBackend::target_of(const LayerPlan& plan, std::span<float> x) {
  if (!plan.norms_output() && config.scales.residual == 1.0) {
    return {.rows = x, .accumulate = true};
  }
  return {.rows = rows_of(output, std::ssize(x), 1)};
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
  const WindowPlan& window = plan_for(call.index);
  const kernels::RotaryTable& rotary = window.query_rotary[index_of(layers[call.index].rope)];
  const bool weighs = call.probe != nullptr && !call.probe->mass.empty();
  const auto rows = static_cast<std::int64_t>(call.batch.token_ids.size());
  const std::span<float> lse =
      weighs ? rows_of(attention_lse, rows, config.heads) : std::span<float>();
  attention::run(context,
                 {.shape = attention_shape(),
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
                        {.shape = attention_shape(),
                         .entries = window.entries,
                         .plan = &window.plan,
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
                   .head_dim = config.head_dim,
                   .rotary = &key_rotary[index_of(layers[call.index].rope)],
                   .refused = refused,
                   .errors = call.batch.kv_errors});
}

// Computes x [T, H] += attention of one layer; the layer's keys and values of all rows are stored.
// In the last layer x becomes [S, H]: from there on only rows of logits matter. False when the
// probe ends the pass.
bool CpuBackend::attention_block(const LayerCall& call, std::span<float>& x, Stopwatch& watch) {
  const LayerWeights& layer = weights.layers[call.index];
  const auto rows = static_cast<std::int64_t>(call.batch.token_ids.size());
  const std::int64_t q_width = std::int64_t{config.heads} * config.head_dim;
  const std::int64_t kv_width = std::int64_t{config.kv_heads} * config.head_dim;
  const bool gates = layers[call.index].gates_output;
  QKV parts{.stride = q_width + 2 * kv_width + (gates ? q_width : 0)};
  parts.q = rows_of(qkv, rows, parts.stride);
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
  if (probe == nullptr || probe->values_layer < 0) {
    store_kv(call, parts);
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
                       &key_rotary[index_of(layers[call.index].rope)]});
  }
  const auto out = rows_of(attended, rows, q_width);
  attend(call, parts, out);
  watch.lap(timing.attention);
  if (gates) {
    gate_rows(context, parts.gates, parts.stride, out, q_width);
  }
  finish_mixer(call, layer.output, out, x, watch);
  return true;
}

// Computes x [T, H] += mixed rows of a layer with a state, and stores the states behind its rows.
void CpuBackend::state_block(const LayerCall& call, std::span<float>& x, Stopwatch& watch) {
  const LayerWeights& layer = weights.layers[call.index];
  const StateWeights& state = layer.state;
  const auto rows = static_cast<std::int64_t>(call.batch.token_ids.size());
  StateLayers::Rows parts = {.in = rows_of(qkv, rows, config.state.in_width()),
                             .out = rows_of(attended, rows, config.state.out_width())};
  linear(state.in.weights, {x, rows, layer.attention_norm}, parts.in, {.bias = state.in.bias},
         watch);
  if (layers[call.index].mixer != MixerKind::kShortConv) {
    parts.gates = rows_of(state_gates, rows, std::int64_t{2} * config.state.value_heads);
  }
  if (layers[call.index].mixer == MixerKind::kGatedDelta) {
    linear(state.gates.weights, {x, rows, layer.attention_norm}, parts.gates, {}, watch);
  }
  state_layers.mix(call.batch, layers[call.index], state, parts);
  watch.lap(timing.other);
  finish_mixer(call, state.out, parts.out, x, watch);
}

// Makes x the rows of logits, in the last layer.
void CpuBackend::keep_logit_rows(const LayerCall& call, std::span<float>& x) {
  if (call.index + 1 == weights.layers.size()) {
    const std::span<const std::int32_t> kept = call.batch.logit_rows;
    const auto x_kept = rows_of(residual_of_logits, std::ssize(kept), config.hidden_size);
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
    const auto out_kept = rows_of(attended_of_logits, std::ssize(kept), width);
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

void CpuBackend::finish_logits(std::span<float> out) {
  const Scales& scales = config.scales;
  if (scales.logits != 1.0) {
    kernels::scale(context, static_cast<float>(1.0 / scales.logits), out);
  }
  if (scales.logit_cap != 0.0) {
    kernels::soft_cap(context, static_cast<float>(scales.logit_cap), out);
  }
}

Result<std::span<float>> CpuBackend::forward(const ForwardBatch& batch,
                                             std::span<const PagedKVView> kv, ForwardProbe* probe) {
  QUIRE_CHECK(!kv.front().on_device, "the CPU computes on KV in host memory");
  timing = {};
  Stopwatch watch;
  const std::int64_t hidden = config.hidden_size;
  prepare(batch, kv.front().block_tokens, probe, watch);
  const std::span<const std::uint8_t> formats = batch.slot_formats;
  const auto num_layers = static_cast<std::size_t>(config.kv_layers());
  const bool may_refuse = kv.front().format != tensor::KVFormat::kPlain || !batch.seals.empty() ||
                          std::ranges::any_of(formats, [&](std::uint8_t format) {
                            return kv[format * num_layers].format != tensor::KVFormat::kPlain;
                          });
  refused.assign(may_refuse ? batch.token_ids.size() : 0, 0);

  // token_ids [T] -> x [T, H]
  auto x = rows_of(residual, std::ssize(batch.token_ids), hidden);
  const bool tied = config.tied_embeddings;
  kernels::embed(context, tied ? weights.head : weights.embedding, batch.token_ids, x);
  if (const float factor = config.embedding_factor(); factor != 1.0f) {
    kernels::scale(context, factor, x);
  }

  for (std::size_t layer = 0; layer < weights.layers.size(); ++layer) {
    views.clear();
    if (layers[layer].mixer == MixerKind::kNone) {
      keep_logit_rows({batch, views, layer, probe}, x);
      mlp_block(layer, x, std::ssize(x) / hidden, watch);
      continue;
    }
    if (layers[layer].mixer != MixerKind::kAttention) {
      state_block({batch, views, layer, probe}, x, watch);
      mlp_block(layer, x, std::ssize(x) / hidden, watch);
      continue;
    }
    for (auto at = static_cast<std::size_t>(layers[layer].group_index); at < kv.size();
         at += num_layers) {
      views.push_back(kv[at]);
    }
    if (!attention_block({batch, views, layer, probe}, x, watch)) {
      return std::span<float>();
    }
    mlp_block(layer, x, std::ssize(x) / hidden, watch);
  }

  // x [S, H] -> logits [S, V]
  const std::int64_t rows = std::ssize(batch.logit_rows);
  const auto out = rows_of(logits, rows, config.vocab_size);
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
    const attention::PlanCounters& read = plan_for(layer).plan.counters;
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
