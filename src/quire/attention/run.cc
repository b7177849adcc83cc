#include "quire/attention/run.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numbers>
#include <span>

#include "quire/attention/cpu/kernel_table.h"
#include "quire/attention/entry.h"
#include "quire/attention/plan.h"
#include "quire/attention/tile.h"
#include "quire/base/check.h"
#include "quire/base/divide.h"
#include "quire/device/aligned_buffer.h"
#include "quire/device/cpu/spin.h"
#include "quire/device/cpu/subnormals.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/context.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/rotary.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::attention {

struct AttentionScratch::Impl {
  device::AlignedBuffer<float> max, sum;            // running state, [rows, heads]
  device::AlignedBuffer<float> slot_max, slot_sum;  // [slots]
  device::AlignedBuffer<float> slot_acc;            // [slots, padded_dim]
  device::AlignedBuffer<std::byte> pieces;          // [threads] one piece of K and V each
  device::AlignedBuffer<std::uint8_t> done;         // [chains] 1 when it is, atomically
};

AttentionScratch::AttentionScratch() : impl_(std::make_unique<Impl>()) {}
AttentionScratch::~AttentionScratch() = default;
AttentionScratch::AttentionScratch(AttentionScratch&&) noexcept = default;
AttentionScratch& AttentionScratch::operator=(AttentionScratch&&) noexcept = default;

namespace {

constexpr int kRowsPerFinish = 8;

// Softmax state of one tile, on the stack of the thread that works on it.
struct TileState {
  alignas(64) float acc[kItemRows * kMaxHeadDim];
  float max[kItemRows];
  float sum[kItemRows];
  [[nodiscard]] SoftmaxState view() { return {max, sum, acc}; }
};

template <class T>
void grow(device::AlignedBuffer<T>& buffer, std::size_t size) {
  buffer.require(size);
}

// One call's inputs, and the steps that work items go through.
class Call {
 public:
  Call(const kernels::Context& context, const RunParams& params, const tensor::PagedKVView& view,
       AttentionScratch::Impl& scratch)
      : p_(params),
        view_(view),
        scratch_(scratch),
        pool_(*context.pool),
        table_(kernels_for(context.table->isa)),
        heads_(params.shape.heads),
        head_dim_(params.shape.head_dim),
        padded_dim_(view.head_dim),
        scale_(static_cast<float>(params.shape.softmax_scale * std::numbers::log2e)),
        width_(std::ptrdiff_t{heads_} * head_dim_),
        num_rows_(params.out.size() / static_cast<std::size_t>(width_)) {}

  void run() {
    check();
    reserve();
    const std::size_t pairs = num_rows_ * static_cast<std::size_t>(heads_);
    std::fill_n(scratch_.max.data(), pairs, kLowest);
    std::fill_n(scratch_.sum.data(), pairs, 0.0f);
    std::fill_n(scratch_.done.data(), p_.plan->chains.size(), std::uint8_t{0});
    for (const Plan::Wave& wave : p_.plan->waves) {
      run_wave(wave);
    }
    const int chunks = static_cast<int>((num_rows_ + kRowsPerFinish - 1) / kRowsPerFinish);
    pool_.run(chunks, [&](int chunk, int) {
      const std::size_t first = static_cast<std::size_t>(chunk) * kRowsPerFinish;
      finish(first, std::min(first + kRowsPerFinish, num_rows_));
    });
  }

 private:
  void check() const {
    const Plan& plan = *p_.plan;
    const auto rows = static_cast<std::ptrdiff_t>(num_rows_);
    QUIRE_CHECK(p_.shape.softmax_scale > 0, "softmax scale must be positive");
    QUIRE_CHECK(head_dim_ >= 1 && head_dim_ <= kMaxHeadDim &&
                    padded_dim_ == (head_dim_ + 31) / 32 * 32 &&
                    p_.shape.kv_heads == view_.kv_heads,
                "view and shape disagree");
    QUIRE_CHECK(view_.dtype != tensor::DType::kFloat16, "KV must be bfloat16 or float32");
    QUIRE_CHECK(plan.first_query.size() == p_.entries.size() && plan.num_rows <= rows &&
                    plan.max_block < view_.num_blocks,
                "plan does not fit entries, rows or view");
    QUIRE_CHECK(rows == 0 || std::ssize(p_.q) >= (rows - 1) * p_.q_stride + width_,
                "too few queries");
    QUIRE_CHECK(p_.lse.empty() || p_.lse.size() == num_rows_ * static_cast<std::size_t>(heads_),
                "wrong size of lse");
    const int half = p_.rotary->half;
    const std::size_t angles = plan.query_positions.size() * static_cast<std::size_t>(half);
    QUIRE_CHECK(half >= 0 && 2 * half <= head_dim_ && p_.rotary->cos.size() >= angles &&
                    p_.rotary->sin.size() >= angles,
                "rotary table does not fit");
  }

