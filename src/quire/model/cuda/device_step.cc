#include "quire/model/cuda/device_step.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/cuda/kernels.h"
#include "quire/attention/device_join.h"
#include "quire/attention/device_plan.h"
#include "quire/attention/device_plan_maker.h"
#include "quire/attention/entry.h"
#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/choice.h"
#include "quire/kernels/cuda/kv_seal.h"
#include "quire/kernels/cuda/state_ops.h"
#include "quire/model/config.h"
#include "quire/model/forward_batch.h"
#include "quire/model/layer_plan.h"
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
constexpr std::size_t kLeastSeals = 32;

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

// Orders the formats that entries name: codes first, and numbers as they were computed last. Rows
// merge what they see in this order. So it does not depend on how the pool numbers formats.
void DeviceStep::order_formats(const ForwardBatch& batch,
                               std::span<const tensor::PagedKVView> views) {
  format_order_.clear();
  for (std::uint8_t format = 0; format < batch.num_formats; ++format) {
    if (std::ranges::find(batch.entries, format, &attention::Entry::format) !=
        batch.entries.end()) {
      format_order_.push_back(format);
    }
  }
  if (format_order_.empty()) {
    format_order_.push_back(0);
  }
  std::ranges::stable_sort(format_order_, {}, [&](std::uint8_t format) {
    const tensor::KVFormat kind = views[format].format;
    return std::pair(kind == tensor::KVFormat::kPlain, kind);
  });
}

// Plans the entries of each format, and joins them.
void DeviceStep::plan(WindowStep& window, const ForwardBatch& batch,
                      const tensor::PagedKVView& view) {
  const auto options = attention::cuda::fit_to_device({.block_tokens = view.block_tokens,
                                                       .window_tokens = window.window_tokens,
                                                       .range_tokens = range_tokens_},
                                                      view.head_dim, config_.scales.score_cap != 0);
  window.num_formats = 0;
  for (const std::uint8_t format : format_order_) {
    entries_.clear();
    std::ranges::copy_if(batch.entries, std::back_inserter(entries_),
                         [&](const attention::Entry& entry) { return entry.format == format; });
    if (window.known.size() == window.num_formats) {
      window.known.emplace_back();
    }
    FormatPlan& made = window.known[window.num_formats++];
    made.format = format;
    made.plan = attention::make_device_plan(attention_, entries_,
                                            static_cast<std::int32_t>(batch.token_ids.size()),
                                            options, std::move(made.plan));
  }
  std::vector<DevicePlan*> plans;
  blocks_of_plans_.clear();
  std::int32_t queries = 0, blocks = 0;
  for (FormatPlan& made : window.formats()) {
    const DevicePlan& plan = made.plan;
    made.shape = {.format = made.format,
                  .few = room_of(plan.few.size(), kLeastItems),
                  .many = room_of(plan.many.size(), kLeastItems),
                  .item_rows = room_of(plan.rows.size(), kLeastItemRows),
                  .queries = room_of(plan.query_rows.size()),
                  .wide = plan.widest_few > 8};
    made.first_query = std::exchange(queries, queries + made.shape.queries);
    made.first_block =
        std::exchange(blocks, blocks + static_cast<std::int32_t>(plan.blocks.size()));
    plans.push_back(&made.plan);
  }
  attention::join_device_plans(plans, blocks_of_plans_);
}

void DeviceStep::add_arrays(WindowStep& window) {
  const auto add = [&](const auto& values, std::int32_t room) {
    using T = typename std::remove_cvref_t<decltype(values)>::value_type;
    return upload_.add(std::span<const T>(values), static_cast<std::size_t>(room), T());
  };
  WindowShape shape{.merges = window.merges()};
  for (FormatPlan& each : window.formats()) {
    const DevicePlan& made = each.plan;
    each.queues = add(made.queues, static_cast<std::int32_t>(made.queues.size()));
    each.few = add(made.few, each.shape.few);
    each.many = add(made.many, each.shape.many);
    each.rows = add(made.rows, each.shape.item_rows);
    each.query_rows = add(made.query_rows, each.shape.queries);
    shape.formats.push_back(each.shape);
  }
  window.partials = add(window.known.front().plan.partials, shape_.rows);
  // One behind the other: the angles of all queries are computed at once.
  for (FormatPlan& each : window.formats()) {
    positions_of_queries_.insert(positions_of_queries_.end(), each.plan.query_positions.begin(),
                                 each.plan.query_positions.end());
    positions_of_queries_.resize(static_cast<std::size_t>(each.first_query + each.shape.queries));
  }
  window.query_positions = add(positions_of_queries_, window.queries());
  positions_of_queries_.clear();
  shape_.windows.push_back(std::move(shape));
}

