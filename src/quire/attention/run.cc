#include "quire/attention/run.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <numbers>
#include <span>
#include <utility>

#include "quire/attention/attention_plan.h"
#include "quire/attention/cpu/kernel_table.h"
#include "quire/attention/entry.h"
#include "quire/attention/item_kernel.h"
#include "quire/attention/row_states.h"
#include "quire/attention/tile.h"
#include "quire/base/check.h"
#include "quire/device/aligned_buffer.h"
#include "quire/device/cpu/spin.h"
#include "quire/device/cpu/subnormals.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::attention {

struct AttentionScratch::Impl {
  device::AlignedBuffer<float> max, sum;                // running state, [rows, heads]
  device::AlignedBuffer<float> result_max, result_sum;  // [slots]
  device::AlignedBuffer<float> result_acc;              // [slots, padded_dim]
  device::AlignedBuffer<std::byte> pieces;              // [threads] one piece of K and V each
  device::AlignedBuffer<std::uint8_t> done;             // [chains] 1 when it is, atomically
};

AttentionScratch::AttentionScratch() : impl_(std::make_unique<Impl>()) {}
AttentionScratch::~AttentionScratch() = default;
AttentionScratch::AttentionScratch(AttentionScratch&&) noexcept = default;
AttentionScratch& AttentionScratch::operator=(AttentionScratch&&) noexcept = default;

namespace {

constexpr int kRowsPerFinish = 8;

// The results of pieces that are computed apart, until they are merged.
class ResultSlots {
 public:
  ResultSlots(AttentionScratch::Impl& scratch, int padded_dim)
      : max_(scratch.result_max.data()),
        sum_(scratch.result_sum.data()),
        acc_(scratch.result_acc.data()),
        padded_dim_(padded_dim) {}

  [[nodiscard]] SoftmaxState of(const WorkItem& item) const {
    return {max_ + item.result_slot, sum_ + item.result_slot,
            acc_ + std::ptrdiff_t{item.result_slot} * padded_dim_};
  }
  // Empties the result slots of an item, and returns them.
  [[nodiscard]] SoftmaxState cleared(const WorkItem& item) const {
    const SoftmaxState slots = of(item);
    const std::ptrdiff_t rows = std::ptrdiff_t{item.rows} * item.heads;
    std::fill_n(slots.max, rows, kLowest);
    std::fill_n(slots.sum, rows, 0.0f);
    std::fill_n(slots.acc, rows * padded_dim_, 0.0f);
    return slots;
  }
  [[nodiscard]] int padded_dim() const { return padded_dim_; }

 private:
  float *max_, *sum_, *acc_;
  int padded_dim_;
};

bool same_entry_rows_and_heads(const WorkItem& a, const WorkItem& b) {
  return a.entry == b.entry && a.first_row == b.first_row && a.first_head == b.first_head;
}

// Runs the waves of a plan, one after the other, each on all threads.
class WaveRunner {
 public:
  // One call.
  struct Inputs {
    const AttentionPlan& plan;
    int kv_heads = 0;
    const ItemKernel& kernel;
    const RowStates& states;
    const ResultSlots& slots;
    void (*merge)(const MergeTask&);
    std::uint8_t* done;  // [chains]
  };

  WaveRunner(const Inputs& inputs, device::ThreadPool& pool) : inputs_(inputs), pool_(pool) {
    std::fill_n(inputs.done, inputs.plan.chains.size(), std::uint8_t{0});
  }

  void run(const AttentionPlan::Wave& wave) const {
    pool_.run(wave.num_chains, [&](int i, int thread) {
      const device::FlushSubnormals flush;
      // Threads take chains in turn.
      const int later = i + pool_.threads();
      const WorkItem* next =
          later < wave.num_chains ? items_of(wave.first_chain + later, 1).data() : nullptr;
      if (wave.split) {
        const WorkItem& item = items_of(wave.first_chain + i, 1).front();
        inputs_.kernel.attend(item, inputs_.slots.cleared(item), next, thread);
      } else {
        run_chain(wave.first_chain + i, next, thread);
      }
    });
    if (wave.split) {
      const auto items = items_of(wave.first_chain, wave.num_chains);
      pool_.run(inputs_.kv_heads, [&](int kv_head, int) {
        const device::FlushSubnormals flush;
        merge_slots(items, kv_head);
      });
    }
  }

 private:
  // Returns the items of chains [first, first + count).
  [[nodiscard]] std::span<const WorkItem> items_of(std::int32_t first, std::int32_t count) const {
    const auto chains =
        std::span(inputs_.plan.chains)
            .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
    const std::int32_t begin = chains.front().first_item;
    const std::int32_t end = chains.back().first_item + chains.back().num_items;
    return std::span(inputs_.plan.items)
        .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  }

