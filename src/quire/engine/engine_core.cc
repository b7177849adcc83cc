#include "quire/engine/engine_core.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/str.h"
#include "quire/device/accelerator.h"
#include "quire/drafts/options.h"
#include "quire/engine/bundle_options.h"
#include "quire/engine/draft_model.h"
#include "quire/engine/model_bundle.h"
#include "quire/engine/open_format.h"
#include "quire/engine/turn_marks.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kv/format.h"
#include "quire/kv/types.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/state_pool.h"
#include "quire/model/config.h"
#include "quire/model/decoder.h"
#include "quire/options.h"
#include "quire/result.h"
#include "quire/sched/types.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/tensor/state_view.h"

namespace quire::engine {
namespace {

// Returns how many blocks lie side by side so that one head of one layer is read at full speed.
std::int32_t blocks_of_an_extent(const tensor::KVGeometry& geometry) {
  constexpr std::int64_t kExtentBytes = std::int64_t{64} << 10;
  const std::int64_t bytes = geometry.head_block_bytes();
  return static_cast<std::int32_t>((kExtentBytes + bytes - 1) / bytes);
}

// Returns the bytes that KV blocks may take.
Result<std::int64_t> kv_budget(std::int64_t asked, const device::Accelerator* accelerator) {
  if (asked != kAutoBudget) {
    return asked;
  }
  if (accelerator == nullptr) {
    return std::int64_t{::sysconf(_SC_AVPHYS_PAGES)} * ::sysconf(_SC_PAGESIZE) / 2;
  }
  QUIRE_TRY(const std::int64_t free, accelerator->free_bytes());
  return free / 5 * 4;
}

// Returns how many blocks the budget holds; kInvalidArgument for none.
Result<std::int32_t> blocks_within(const tensor::KVGeometry& geometry, std::int64_t budget) {
  const std::int32_t num_blocks = kv_store::blocks_in_budget(geometry, budget);
  if (num_blocks == 0) {
    return Error{.code = ErrorCode::kInvalidArgument,
                 .message = base::str_cat("kv_budget of ", base::format_bytes(budget),
                                          " is below one block of ", geometry.block_tokens,
                                          " tokens (", base::format_bytes(geometry.block_bytes()),
                                          "); raise kv_budget or lower block_tokens"),
                 .needed_bytes = geometry.block_bytes(),
                 .free_bytes = budget};
  }
  return num_blocks;
}

// Returns how many states the share of the budget holds. There are two at least, and no more than
// running requests and their restore points use.
Result<std::int32_t> states_within(const model::ModelConfig& config,
                                   const tensor::KVGeometry& geometry, std::int64_t budget,
                                   const EngineOptions& options) {
  const tensor::StateGeometry states = config.state_geometry();
  if (states.state_bytes == 0) {
    return 0;
  }
  constexpr std::int64_t kLeast = 2;
  const std::int64_t bytes = kv_store::StatePool::bytes_of(states, geometry.block_bytes());
  const auto share = static_cast<std::int64_t>(static_cast<double>(budget) * options.state_share);
  const std::int64_t most = std::int64_t{4} * options.max_running;
  if (kLeast * bytes > budget / 2) {
    return Error{.code = ErrorCode::kInvalidArgument,
                 .message = base::str_cat("kv_budget of ", base::format_bytes(budget),
                                          " is too small for a model whose states take ",
                                          base::format_bytes(bytes), " each; give at least ",
                                          base::format_bytes(2 * kLeast * bytes)),
                 .needed_bytes = 2 * kLeast * bytes,
                 .free_bytes = budget};
  }
  return static_cast<std::int32_t>(std::clamp(share / bytes, kLeast, most));
}

// Returns how many blocks formats lend each other at once: few enough that a small pool has several
// slabs.
std::int32_t slab_blocks_of(std::int32_t num_blocks) {
  constexpr std::int32_t kMost = 32, kLeast = 4, kSlabs = 8;
  return std::clamp(num_blocks / kSlabs, kLeast, kMost);
}

// Returns the geometries that chunks may have beside the pool's own: floats and all codes. Floats
// are of the type that KV is computed in, and of the CPU's other one.
std::vector<tensor::KVGeometry> chunk_geometries(const kv_store::PagedPool& pool) {
  using tensor::DType;
  using tensor::KVFormat;
  std::vector<tensor::KVGeometry> geometries;
  const auto add = [&](KVFormat format, DType dtype) {
    tensor::KVGeometry geometry = pool.geometry();
    geometry.format = format;
    geometry.dtype = dtype;
    if (geometry.fits_format() && !pool.find_format(geometry)) {
      geometries.push_back(geometry);
    }
  };
  const DType dtype = pool.geometry().dtype;
  add(KVFormat::kPlain, dtype);
  if (!pool.on_device()) {
    add(KVFormat::kPlain, dtype == DType::kFloat32 ? DType::kBFloat16 : DType::kFloat32);
  }
  for (const KVFormat format : {KVFormat::kInt8, KVFormat::kFp8, KVFormat::kInt4}) {
    add(format, dtype);
  }
  return geometries;
}

// Returns the format in which a pool holds KV as it is computed; nullopt where it has none.
std::optional<kv::FormatId> open_format_of(const kv_store::PagedPool& pool) {
  tensor::KVGeometry plain = pool.geometry();
  plain.format = tensor::KVFormat::kPlain;
  return pool.find_format(plain);
}

// Adds the formats that chunks may have beside KV in the pool's own format. A slab shall hold two
// blocks of each. It grows for a format where that leaves several slabs, and else the format is
// left out.
Status add_chunk_formats(const model::ModelConfig& config, std::int32_t num_blocks,
                         kv_store::PagedPool& pool, std::int32_t& slab_blocks) {
  constexpr std::int64_t kLeastSlabs = 8;
  if (num_blocks < slab_blocks) {
    return {};
  }
  const std::int64_t own_bytes = pool.geometry().block_bytes();
  for (const tensor::KVGeometry& geometry : chunk_geometries(pool)) {
    if ((tensor::is_written_by_block(geometry.format) && !open_format_of(pool)) ||
        !check_kv_format(config, geometry.format, pool.on_device()).ok()) {
      continue;
    }
    const std::int64_t least = (2 * geometry.block_bytes() + own_bytes - 1) / own_bytes;
    if (least <= slab_blocks || kLeastSlabs * least <= num_blocks) {
      slab_blocks = std::max(slab_blocks, static_cast<std::int32_t>(least));
      QUIRE_TRY([[maybe_unused]] const kv::FormatId added, pool.add_format(geometry));
    }
  }
  return {};
}

// Returns the formats of a pool. Those that are written block by block open as the type that KV is
// computed in.
std::vector<kv::BlockFormat> block_formats(const kv_store::PagedPool& pool) {
  const std::optional<kv::FormatId> open = open_format_of(pool);
  std::vector<kv::BlockFormat> formats = pool.block_formats();
  for (std::size_t i = 0; i < formats.size(); ++i) {
    const kv::FormatId format{static_cast<std::uint8_t>(i)};
    if (tensor::is_written_by_block(pool.geometry(format).format)) {
      formats[i].open = open;
    }
  }
  return formats;
}

// Returns the layers whose part of a block may go before the block. There are none on a device,
// whose memory does not go in pages, and beside states.
kv::WindowGroup window_group(const tensor::KVGeometry& geometry, bool on_device,
                             std::int32_t num_states) {
  if (on_device || num_states > 0) {
    return {};
  }
  const tensor::KVWindowGroup group = geometry.window_group();
  return {.tokens = group.tokens, .block_bytes = group.block_bytes};
}

// Makes the pool. Where the system refuses address space for blocks without window parts, blocks
// keep them.
Result<kv_store::PagedPool> make_pool(const tensor::KVGeometry& geometry,
                                      device::Accelerator* accelerator, kv::LedgerConfig& ledger) {
  if (accelerator != nullptr) {
    return kv_store::PagedPool::create_on(*accelerator, geometry, ledger.num_blocks);
  }
  if (ledger.window_group.tokens > 0) {
    auto pool = kv_store::PagedPool::create(geometry, ledger.num_ids(), ledger.num_blocks);
    if (pool.ok() || pool.error().code != ErrorCode::kOutOfBlocks) {
      return pool;
    }
    ledger.window_group = {};
  }
  return kv_store::PagedPool::create(geometry, ledger.num_blocks);
}

kv::LedgerConfig ledger_config(const tensor::KVGeometry& geometry, std::int32_t num_blocks,
                               const EngineOptions& options) {
  return {.num_blocks = num_blocks,
          .block_tokens = geometry.block_tokens,
          .window_tokens = geometry.forget_after_tokens(),
          .extent_blocks = blocks_of_an_extent(geometry),
          .prefix_cache = options.prefix_cache,
          .formats = {{.block_bytes = geometry.block_bytes()}}};
}

Result<std::unique_ptr<EngineCore>> make_core(ModelBundle bundle, kv_store::PagedPool pool,
                                              std::optional<kv_store::PagedPool> staging,
                                              const kv::LedgerConfig& ledger,
                                              const EngineOptions& options,
                                              device::Accelerator* accelerator) {
  QUIRE_CHECK(bundle.decoder.has_value(), "open_model() made it");
  const tensor::StateGeometry states = bundle.decoder->config().state_geometry();
  const std::int64_t block_bytes = pool.geometry().block_bytes();
  QUIRE_TRY(
      kv_store::StatePool state_pool,
      accelerator == nullptr
          ? kv_store::StatePool::create(states, ledger.num_states, block_bytes)
          : kv_store::StatePool::create_on(*accelerator, states, ledger.num_states, block_bytes));
  const sched::SchedulerConfig scheduler{.max_batch_tokens = options.max_batch_tokens,
                                         .max_running = options.max_running,
                                         .block_bytes = pool.geometry().block_bytes(),
                                         .policy = options.scheduling.policy,
                                         .aging_seconds = options.scheduling.aging_seconds,
                                         .decode_weight = options.scheduling.decode_weight,
                                         .max_wait_seconds = options.scheduling.max_wait_seconds,
                                         .max_gap_seconds = options.scheduling.max_gap_seconds};
  QUIRE_TRY_STATUS(ledger.validate());
  QUIRE_TRY_STATUS(scheduler.validate());
  auto core = std::make_unique<EngineCore>(std::move(bundle), std::move(pool), std::move(staging),
                                           ledger, scheduler);
  core->states = std::move(state_pool);
  if ((ledger.num_states > 0 || ledger.window_group.tokens > 0) && core->bundle.text != nullptr) {
    core->turns = TurnMarks(*core->bundle.text);
  }
  return core;
}

// Things with which a draft model is opened.
struct DraftSetting {
  const EngineOptions& options;
  const kernels::KernelContext& context;
};

// Opens the draft model, if there is one, with its part of the budget. Returns the bytes of that.
Result<std::int64_t> open_draft(const ModelBundle& bundle, const tensor::KVGeometry& geometry,
                                std::int64_t budget, const DraftSetting& setting,
                                std::unique_ptr<DraftModel>& draft) {
  const EngineOptions& options = setting.options;
  if (options.speculation.method != drafts::Method::kDraft) {
    return 0;
  }
  QUIRE_TRY(draft,
            DraftModel::open(setting.context, options.speculation, options.model.dtype, bundle));
  const std::int64_t bytes = draft->part_of(budget, geometry.block_bytes(), options.block_tokens);
  QUIRE_TRY_STATUS(draft->make_room(bytes, options.block_tokens));
  return bytes;
}

}  // namespace

kv::LedgerCounts EngineStats::counts_of_both() const {
  kv::LedgerCounts counts = ledger;
  const std::int64_t each = std::max<std::int64_t>(block_bytes, 1);
  const std::int64_t total = draft.bytes_total / each;
  const std::int64_t used = std::min((draft.bytes_in_use + each - 1) / each, total);
  const std::int64_t cached = std::min(draft.bytes_cached / each, total - used);
  counts.blocks_total += static_cast<std::int32_t>(total);
  counts.blocks_in_use += static_cast<std::int32_t>(used);
  counts.blocks_cached += static_cast<std::int32_t>(cached);
  counts.blocks_free += static_cast<std::int32_t>(total - used - cached);
  counts.bytes_total += draft.bytes_total;
  counts.bytes_in_use += draft.bytes_in_use;
  return counts;
}

EngineCore::EngineCore(ModelBundle opened, kv_store::PagedPool blocks,
                       std::optional<kv_store::PagedPool> staged,
                       const kv::LedgerConfig& ledger_config,
                       const sched::SchedulerConfig& scheduler_config)
    : bundle(std::move(opened)),
      paged_pool(std::move(blocks)),
      staging(std::move(staged)),
      ledger(ledger_config),
      scheduler(scheduler_config, ledger) {
  const tensor::KVGeometry& geometry = paged_pool.geometry();
  for (std::uint8_t format = 0; format < num_formats(); ++format) {
    for (int layer = 0; layer < geometry.layers; ++layer) {
      views.push_back(paged_pool.view(layer, kv::FormatId{format}));
    }
  }
  if (staging) {
    const std::vector<tensor::PagedKVView> staged_views = staging_views(*staging, geometry);
    views.insert(views.end(), staged_views.begin(), staged_views.end());
  }
  const model::PackReport& report = decoder().pack_report();
  counters.block_bytes = geometry.block_bytes();
  counters.load_seconds = report.seconds;
  counters.load_bytes = report.bytes_read;
  counters.weight_bytes = report.packed_bytes;
  counters.mapped_weight_bytes = report.mapped_bytes;
}

std::optional<kv::FormatId> EngineCore::find_format(std::string_view name) const {
  for (std::uint8_t i = 0; i < num_formats(); ++i) {
    if (name == kv_name(kv::FormatId{i})) {
      return kv::FormatId{i};
    }
  }
  return std::nullopt;
}

Result<std::unique_ptr<EngineCore>> open_core(const std::string& model,
                                              const EngineOptions& options,
                                              const kernels::KernelContext& context,
                                              device::Accelerator* accelerator) {
  BundleOptions how = options.model;
  if (accelerator != nullptr) {
    how.placement = {.accelerator = accelerator, .deterministic = options.deterministic};
  }
  QUIRE_TRY(ModelBundle bundle, open_model(context, model, how));
  QUIRE_CHECK(bundle.decoder.has_value(), "an open model has a decoder");
  const tensor::KVGeometry geometry =
      bundle.decoder->config().kv_geometry(bundle.kv_dtype, options.block_tokens, bundle.kv_format);
  QUIRE_TRY_STATUS(check_block_tokens(geometry));
  QUIRE_TRY(const std::int64_t budget, kv_budget(options.kv_budget_bytes, accelerator));
  QUIRE_TRY(const std::int32_t num_states,
            states_within(bundle.decoder->config(), geometry, budget, options));
  const std::int64_t state_bytes =
      num_states * kv_store::StatePool::bytes_of(bundle.decoder->config().state_geometry(),
                                                 geometry.block_bytes());
  std::unique_ptr<DraftModel> draft;
  QUIRE_TRY(const std::int64_t draft_bytes,
            open_draft(bundle, geometry, budget - state_bytes, {options, context}, draft));
  QUIRE_TRY(const std::int32_t num_blocks,
            blocks_within(geometry, budget - state_bytes - draft_bytes));
  kv::LedgerConfig ledger = ledger_config(geometry, num_blocks, options);
  ledger.slab_blocks = slab_blocks_of(num_blocks);
  ledger.num_states = num_states;
  ledger.window_group = window_group(geometry, accelerator != nullptr, num_states);
  QUIRE_TRY(kv_store::PagedPool paged_pool, make_pool(geometry, accelerator, ledger));
  if (tensor::is_written_by_block(geometry.format)) {
    // Two blocks of a sequence are open while a step fills one and begins another.
    QUIRE_TRY_STATUS(
        add_open_format(paged_pool, ledger, 2 * std::int64_t{options.max_running} + 2));
  }
  if (options.mixes_formats) {
    QUIRE_TRY_STATUS(
        add_chunk_formats(bundle.decoder->config(), num_blocks, paged_pool, ledger.slab_blocks));
  }
  ledger.formats = block_formats(paged_pool);
  std::optional<kv_store::PagedPool> staging;
  if (std::ranges::any_of(ledger.formats,
                          [](const kv::BlockFormat& format) { return format.open.has_value(); })) {
    QUIRE_TRY(staging, make_staging(geometry, options.max_batch_tokens, accelerator));
  }
  QUIRE_TRY(auto core, make_core(std::move(bundle), std::move(paged_pool), std::move(staging),
                                 ledger, options, accelerator));
  if (draft != nullptr) {
    core->counters.weight_bytes += draft->weight_bytes();
    core->drafts_by = draft.get();
  }
  core->draft = std::move(draft);
  return core;
}

}  // namespace quire::engine
