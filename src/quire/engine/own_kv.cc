#include "quire/engine/own_kv.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/engine/open_format.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/kv_read.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/open_blocks.h"
#include "quire/kv/types.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/state_pool.h"
#include "quire/model/forward_batch.h"
#include "quire/result.h"
#include "quire/sched/types.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/tensor/state_view.h"
#include "quire/types.h"

namespace quire::engine {

OwnKV::OwnKV(kv_store::PagedPool pool, std::optional<kv_store::PagedPool> staging,
             const kv::LedgerConfig& config, std::span<const TokenId> ids)
    : pool_(std::move(pool)),
      staging_(std::move(staging)),
      ledger_(config),
      sequence_(ledger_.sequences().open(ids, false)) {
  for (std::uint8_t format = 0; format < config.num_formats(); ++format) {
    for (std::size_t layer = 0; layer < layers(); ++layer) {
      views_.push_back(pool_.view(static_cast<int>(layer), kv::FormatId{format}));
    }
  }
  if (staging_) {
    const std::vector<tensor::PagedKVView> staged = staging_views(*staging_, pool_.geometry());
    views_.insert(views_.end(), staged.begin(), staged.end());
  }
}

Result<std::unique_ptr<OwnKV>> OwnKV::create(const tensor::KVGeometry& geometry,
                                             const tensor::StateGeometry& states,
                                             std::span<const TokenId> ids,
                                             std::int32_t step_tokens) {
  constexpr std::int32_t kSpareBlocks = 128;  // beside those of the ids: slabs of open blocks
  const bool by_block = tensor::is_written_by_block(geometry.format);
  kv::LedgerConfig config{.block_tokens = geometry.block_tokens, .prefix_cache = false};
  config.num_blocks = static_cast<std::int32_t>(ids.size()) / geometry.block_tokens + 1 +
                      (by_block ? kSpareBlocks : 0);
  QUIRE_TRY(kv_store::PagedPool pool, kv_store::PagedPool::create(geometry, config.num_blocks));
  config.formats = pool.block_formats();
  std::optional<kv_store::PagedPool> staging;
  if (by_block) {
    QUIRE_TRY_STATUS(add_open_format(pool, config, 2));
    QUIRE_TRY(staging, make_staging(geometry, step_tokens));
  }
  QUIRE_TRY_STATUS(config.validate());
  std::unique_ptr<OwnKV> made(new OwnKV(std::move(pool), std::move(staging), config, ids));
  QUIRE_TRY(made->states_, kv_store::StatePool::create(states, 1, 0));
  return made;
}

Result<model::ForwardBatch> OwnKV::next_batch(std::int32_t count) {
  QUIRE_TRY_STATUS(ledger_.sequences().extend(sequence_, count));
  QUIRE_CHECK(ledger_.take_copies().empty(), "a sequence that nobody shares is never copied");
  const sched::ScheduledRun run{
      .sequence = sequence_, .first = ledger_.sequences().num_computed(sequence_), .count = count};
  batch_ = builder_.build({&run, 1}, {&count, 1}, ledger_);
  batch_.states = states_.view();
  if (batch_.states.num_states > 0) {
    state_run_ = {.num_rows = count, .from = run.first == 0 ? -1 : 0, .to = 0};
    batch_.state_runs = {&state_run_, 1};
  }
  return batch_;
}

void OwnKV::store(const kernels::KernelContext& context, int layer, const Rows& rows) {
  const auto width = static_cast<std::ptrdiff_t>(rows.keys.size() / batch_.slots.size());
  refused_.assign(batch_.slots.size(), 0);  // they fail the pass that computes the KV
  layer_views_.clear();
  for (std::uint8_t format = 0; format < batch_.num_formats; ++format) {
    layer_views_.push_back(view(layer, format));
  }
  writer_.store(context, batch_, layer_views_,
                {.k = rows.keys,
                 .v = rows.values,
                 .k_stride = width,
                 .v_stride = width,
                 .head_dim = rows.head_dim,
                 .refused = refused_});
}

// Returns where a token lies that was stored, by the last batch or before.
OwnKV::Place OwnKV::place_of(std::size_t token) const {
  const auto block_tokens = static_cast<std::size_t>(pool_.geometry().block_tokens);
  const kv::RunView run = ledger_.sequences().runs(sequence_).back();
  const std::size_t index = token / block_tokens;
  Place place{.slot = {.offset = static_cast<std::int32_t>(token % block_tokens)}};
  if (index < run.blocks.size()) {
    place.slot.block = run.blocks[index].value;
    return place;
  }
  const auto open =
      std::ranges::find(run.open_blocks, static_cast<std::int32_t>(index), &kv::OpenBlock::index);
  QUIRE_CHECK(open != run.open_blocks.end(), "a token that is read was stored");
  place.format = open->block.format().value;
  place.slot.block = open->block.id.value;
  return place;
}

void OwnKV::read_key(int layer, int kv_head, std::size_t token, std::span<float> out) const {
  const Place place = place_of(token);
  kernels::read_key(view(layer, place.format), kv_head, place.slot, out);
}

void OwnKV::read_value(int layer, int kv_head, std::size_t token, std::span<float> out) const {
  const Place place = place_of(token);
  kernels::read_value(view(layer, place.format), kv_head, place.slot, out);
}

}  // namespace quire::engine