  // Runs items one after the other into the running state, once the chain before them is done.
  // Chains begin in order, so that one runs or is done already: no thread waits for itself.
  void run_chain(std::int32_t chain, const WorkItem* next, int thread) const {
    const std::int32_t after = inputs_.plan.chains[static_cast<std::size_t>(chain)].after;
    if (after >= 0) {
      device::spin_until([&] { return done(after).load(std::memory_order_acquire) != 0; });
    }
    const std::span<const WorkItem> items = items_of(chain, 1);
    TileState state;
    inputs_.states.load(items.front(), state);
    for (const WorkItem& item : items) {
      inputs_.kernel.attend(item, state.view(), &item == &items.back() ? next : &item + 1, thread);
    }
    inputs_.states.save(items.back(), state);
    done(chain).store(1, std::memory_order_release);
  }

  [[nodiscard]] std::atomic_ref<std::uint8_t> done(std::int32_t chain) const {
    return std::atomic_ref(inputs_.done[chain]);
  }

  // Merges in item order, with the kernels' own merge. KV heads share no output.
  void merge_slots(std::span<const WorkItem> items, int kv_head) const {
    TileState state;
    const WorkItem* loaded = nullptr;
    for (const WorkItem& item : items) {
      if (item.kv_head != kv_head) {
        continue;
      }
      if (loaded == nullptr || !same_entry_rows_and_heads(*loaded, item)) {
        if (loaded != nullptr) {
          inputs_.states.save(*loaded, state);
        }
        inputs_.states.load(item, state);
        loaded = &item;
      }
      inputs_.merge({.state = state.view(),
                     .piece = inputs_.slots.of(item),
                     .rows = item.rows * item.heads,
                     .padded_dim = inputs_.slots.padded_dim()});
    }
    if (loaded != nullptr) {
      inputs_.states.save(*loaded, state);
    }
  }