  void reserve() {
    const std::size_t pairs = num_rows_ * static_cast<std::size_t>(heads_);
    const auto slots = static_cast<std::size_t>(p_.plan->num_slots);
    grow(scratch_.max, pairs);
    grow(scratch_.sum, pairs);
    grow(scratch_.slot_max, slots);
    grow(scratch_.slot_sum, slots);
    grow(scratch_.slot_acc, slots * static_cast<std::size_t>(padded_dim_));
    grow(scratch_.pieces, piece_bytes() * static_cast<std::size_t>(pool_.threads()));
    grow(scratch_.done, p_.plan->chains.size());
  }

  [[nodiscard]] std::size_t piece_bytes() const {
    return scratch_bytes(padded_dim_, tensor::dtype_bytes(view_.dtype));
  }

  // Items of chains [first, first + count).
  [[nodiscard]] std::span<const WorkItem> items_of(std::int32_t first, std::int32_t count) const {
    const auto chains =
        std::span(p_.plan->chains)
            .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
    const std::int32_t begin = chains.front().first_item;
    const std::int32_t end = chains.back().first_item + chains.back().num_items;
    return std::span(p_.plan->items)
        .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  }

  void run_wave(const Plan::Wave& wave) {
    pool_.run(wave.num_chains, [&](int i, int thread) {
      const device::FlushSubnormals flush;
      // Threads take chains in turn.
      const int later = i + pool_.threads();
      const WorkItem* next =
          later < wave.num_chains ? items_of(wave.first_chain + later, 1).data() : nullptr;
      if (wave.split) {
        run_piece(items_of(wave.first_chain + i, 1).front(), next, thread);
      } else {
        run_chain(wave.first_chain + i, next, thread);
      }
    });
    if (wave.split) {
      const auto items = items_of(wave.first_chain, wave.num_chains);
      pool_.run(p_.shape.kv_heads, [&](int kv_head, int) {
        const device::FlushSubnormals flush;
        merge_slots(items, kv_head);
      });
    }
  }

  // One piece into its slots.
  void run_piece(const WorkItem& item, const WorkItem* next, int thread) const {
    const SoftmaxState slots = slots_of(item);
    const std::ptrdiff_t rows = std::ptrdiff_t{item.rows} * item.heads;
    std::fill_n(slots.max, rows, kLowest);
    std::fill_n(slots.sum, rows, 0.0f);
    std::fill_n(slots.acc, rows * padded_dim_, 0.0f);
    attend(item, slots, next, thread);
  }

  // Items one after the other into the running state, once the chain before them is done. Chains
  // begin in order, so that one runs or is done already: no thread waits for itself.
  void run_chain(std::int32_t chain, const WorkItem* next, int thread) const {
    const std::int32_t after = p_.plan->chains[static_cast<std::size_t>(chain)].after;
    if (after >= 0) {
      device::spin_until([&] { return done(after).load(std::memory_order_acquire) != 0; });
    }
    const std::span<const WorkItem> items = items_of(chain, 1);
    TileState state;
    load(items.front(), state);
    for (const WorkItem& item : items) {
      attend(item, state.view(), &item == &items.back() ? next : &item + 1, thread);
    }
    save(items.back(), state);
    done(chain).store(1, std::memory_order_release);
  }