void DeviceStep::add_choices(const ForwardBatch& batch) {
  shape_.chooses = false;
  std::int32_t logprobs = 0;  // the most of a row, with the chosen token's
  for (const kernels::Choice& choice : batch.choices) {
    if (choice.wanted != 0) {
      shape_.chooses = true;
      logprobs = std::max(logprobs, choice.logprobs + 1);
    }
  }
  shape_.logprobs = room_of(static_cast<std::size_t>(logprobs), kLeastLogprobs);
  const auto logit_rows = static_cast<std::size_t>(shape_.logit_rows);
  choices_ = upload_.add(shape_.chooses ? batch.choices : std::span<const kernels::Choice>(),
                         shape_.chooses ? logit_rows : 0, kernels::Choice());
  shape_.changes = room_of(batch.changes.size(), kLeastChanges);
  changes_ = upload_.add(batch.changes, static_cast<std::size_t>(shape_.changes), kNoChange);
}

// Adds where rows are stored, and the blocks that become full.
void DeviceStep::add_slots(const ForwardBatch& batch, std::span<const tensor::PagedKVView> views) {
  const auto rows = static_cast<std::size_t>(shape_.rows);
  std::span<const tensor::KVSlot> slots = batch.slots;
  if (!batch.kept.empty()) {
    written_.assign(slots.begin(), slots.end());
    for (std::size_t row = 0; row < written_.size(); ++row) {
      written_[row] = batch.kept[row] == 0 ? written_[row] : kNoSlot;
    }
    slots = written_;
  }
  slots_ = upload_.add(slots, rows, kNoSlot);
  shape_.slot_formats = batch.slot_formats.empty() ? 1 : 0;
  for (const std::uint8_t format : batch.slot_formats) {
    shape_.slot_formats |= std::uint32_t{1} << format;
  }
  // Where arrays lie depends on the shape alone.
  const bool named = shape_.slot_formats != 1;
  slot_formats_ = upload_.add(named ? batch.slot_formats : std::span<const std::uint8_t>(),
                              named ? rows : 0, std::uint8_t{0});
  sealed_.clear();
  for (const BlockSeal& seal : batch.seals) {
    sealed_.push_back({.from_format = seal.from_format,
                       .to_format = seal.to_format,
                       .from = seal.from,
                       .to = seal.to,
                       .last_row = seal.last_row});
  }
  shape_.seals = room_of(sealed_.size(), kLeastSeals);
  seals_ = upload_.add(std::span<const kernels::cuda::SealedBlock>(sealed_),
                       static_cast<std::size_t>(shape_.seals), kernels::cuda::SealedBlock());
  shape_.refuses = shape_.seals > 0;
  for (std::size_t format = 0; format < views.size(); ++format) {
    const bool codes = views[format].format != tensor::KVFormat::kPlain;
    shape_.refuses = shape_.refuses || (codes && (shape_.slot_formats >> format & 1U) != 0);
  }
  shape_.measures = shape_.refuses && !batch.kv_errors.empty();
}

// Adds what queries see, in the order of the formats' queries.
void DeviceStep::add_query_ends(const ForwardBatch& batch) {
  ends_.clear();
  for (const FormatPlan& each : windows_.front().formats()) {
    for (const attention::Entry& entry : batch.entries) {
      for (const attention::EntryRow& row : entry.rows) {
        if (entry.format == each.format) {
          ends_.push_back(std::min(row.visible_end, entry.num_tokens));
        }
      }
    }
    ends_.resize(static_cast<std::size_t>(each.first_query + each.shape.queries));
  }
  query_ends_ = upload_.add(std::span<const std::int32_t>(ends_), ends_.size(), std::int32_t{0});
}

