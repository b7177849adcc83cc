#include "quire/model/cuda/device_step.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/cuda/kernels.h"
#include "quire/attention/device_plan.h"
#include "quire/attention/device_plan_maker.h"
#include "quire/attention/entry.h"
#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/choice.h"
#include "quire/model/config.h"
#include "quire/model/forward_batch.h"
#include "quire/result.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/types.h"

namespace quire::model::cuda {
namespace {

using attention::DevicePlan;
using device::cuda::DeviceBuffer;
using device::cuda::PinnedBuffer;

// Room that costs nothing, so that a sequence does not change the shape of its steps while it is
// short.
constexpr std::size_t kLeastItems = 32, kLeastItemRows = 128;
// Room of the upload, which graphs know by its address, so that it rarely grows.
constexpr std::size_t kLeastBytes = std::size_t{256} << 10;
constexpr std::size_t kLeastChanges = 1024;
constexpr std::size_t kLeastLogprobs = 32;

// A row that nobody asked for has nowhere to store its KV.
constexpr tensor::KVSlot kNoSlot = {.block = -1, .offset = 0};
constexpr kernels::LogitChange kNoChange = {.row = -1};

// Returns the next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ...
std::size_t rounded_up(std::size_t count) {
  std::size_t power = 1;
  while (power < count) {
    power *= 2;
  }
  return power > 2 && power / 4 * 3 >= count ? power / 4 * 3 : power;
}

}  // namespace

std::size_t Upload::make_room(std::size_t bytes) {
  constexpr std::size_t kAlignment = 128;  // a line of the cache
  const std::size_t offset = (bytes_.size() + kAlignment - 1) / kAlignment * kAlignment;
  bytes_.resize(offset + bytes);
  return offset;
}

Status Upload::send() {
  const std::size_t size = std::max(bytes_.size(), kLeastBytes / 2);
  if (on_device_.size() < size) {
    on_device_ = {};
    QUIRE_TRY(on_device_, DeviceBuffer<std::byte>::make(device_->device_pool(), 2 * size));
  }
  turn_ = 1 - turn_;
  PinnedBuffer<std::byte>& pinned = pinned_[turn_];
  if (pinned.size() < size) {
    pinned = {};
    QUIRE_TRY(pinned, PinnedBuffer<std::byte>::make(device_->pinned_pool(), 2 * size));
  }
  std::ranges::copy(bytes_, pinned.data());
  return device::cuda::copy_async(on_device_.data(), pinned.data(), bytes_.size(),
                                  device_->compute_stream().get());
}

DeviceStep::DeviceStep(device::cuda::DeviceContext& device, const ModelConfig& config,
                       std::int32_t range_tokens)
    : config_(config),
      attention_{.heads = config.heads, .kv_heads = config.kv_heads, .head_dim = config.head_dim},
      range_tokens_(range_tokens),
      upload_(device) {
  for (const std::int32_t window : config.window_tokens) {
    if (std::ranges::find(windows_, window, &WindowStep::window_tokens) == windows_.end()) {
      windows_.emplace_back().window_tokens = window;
    }
  }
}

WindowStep& DeviceStep::window_of(std::size_t layer) {
  return *std::ranges::find(windows_, config_.window_tokens[layer], &WindowStep::window_tokens);
}

std::int32_t DeviceStep::room_of(std::size_t count, std::size_t least) const {
  const bool pads = rounded_ && count > 0;
  return static_cast<std::int32_t>(pads ? rounded_up(std::max(count, least)) : count);
}

void DeviceStep::plan(WindowStep& window, const ForwardBatch& batch,
                      const tensor::PagedKVView& view) {
  window.plan = attention::make_device_plan(
      attention_, batch.entries, static_cast<std::int32_t>(batch.token_ids.size()),
      attention::cuda::fit_to_device({.block_tokens = view.block_tokens,
                                      .window_tokens = window.window_tokens,
                                      .range_tokens = range_tokens_},
                                     view.head_dim),
      std::move(window.plan));
  const DevicePlan& made = window.plan;
  window.shape = {.few = room_of(made.few.size(), kLeastItems),
                  .many = room_of(made.many.size(), kLeastItems),
                  .item_rows = room_of(made.rows.size(), kLeastItemRows),
                  .queries = room_of(made.query_rows.size()),
                  .wide = made.widest_few > 8,
                  .merges = made.num_merged > 0};
}

void DeviceStep::add_arrays(WindowStep& window) {
  const auto add = [&](const auto& values, std::int32_t room) {
    using T = typename std::remove_cvref_t<decltype(values)>::value_type;
    return upload_.add(std::span<const T>(values), static_cast<std::size_t>(room), T());
  };
  const DevicePlan& made = window.plan;
  window.queues = add(made.queues, static_cast<std::int32_t>(made.queues.size()));
  window.few = add(made.few, window.shape.few);
  window.many = add(made.many, window.shape.many);
  window.rows = add(made.rows, window.shape.item_rows);
  window.partials = add(made.partials, shape_.rows);
  window.query_rows = add(made.query_rows, window.shape.queries);
  window.query_positions = add(made.query_positions, window.shape.queries);
}

Status DeviceStep::prepare(const ForwardBatch& batch, const tensor::PagedKVView& view,
                           bool rounded) {
  rounded_ = rounded;
  shape_.rows = room_of(batch.token_ids.size());
  shape_.logit_rows = room_of(batch.logit_rows.size());
  shape_.chooses = false;
  std::int32_t logprobs = 0;  // the most of a row, with the chosen token's
  for (const kernels::Choice& choice : batch.choices) {
    if (choice.wanted != 0) {
      shape_.chooses = true;
      logprobs = std::max(logprobs, choice.logprobs + 1);
    }
  }
  shape_.logprobs = room_of(static_cast<std::size_t>(logprobs), kLeastLogprobs);
  shape_.windows.clear();
  upload_.clear();
  const auto rows = static_cast<std::size_t>(shape_.rows);
  const auto logit_rows = static_cast<std::size_t>(shape_.logit_rows);
  ids_ = upload_.add(batch.token_ids, rows, TokenId{0});
  ids_from_ = upload_.add(batch.ids_from, rows, std::int32_t{-1});
  positions_ = upload_.add(batch.positions, rows, std::int32_t{0});
  slots_ = upload_.add(batch.slots, rows, kNoSlot);
  logit_rows_ = upload_.add(batch.logit_rows, logit_rows, std::int32_t{0});
  choices_ = upload_.add(shape_.chooses ? batch.choices : std::span<const kernels::Choice>(),
                         shape_.chooses ? logit_rows : 0, kernels::Choice());
  shape_.changes = room_of(batch.changes.size(), kLeastChanges);
  changes_ = upload_.add(batch.changes, static_cast<std::size_t>(shape_.changes), kNoChange);
  ends_.clear();
  for (const attention::Entry& entry : batch.entries) {
    for (const attention::EntryRow& row : entry.rows) {
      ends_.push_back(std::min(row.visible_end, entry.num_tokens));
    }
  }
  query_ends_ = upload_.add(std::span<const std::int32_t>(ends_),
                            static_cast<std::size_t>(room_of(ends_.size())), std::int32_t{0});
  for (WindowStep& window : windows_) {
    plan(window, batch, view);
    add_arrays(window);
    shape_.windows.push_back(window.shape);
  }
  // Last, so that no other array moves when it grows, which it does with each block that fills. Its
  // length is not part of the shape. Every window's plan has the same blocks.
  const std::span<const std::int32_t> blocks = windows_.front().plan.blocks;
  blocks_ = upload_.add(blocks, blocks.size(), std::int32_t{0});
  QUIRE_TRY_STATUS(upload_.send());
  shape_.kv = view.data;
  shape_.format = view.format;
  shape_.measures = view.format != tensor::KVFormat::kPlain && !batch.kv_errors.empty();
  shape_.arrays = upload_.base();
  return {};
}

attention::PlanCounters DeviceStep::counters() const {
  attention::PlanCounters sum;
  for (const std::int32_t tokens : config_.window_tokens) {
    const auto window = std::ranges::find(windows_, tokens, &WindowStep::window_tokens);
    sum.entries += window->plan.counters.entries;
    sum.rows += window->plan.counters.rows;
    sum.blocks_read += window->plan.counters.blocks_read;
  }
  return sum;
}

}  // namespace quire::model::cuda