  [[nodiscard]] std::atomic_ref<std::uint8_t> done(std::int32_t chain) const {
    return std::atomic_ref(scratch_.done.data()[chain]);
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
          save(*loaded, state);
        }
        load(item, state);
        loaded = &item;
      }
      table_.merge({.state = state.view(),
                    .piece = slots_of(item),
                    .rows = item.rows * item.heads,
                    .padded_dim = padded_dim_});
    }
    if (loaded != nullptr) {
      save(*loaded, state);
    }
  }

  static bool same_entry_rows_and_heads(const WorkItem& a, const WorkItem& b) {
    return a.entry == b.entry && a.first_row == b.first_row && a.first_head == b.first_head;
  }

  [[nodiscard]] SoftmaxState slots_of(const WorkItem& item) const {
    return {scratch_.slot_max.data() + item.slot, scratch_.slot_sum.data() + item.slot,
            scratch_.slot_acc.data() + std::ptrdiff_t{item.slot} * padded_dim_};
  }

  [[nodiscard]] NextPiece first_piece_of(const WorkItem* item) const {
    return item == nullptr ? NextPiece{} : piece_of(*item, item->first_piece);
  }

  [[nodiscard]] NextPiece piece_of(const WorkItem& item, int piece) const {
    const Entry& entry = p_.entries[static_cast<std::size_t>(item.entry)];
    return {.kv = view_.data + item.kv_head * view_.head_stride,
            .blocks = entry.blocks.data(),
            .num_blocks = static_cast<int>(entry.blocks.size()),
            .piece = piece};
  }

  // Where the queries of so many strips are put, one after the other, and what they see.
  template <int kStrips>
  struct Rows {
    alignas(64) std::byte queries[sizeof(float) * kStrips * kStripRows * kMaxHeadDim];
    TokenRange visible[kStrips * kStripRows];
  };

  [[nodiscard]] auto kernel() const {
    return view_.dtype == tensor::DType::kFloat32 ? table_.attend_fp32 : table_.attend_bf16;
  }

  // `next` is what the thread will probably do after it.
  void attend(const WorkItem& item, const SoftmaxState& state, const WorkItem* next,
              int thread) const {
    if (item.rows * item.heads > kStripRows) {
      attend_strips(item, state, next, thread);
      return;
    }
    Rows<1> rows;
    AttentionTask task = strip_task(item, 0, {rows.queries, rows.visible, state}, thread);
    if (next != nullptr) {
      look_ahead(*next);
    }
    task.next = first_piece_of(next);
    kernel()(task);
  }

  // Strips take each piece in turn, while it is in the near caches; the first one asks for what
  // comes after it.
  void attend_strips(const WorkItem& item, const SoftmaxState& state, const WorkItem* next,
                     int thread) const {
    Rows<kMaxStrips> rows;
    AttentionTask tasks[kMaxStrips];
    const int strips = base::divide_up(item.rows, kStripRows / item.heads);
    const int strip_rows = base::divide_up(item.rows, strips);
    for (int i = 0; i < strips; ++i) {
      WorkItem strip = item;
      strip.first_row += i * strip_rows;
      strip.rows = std::min(strip_rows, item.rows - i * strip_rows);
      tasks[i] = strip_task(strip, i * strip_rows * item.heads, {rows.queries, rows.visible, state},
                            thread);
    }
    if (next != nullptr) {
      look_ahead(*next);
    }
    for (int piece = item.first_piece; piece < item.last_piece; ++piece) {
      tasks[0].next =
          piece + 1 < item.last_piece ? piece_of(item, piece + 1) : first_piece_of(next);
      for (int i = 0; i < strips; ++i) {
        tasks[i].first_piece = piece;
        tasks[i].last_piece = piece + 1;
        kernel()(tasks[i]);
      }
    }
  }

  // Of an item's rows.
  struct ItemRows {
    std::byte* queries;
    TokenRange* visible;
    SoftmaxState state;
  };

  // All pieces for a strip whose first row is the `first`th of `to`; loads its queries.
  [[nodiscard]] AttentionTask strip_task(const WorkItem& strip, int first, const ItemRows& to,
                                         int thread) const {
    const Entry& entry = p_.entries[static_cast<std::size_t>(strip.entry)];
    const std::ptrdiff_t at = std::ptrdiff_t{first} * padded_dim_;
    std::byte* const queries = to.queries + at * std::ptrdiff_t{sizeof(float)};
    TokenRange* const visible = to.visible + first;
    load_queries(strip, queries);
    for (int r = 0; r < strip.rows * strip.heads; ++r) {
      visible[r] = visible_tokens(entry, entry_row(strip, r / strip.heads), p_.window_tokens);
    }
    return {.q = queries,
            .kv = view_.data + strip.kv_head * view_.head_stride,
            .block_stride = view_.block_stride,
            .v_offset = view_.v_offset,
            .blocks = entry.blocks.data(),
            .num_blocks = static_cast<int>(entry.blocks.size()),
            .block_tokens = view_.block_tokens,
            .visible = visible,
            .rows = strip.rows * strip.heads,
            .padded_dim = padded_dim_,
            .first_piece = strip.first_piece,
            .last_piece = strip.last_piece,
            .scratch = scratch_.pieces.data() + static_cast<std::size_t>(thread) * piece_bytes(),
            .state = {to.state.max + first, to.state.sum + first, to.state.acc + at}};
  }

  [[nodiscard]] const EntryRow& entry_row(const WorkItem& item, int row) const {
    return p_.entries[static_cast<std::size_t>(item.entry)]
        .rows[static_cast<std::size_t>(item.first_row) + static_cast<std::size_t>(row)];
  }

  // Row of the rotary table for the item's first row.
  [[nodiscard]] std::int32_t first_query_of(const WorkItem& item) const {
    return p_.plan->first_query[static_cast<std::size_t>(item.entry)] + item.first_row;
  }

  // Asks for the angles of the item's rows: keys and values have pushed them out of the caches that
  // are near.
  void look_ahead(const WorkItem& item) const {
    constexpr int kLineFloats = 16;
    const std::ptrdiff_t half = p_.rotary->half, first = first_query_of(item) * half;
    for (std::ptrdiff_t at = first; at < first + item.rows * half; at += kLineFloats) {
      __builtin_prefetch(p_.rotary->cos.data() + at, 0, 2);
      __builtin_prefetch(p_.rotary->sin.data() + at, 0, 2);
    }
  }

  // The tile's query rows, rotated for this entry.
  void load_queries(const WorkItem& item, std::byte* tile) const {
    const bool fp32 = view_.dtype == tensor::DType::kFloat32;
    const std::ptrdiff_t angles = std::ptrdiff_t{first_query_of(item)} * p_.rotary->half;
    const float* heads[kStripRows];
    for (int r = 0; r < item.rows * item.heads; ++r) {
      const int row = r / item.heads, head = item.first_head + r % item.heads;
      heads[r] =
          p_.q.data() + entry_row(item, row).row * p_.q_stride + std::ptrdiff_t{head} * head_dim_;
    }
    (fp32 ? table_.load_queries_fp32
          : table_.load_queries_bf16)({.heads = heads,
                                       .cos = p_.rotary->cos.data() + angles,
                                       .sin = p_.rotary->sin.data() + angles,
                                       .rows = item.rows * item.heads,
                                       .rows_per_angle = item.heads,
                                       .half = p_.rotary->half,
                                       .head_dim = head_dim_,
                                       .padded_dim = padded_dim_,
                                       .scale = scale_,
                                       .out = tile});
  }

  // Where the tile's row r lies among the [rows, heads] outputs.
  [[nodiscard]] std::size_t output_index(const WorkItem& item, int r) const {
    return static_cast<std::size_t>(entry_row(item, r / item.heads).row) *
               static_cast<std::size_t>(heads_) +
           static_cast<std::size_t>(item.first_head + r % item.heads);
  }

  void load(const WorkItem& item, TileState& state) const {
    for (int r = 0; r < item.rows * item.heads; ++r) {
      const std::size_t at = output_index(item, r);
      state.max[r] = scratch_.max.data()[at];
      state.sum[r] = scratch_.sum.data()[at];
      float* acc = state.acc + std::ptrdiff_t{r} * padded_dim_;
      const int held = state.max[r] == kLowest ? 0 : head_dim_;  // out holds nothing before
      std::copy_n(p_.out.data() + at * static_cast<std::size_t>(head_dim_), held, acc);
      std::fill(acc + held, acc + padded_dim_, 0.0f);
    }
  }

  void save(const WorkItem& item, const TileState& state) const {
    for (int r = 0; r < item.rows * item.heads; ++r) {
      const std::size_t at = output_index(item, r);
      scratch_.max.data()[at] = state.max[r];
      scratch_.sum.data()[at] = state.sum[r];
      std::copy_n(state.acc + std::ptrdiff_t{r} * padded_dim_, head_dim_,
                  p_.out.data() + at * static_cast<std::size_t>(head_dim_));
    }
  }

  void finish(std::size_t first_row, std::size_t end_row) const {
    const auto heads = static_cast<std::size_t>(heads_);
    for (std::size_t i = first_row * heads; i < end_row * heads; ++i) {
      const float max = scratch_.max.data()[i], sum = scratch_.sum.data()[i];
      const std::span<float> out = p_.out.subspan(i * static_cast<std::size_t>(head_dim_),
                                                  static_cast<std::size_t>(head_dim_));
      if (max == kLowest) {
        std::fill(out.begin(), out.end(), 0.0f);
      } else {
        const float inverse = 1.0f / sum;
        for (float& value : out) {
          value *= inverse;
        }
      }
      if (!p_.lse.empty()) {
        p_.lse[i] =
            max == kLowest
                ? kLowest
                : static_cast<float>(double{max} * std::numbers::ln2 + std::log(double{sum}));
      }
    }
  }

  const RunParams& p_;
  const tensor::PagedKVView& view_;
  AttentionScratch::Impl& scratch_;
  device::ThreadPool& pool_;
  const KernelTable& table_;
  int heads_;
  int head_dim_;
  int padded_dim_;
  float scale_;           // of scores that are exponents of 2
  std::ptrdiff_t width_;  // of a row of out
  std::size_t num_rows_;
};

}  // namespace

void run(const kernels::Context& context, const RunParams& params, const tensor::PagedKVView& view,
         AttentionScratch& scratch) {
  QUIRE_CHECK(params.shape.heads > 0 && params.shape.head_dim > 0 && params.plan != nullptr &&
                  params.rotary != nullptr,
              "incomplete attention call");
  Call(context, params, view, scratch.impl()).run();
}

}  // namespace quire::attention