// Adds the runs of rows, and the states that are kept between them.
void DeviceStep::add_states(const ForwardBatch& batch) {
  shape_.states = batch.states.data;
  shape_.state_runs = room_of(batch.state_runs.size());
  if (batch.state_runs.empty()) {
    return;
  }
  states_ = batch.states;
  runs_.clear();
  captured_.clear();
  run_of_row_.assign(static_cast<std::size_t>(shape_.rows), -1);
  for (const StateRun& run : batch.state_runs) {
    std::fill_n(run_of_row_.begin() + run.first_row, run.num_rows,
                static_cast<std::int32_t>(runs_.size()));
    runs_.push_back({.first_row = run.first_row,
                     .num_rows = run.num_rows,
                     .from = run.from,
                     .to = run.to,
                     .first_capture = static_cast<std::int32_t>(captured_.size()),
                     .num_captures = static_cast<std::int32_t>(run.captures.size())});
    for (const StateCapture& capture : run.captures) {
      captured_.push_back({.row = capture.row, .to = capture.to});
    }
  }
  state_runs_ =
      upload_.add(std::span<const kernels::cuda::StateRows>(runs_),
                  static_cast<std::size_t>(shape_.state_runs), kernels::cuda::StateRows());
  runs_of_rows_ =
      upload_.add(std::span<const std::int32_t>(run_of_row_), run_of_row_.size(), std::int32_t{-1});
  // A row has one capture at most.
  captures_ = upload_.add(std::span<const kernels::cuda::CapturedState>(captured_),
                          static_cast<std::size_t>(shape_.rows), kernels::cuda::CapturedState());
}

Status DeviceStep::prepare(const ForwardBatch& batch, std::span<const tensor::PagedKVView> views,
                           bool rounded) {
  rounded_ = rounded;
  shape_.rows = room_of(batch.token_ids.size());
  shape_.logit_rows = room_of(batch.logit_rows.size());
  shape_.windows.clear();
  upload_.clear();
  const auto rows = static_cast<std::size_t>(shape_.rows);
  ids_ = upload_.add(batch.token_ids, rows, TokenId{0});
  ids_from_ = upload_.add(batch.ids_from, rows, std::int32_t{-1});
  positions_ = upload_.add(batch.positions, rows, std::int32_t{0});
  use_positions_ = positions_;
  if (config_.scales.query_growth != 0.0) {
    use_positions_ = upload_.add(
        batch.use_positions.empty() ? batch.positions : batch.use_positions, rows, std::int32_t{0});
  }
  add_slots(batch, views);
  logit_rows_ =
      upload_.add(batch.logit_rows, static_cast<std::size_t>(shape_.logit_rows), std::int32_t{0});
  add_choices(batch);
  add_states(batch);
  order_formats(batch, views);
  for (WindowStep& window : windows_) {
    plan(window, batch, views.front());
  }
  add_query_ends(batch);
  for (WindowStep& window : windows_) {
    add_arrays(window);
  }
  // Last, so that no other array moves when it grows, which it does with each block that fills. Its
  // length is not part of the shape. Every window's plans have the same blocks.
  blocks_ = upload_.add(std::span<const std::int32_t>(blocks_of_plans_), blocks_of_plans_.size(),
                        std::int32_t{0});
  QUIRE_TRY_STATUS(upload_.send());
  shape_.kv = views.front().data;
  shape_.arrays = upload_.base();
  return {};
}

attention::PlanCounters DeviceStep::counters() const {
  attention::PlanCounters sum;
  for (std::size_t layer = 0; layer < config_.window_tokens.size(); ++layer) {
    if (!config_.mixers.empty() && config_.mixers[layer] != MixerKind::kAttention) {
      continue;
    }
    const auto window =
        std::ranges::find(windows_, config_.window_tokens[layer], &WindowStep::window_tokens);
    for (const FormatPlan& each : window->formats()) {
      sum.entries += each.plan.counters.entries;
      sum.rows += each.plan.counters.rows;
      sum.blocks_read += each.plan.counters.blocks_read;
    }
  }
  return sum;
}

}  // namespace quire::model::cuda