  Inputs inputs_;
  device::ThreadPool& pool_;
};

// Checks what a view must be for the kernels.
void check_view(const AttentionShape& shape, const tensor::PagedKVView& view) {
  QUIRE_CHECK(shape.head_dim >= 1 && shape.head_dim <= kMaxHeadDim &&
                  view.head_dim == (shape.head_dim + 31) / 32 * 32 &&
                  shape.kv_heads == view.kv_heads,
              "view and shape disagree");
  QUIRE_CHECK(view.format != tensor::KVFormat::kPlain || view.dtype != tensor::DType::kFloat16,
              "KV must be bfloat16, float32 or codes");
  QUIRE_CHECK(
      view.format != tensor::KVFormat::kInt4 || view.block_tokens % tensor::kInt4RunTokens == 0,
      "int4 needs blocks of whole runs of 32 tokens");
}

// Checks the views that entries name, and that they have the blocks. The plan knows the largest
// block of all formats together.
void check_views(const RunParams& params, std::span<const tensor::PagedKVView> views) {
  for (const Entry& entry : params.entries) {
    QUIRE_CHECK(entry.format < views.size(), "an entry names a view that is not there");
    const tensor::PagedKVView& view = views[entry.format];
    check_view(params.shape, view);
    QUIRE_CHECK(view.block_tokens == views.front().block_tokens, "views have blocks of one length");
    QUIRE_CHECK(std::ranges::all_of(entry.blocks,
                                    [&](std::int32_t block) { return block < view.num_blocks; }),
                "an entry has a block that its view has not");
  }
}

void check_call(const RunParams& params, std::span<const tensor::PagedKVView> views,
                std::size_t num_rows) {
  const AttentionPlan& plan = *params.plan;
  const AttentionShape& shape = params.shape;
  const auto rows = static_cast<std::ptrdiff_t>(num_rows);
  const std::ptrdiff_t width = std::ptrdiff_t{shape.heads} * shape.head_dim;
  QUIRE_CHECK(shape.softmax_scale > 0, "softmax scale must be positive");
  QUIRE_CHECK(shape.soft_cap >= 0, "a soft cap must not be negative");
  if (views.size() > 1) {
    check_views(params, views);
  } else {
    check_view(shape, views.front());
    QUIRE_CHECK(plan.max_block < views.front().num_blocks, "plan does not fit the view");
  }
  QUIRE_CHECK(plan.first_query.size() == params.entries.size() && plan.num_rows <= rows,
              "plan does not fit entries or rows");
  QUIRE_CHECK(rows == 0 || std::ssize(params.q) >= (rows - 1) * params.q_stride + width,
              "too few queries");
  QUIRE_CHECK(
      params.lse.empty() || params.lse.size() == num_rows * static_cast<std::size_t>(shape.heads),
      "wrong size of lse");
  QUIRE_CHECK(params.sinks.empty() || std::cmp_equal(params.sinks.size(), shape.heads),
              "a sink for each head, or none");
  const int half = params.rotary->half;
  const std::size_t angles = plan.query_positions.size() * static_cast<std::size_t>(half);
  QUIRE_CHECK(half >= 0 && 2 * half <= shape.head_dim && params.rotary->cos.size() >= angles &&
                  params.rotary->sin.size() >= angles,
              "rotary table does not fit");
}

// Makes room in `scratch` for a call with `pairs` rows of heads.
void reserve(AttentionScratch::Impl& scratch, std::size_t pairs, const AttentionPlan& plan,
             const ItemKernel& kernel, int threads) {
  const auto slots = static_cast<std::size_t>(plan.num_result_slots);
  scratch.max.require(pairs);
  scratch.sum.require(pairs);
  scratch.result_max.require(slots);
  scratch.result_sum.require(slots);
  scratch.result_acc.require(slots * static_cast<std::size_t>(kernel.padded_dim()));
  scratch.pieces.require(kernel.piece_bytes() * static_cast<std::size_t>(threads));
  scratch.done.require(plan.chains.size());
}

FormatKernels kernels_of(const KernelTable& table, const tensor::PagedKVView& view) {
  switch (view.format) {
    case tensor::KVFormat::kPlain:
      break;
    case tensor::KVFormat::kInt8:
      return {table.load_queries_int8, table.attend_int8};
    case tensor::KVFormat::kFp8:
      return {table.bf16_code_queries ? table.load_queries_bf16 : table.load_queries_fp32,
              table.attend_fp8};
    case tensor::KVFormat::kInt4:
      return {table.load_queries_fp32, table.attend_int4};
  }
  if (view.dtype == tensor::DType::kFloat32) {
    return {table.load_queries_fp32, table.attend_fp32};
  }
  return {table.load_queries_bf16, table.attend_bf16};
}

// Returns the kernel for the items of a call. It has no room for pieces yet.
ItemKernel item_kernel(const KernelTable& table, const RunParams& params,
                       std::span<const tensor::PagedKVView> views) {
  QUIRE_CHECK(views.size() <= kMaxViews, "too many formats in one call");
  std::array<FormatKernels, kMaxViews> kernels = {};
  std::ranges::transform(views, kernels.begin(),
                         [&](const tensor::PagedKVView& view) { return kernels_of(table, view); });
  return ItemKernel(
      {.entries = params.entries,
       .window_tokens = params.window_tokens,
       .soft_cap = static_cast<float>(params.shape.soft_cap * std::numbers::log2e),
       .views = views,
       .kernels = kernels},
      {.entries = params.entries,
       .first_query = params.plan->first_query,
       .rotary = params.rotary,
       .q = params.q.data(),
       .stride = params.q_stride,
       .head_dim = params.shape.head_dim,
       .padded_dim = views.front().head_dim,
       .scale = static_cast<float>(params.shape.softmax_scale * std::numbers::log2e)});
}

void finish(const RowStates& states, std::size_t rows, device::ThreadPool& pool) {
  const int groups = static_cast<int>((rows + kRowsPerFinish - 1) / kRowsPerFinish);
  pool.run(groups, [&](int group, int) {
    const std::size_t first = static_cast<std::size_t>(group) * kRowsPerFinish;
    states.finish(first, std::min(first + kRowsPerFinish, rows));
  });
}

}  // namespace

void run(const kernels::KernelContext& context, const RunParams& params,
         const tensor::PagedKVView& view, AttentionScratch& scratch) {
  const AttentionShape& shape = params.shape;
  QUIRE_CHECK(
      shape.heads > 0 && shape.head_dim > 0 && params.plan != nullptr && params.rotary != nullptr,
      "incomplete attention call");
  const auto heads = static_cast<std::size_t>(shape.heads);
  const std::size_t rows = params.out.size() / (heads * static_cast<std::size_t>(shape.head_dim));
  device::ThreadPool& pool = *context.pool;
  AttentionScratch::Impl& memory = scratch.impl();
  const std::span views = params.views.empty() ? std::span(&view, 1) : params.views;
  check_call(params, views, rows);

  const KernelTable& table = kernels_for(context.table->isa);
  ItemKernel kernel = item_kernel(table, params, views);
  reserve(memory, rows * heads, *params.plan, kernel, pool.threads());
  kernel.take_room(memory.pieces.data());
  const RowStates states(
      params.entries, {shape.heads, shape.head_dim, view.head_dim},
      {memory.max.data(), memory.sum.data(), params.out, params.lse, params.sinks});
  const ResultSlots slots(memory, view.head_dim);
  const WaveRunner waves({.plan = *params.plan,
                          .kv_heads = shape.kv_heads,
                          .kernel = kernel,
                          .states = states,
                          .slots = slots,
                          .merge = table.merge,
                          .done = memory.done.data()},
                         pool);
  states.clear(rows);
  for (const AttentionPlan::Wave& wave : params.plan->waves) {
    waves.run(wave);
  }
  finish(states, rows, pool);
}

}  // namespace quire::attention
