#include "quire/sequences/saved_sequences.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/session_service.h"
#include "quire/engine/tasks.h"
#include "quire/kv/behind_window.h"
#include "quire/kv/block_parts.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/open_blocks.h"
#include "quire/kv/restore_points.h"
#include "quire/kv/segments.h"
#include "quire/kv/types.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sequences/saved_state.h"
#include "quire/sequences/sequence_service.h"
#include "quire/sequences/sequence_state.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/state_view.h"
#include "quire/tiers/background_loads.h"
#include "quire/tiers/held_segment.h"
#include "quire/tiers/tier_service.h"
#include "quire/types.h"

namespace quire::sequences {
namespace {

kv_store::BlockRange take_last_block(kv_store::BlockRange& range) {
  const auto others = static_cast<std::int32_t>(range.to.size()) - 1;
  kv_store::BlockRange last = range.part(others, 1);
  range = range.part(0, others);
  return last;
}

// Returns whether tokens that are owed are a part of a file's tail, which has no KV.
bool fits_tail(const kv::LedgerConfig& config, std::int64_t owed_tokens) {
  return config.open_format() && owed_tokens < config.block_tokens && config.window_tokens == 0 &&
         config.num_states == 0;
}

}  // namespace

kv::Ledger& SavedSequences::ledger() const { return engine_.core().ledger; }

const kv_store::PagedPool& SavedSequences::pool() const { return tiers_.paged_pool(); }

// Adds the saved runs of a run: its blocks of one format, and a last one of another.
void SavedSequences::describe(const kv::RunView& run, std::span<const TokenId> tokens,
                              Described& described) const {
  const std::int32_t block_tokens = pool().geometry().block_tokens;
  const auto lost = static_cast<std::int32_t>(std::ranges::count(run.blocks, -1, &BlockId::value));
  std::int32_t position = run.start_position, parts = 0;
  for (const kv::BlockPart& part : kv::parts_of(run)) {
    const std::int64_t room = std::ssize(part.blocks) * std::int64_t{block_tokens};
    const std::span<const TokenId> with_kv =
        tokens.first(std::min(tokens.size(), static_cast<std::size_t>(room)));
    if (with_kv.empty()) {
      break;
    }
    kv_store::SavedRun& saved = described.runs.emplace_back(
        kv_store::SavedRun{.tokens = {with_kv.begin(), with_kv.end()},
                           .start_position = position,
                           .lost_blocks = parts == 0 ? lost : 0,
                           .lost_parts = parts == 0 ? run.without_part : 0});
    if (part.format != kv::kOwnFormat) {
      saved.type = kv_store::kv_type_of(pool().geometry(part.format));
    }
    const auto blocks =
        part.blocks.subspan(static_cast<std::size_t>(saved.lost_blocks),
                            static_cast<std::size_t>(saved.num_blocks_with_kv(block_tokens)));
    described.blocks.emplace_back(blocks.begin(), blocks.end());
    described.formats.push_back(part.format);
    tokens = tokens.subspan(with_kv.size());
    position += static_cast<std::int32_t>(with_kv.size());
    ++parts;
  }
  if (parts > 0) {
    described.rest.parts.push_back(parts);
  }
}

// Adds the maps of a run that was described.
void SavedSequences::describe_maps(std::span<const BlockId> maps, const kv::RunView& run,
                                   Described& described) const {
  const auto zeros = maps.size() * static_cast<std::size_t>(pool().geometry().block_tokens);
  described.runs.push_back({.tokens = std::vector<TokenId>(zeros),
                            .start_position = run.start_position + run.num_tokens});
  described.blocks.emplace_back(maps.begin(), maps.end());
  described.formats.push_back(kv::kOwnFormat);
  described.rest.map_blocks.push_back(static_cast<std::int32_t>(maps.size()));
  ++described.rest.parts.back();
}

Result<SavedSequences::Described> SavedSequences::describe(const StateRef& whose, Windows windows) {
  StateRef with_windows = whose;
  if (!fits_tail(ledger().config(), whose->owed_tokens)) {
    QUIRE_TRY(with_windows, sequences_.pay(whose, {}));
  }
  if (windows == Windows::kWhole) {
    QUIRE_TRY(with_windows, sequences_.whole(whose, {}));
  }
  QUIRE_TRY(const StateRef state, with_tail(with_windows));
  using Runs = std::vector<kv::RunView>;  // valid as long as the state
  QUIRE_TRY(const Runs runs, engine_.thread().ask<Runs>([&]() -> Result<Runs> {
    return ledger().sequences().runs(state->sequence);
  }));
  const bool has_maps = runs.size() > 1 && ledger().points().exist();
  if (has_maps && pool().geometry().format != tensor::KVFormat::kPlain) {
    return {ErrorCode::kIncompatible,
            "a sequence behind chunks cannot be saved where the model's layers carry a state and "
            "KV is stored as codes, which files check; open the model with a kv_dtype of 16 or 32 "
            "bits, or compose in mode exact"};
  }
  Described described{
      .rest = {.sampled = state->sampled, .grade = state->grade, .kernels = tiers_.kernels()}};
  SavedState& rest = described.rest;
  std::span<const TokenId> tokens = state->tokens;
  using Maps = std::vector<std::vector<BlockId>>;  // [runs before the own one]
  QUIRE_TRY(const Maps maps, engine_.thread().ask<Maps>([&]() -> Result<Maps> {
    Maps blocks;
    for (const auto map : ledger().segments().maps_before(state->sequence)) {
      blocks.emplace_back(map.begin(), map.end());
    }
    return blocks;
  }));
  for (std::size_t i = 0; i < runs.size(); ++i) {
    describe(runs[i], tokens.first(static_cast<std::size_t>(runs[i].num_tokens)), described);
    tokens = tokens.subspan(static_cast<std::size_t>(runs[i].num_tokens));
    if (has_maps && i < maps.size()) {
      describe_maps(maps[i], runs[i], described);
    }
  }
  rest.tail.assign(tokens.begin(), tokens.end());
  if (std::ranges::all_of(rest.parts, [](std::int32_t count) { return count == 1; })) {
    rest.parts.clear();
  }
  if (ledger().config().open_format() ||
      std::ranges::any_of(described.formats,
                          [](kv::FormatId format) { return format != kv::kOwnFormat; })) {
    rest.kv_dtype = engine_.core().kv_name();
  }
  for (const kv::RunView& run : std::span(runs).first(runs.size() - 1)) {
    rest.ranks.push_back(run.rank);
    rest.stored_from.push_back(run.stored_from);
  }
  rest.own_position = runs.back().start_position;
  for (std::size_t run = 0; run < described.blocks.size(); ++run) {
    QUIRE_TRY_STATUS(tiers_.await_arrival(described.blocks[run], described.formats[run]));
  }
  described.held.push_back(state);
  QUIRE_TRY_STATUS(describe_states(state, described));
  return described;
}

Status SavedSequences::save(const StateRef& state, const std::filesystem::path& path,
                            const kv_store::WriteOptions& options) {
  QUIRE_TRY(Described described, describe(state, Windows::kHeld));
  const kv_store::KVFileContent content{.fingerprint = tiers_.model_fingerprint(),
                                        .geometry = pool().geometry(),
                                        .runs = std::move(described.runs),
                                        .metadata_json = to_json(described.rest),
                                        .states = std::move(described.states)};
  QUIRE_TRY(const tiers::TierService::Readable from,
            tiers_.readable(described.blocks, described.formats));
  kv_store::WriteOptions how = options;
  how.states = described.state_bytes;
  const Status written = kv_store::write_kv_file(path, content, from.pool(), from.runs, how);
  return written.ok() ? written : tiers::missing_file(written.error());
}

Result<SavedSequences::Restored> SavedSequences::prepare(std::span<const kv_store::SavedRun> runs,
                                                         SavedState rest, const std::string& salt) {
  QUIRE_TRY_STATUS(check_formats(runs, rest));
  seal_foreign(runs, rest, tiers_.kernels(), ledger().points().exist());
  Restored restored{.position = rest.own_position,
                    .grade = rest.grade,
                    .salt = salt,
                    .other_form = ledger().points().exist() && rest.ranks.empty() &&
                                  rest.kernels != tiers_.kernels()};
  QUIRE_TRY_STATUS(reserve_before(runs, rest, restored));
  const auto parts = parts_of(runs, rest);
  if (parts.size() > rest.ranks.size()) {
    const kv_store::SavedRun& own = parts.back().front();
    QUIRE_TRY_STATUS(kv_store::check_goes_on(pool().geometry(), own));
    QUIRE_TRY(tiers::SegmentShape segment, segment_of(parts.back(), rest));
    restored.own = std::move(segment.tokens);
    restored.lost_blocks = own.lost_blocks;
    restored.lost_parts = own.lost_parts;
  }
  restored.num_kv = static_cast<std::int32_t>(restored.own.size());
  if (restored.lost_parts > 0) {
    QUIRE_TRY_STATUS(check_parts(restored, rest));
  }
  restored.own.insert(restored.own.end(), rest.tail.begin(), rest.tail.end());
  QUIRE_TRY_STATUS(check_run(restored.own, rest.own_position));
  restored.sampled = std::min(rest.sampled, static_cast<std::int32_t>(restored.own.size()));
  const auto made = engine_.thread().ask_for_blocks<bool>([&]() -> Result<bool> {
    const Status status = make_room(restored);
    return status.ok() ? Result<bool>(true) : status.error();
  });
  return made.ok() ? Result<Restored>(std::move(restored)) : made.error();
}

// Makes the sequence, with room for its KV, on the engine thread. KV that the prefix cache has of
// its own tokens is there already, if it is the same. KV of another grade is composed, if only of
// its own run.
Status SavedSequences::try_room(Restored& restored) {
  restored.ranges.clear();  // ranges of a visit that was refused
  const bool same = restored.grade == ReuseGrade::kExact || restored.num_kv == 0;
  if (restored.uses.empty() && same) {
    const bool frees = restored.lost_parts > 0 || ledger().config().window_tokens > 0;
    const auto past = frees ? kv::BehindWindow::kFrees : kv::BehindWindow::kKeeps;
    restored.sequence = ledger().sequences().open(restored.own, true, {}, restored.salt, past);
  } else {
    QUIRE_TRY(restored.sequence,
              ledger().segments().compose(restored.uses,
                                          {.tokens = restored.own, .position = restored.position}));
    if (restored.lost_blocks > 0) {  // else it keeps all, as compositions do
      (void)ledger().sequences().set_behind_window(restored.sequence, kv::BehindWindow::kFrees);
    }
  }
  ledger().points().drop_owed(restored.sequence);  // blocks of others are not written
  ledger().restored_kv().begin_behind_window(restored.sequence, restored.num_kv);
  const std::int32_t there = ledger().sequences().num_computed(restored.sequence);
  Status made;
  if (restored.lost_parts > 0) {
    made = ledger().restored_kv().begin_without_parts(restored.sequence, restored.num_kv,
                                                      restored.lost_parts);
  }
  const std::int32_t begun = ledger().sequences().num_computed(restored.sequence);
  restored.missing = std::max(restored.num_kv - begun, 0);
  if (made.ok()) {
    made = ledger().sequences().extend(restored.sequence, restored.missing);
  }
  if (made.ok()) {
    made = engine_.copy_blocks_now();
  }
  if (!made.ok()) {
    ledger().sequences().close(restored.sequence);
    return made;
  }
  plan_reads(restored, there);
  return {};
}

// Where there is no room for all window parts, those that the window has passed are left out.
Status SavedSequences::make_room(Restored& restored) {
  Status made = try_room(restored);
  const bool is_plain = restored.uses.empty() && restored.grade == ReuseGrade::kExact;
  const std::int32_t passed = kv::parts_to_let_go(ledger().config(), restored.num_kv);
  if (!made.ok() && made.error().code == ErrorCode::kOutOfBlocks && is_plain &&
      passed > restored.lost_parts) {
    restored.lost_parts = passed;
    made = try_room(restored);
  }
  return made;
}

// Plans the reads of a sequence; `there` tokens of its own run are there already. Engine thread.
void SavedSequences::plan_reads(Restored& restored, std::int32_t there) const {
  int run = 0;
  restored.there = restored.num_kv > 0 ? kv_store::BlockRange() : restored.there;
  const auto add = [&](std::span<const BlockId> to, kv::FormatId format, std::int32_t first = 0) {
    restored.ranges.push_back(
        {.run = run, .first_block = first, .to = {to.begin(), to.end()}, .format = format});
  };
  for (const tiers::HeldRef& held : restored.before) {
    for (const kv::BlockPart& part : held->parts()) {
      add(part.blocks, part.format);
      ++run;
    }
  }
  const kv::RunView own = ledger().sequences().runs(restored.sequence).back();
  const auto blocks = static_cast<std::int32_t>(own.blocks.size());
  const std::int32_t first =
      restored.missing > 0 ? std::min(there / pool().geometry().block_tokens, blocks) : blocks;
  if (first < blocks) {
    add(own.blocks.subspan(static_cast<std::size_t>(first)), own.format, first);
    restored.ranges.back().without_part = std::clamp(own.without_part - first, 0, blocks - first);
  }
  if (restored.num_kv > 0 && first > restored.lost_blocks) {
    restored.there = {
        .run = run,
        .first_block = restored.lost_blocks,
        .to = {own.blocks.begin() + restored.lost_blocks, own.blocks.begin() + first}};
  }
  run += blocks > 0 ? 1 : 0;  // behind full blocks a saved run of its own has the last one
  for (const kv::OpenBlock& open : own.open_blocks) {
    add({&open.block.id, 1}, open.block.format());
  }
}

Result<StateRef> SavedSequences::restore(std::span<const kv_store::SavedRun> runs, SavedState rest,
                                         const OpenBlocks& open, const StatesToLoad& states,
                                         const LoadSequenceOptions& options) {
  QUIRE_TRY_STATUS(engine::SessionService::check_user({.salt = options.salt}));
  QUIRE_TRY(std::vector<std::byte> last_state, read_last_state(runs, rest, states));
  engine::Tasks task{1};  // task that gives up what is prepared
  QUIRE_TRY(Restored restored, prepare(runs, std::move(rest), engine_.salt_of(options.salt)));
  restored.last_state = std::move(last_state);
  // A window gives up blocks while they are still being filled, and a step reads the whole state.
  const bool waits = options.wait || pool().geometry().forget_after_tokens() != 0 ||
                     ledger().points().exist() || restored.computes;
  task.front() = [this, sequence = restored.sequence] { ledger().sequences().close(sequence); };
  try {
    auto state = waits ? restore_now(restored, open) : restore_in_background(restored, open);
    if (!state.ok() && !restored.loading) {
      engine_.thread().post(std::move(task));
    }
    if (state.ok() && restored.computes) {
      return sequences_.compute_again(*state, kv::BehindWindow::kFrees, {});
    }
    if (state.ok()) {
      QUIRE_TRY_STATUS(restore_points(*state, states));
    }
    return state;
  } catch (const std::bad_alloc&) {
    if (!restored.loading) {
      engine_.thread().post(std::move(task));
    }
    throw;
  }
}

Result<StateRef> SavedSequences::restore_now(const Restored& restored, const OpenBlocks& open) {
  QUIRE_TRY_STATUS(verify_what_was_there(restored, open));
  for (const kv_store::BlockRange& range : restored.ranges) {
    const auto read = [&](std::span<const BlockId> blocks, kv_store::PagedPool& pool) {
      return read_now({.run = range.run,
                       .first_block = range.first_block,
                       .to = {blocks.begin(), blocks.end()},
                       .format = range.format,
                       .without_part = range.without_part},
                      open, pool);
    };
    QUIRE_TRY_STATUS(tiers_.fill(range.to, read, range.format));
  }
  return engine_.thread().ask<StateRef>([&]() -> Result<StateRef> {
    if (!restored.last_state.empty() && restored.missing > 0) {
      kv::RestorePoints& points = ledger().points();
      (void)points.take_tail(restored.sequence);  // its block was read as a whole
      QUIRE_TRY_STATUS(
          engine_.core().states.write(points.places(restored.sequence).to, restored.last_state));
    }
    const std::int32_t first = ledger().sequences().num_computed(restored.sequence);
    ledger().sequences().advance(restored.sequence, restored.missing);
    if (ledger().points().exist()) {
      ledger().points().note_brought(restored.sequence, first);
    }
    if (restored.other_form) {
      ledger().cache().note_other_form(
          std::span(restored.own).first(static_cast<std::size_t>(restored.num_kv)), restored.salt);
    }
    if (restored.lost_parts > 0) {
      ledger().restored_kv().publish(restored.sequence);
    }
    free_behind_window(restored.sequence);
    return sequences_.adopt(restored.sequence, restored.sampled, restored.grade, restored.salt);
  });
}

// Lets KV go that has all been read.
void SavedSequences::free_behind_window(SeqId id) {
  if (ledger().sequences().is_plain(id)) {
    (void)ledger().sequences().set_behind_window(id, kv::BehindWindow::kFrees);
  }
}

Status SavedSequences::read_now(const kv_store::BlockRange& range, const OpenBlocks& open,
                                kv_store::PagedPool& pool) {
  QUIRE_TRY(const auto files, open(range, Purpose::kRead));
  for (const kv_store::KVFileRange& from : files) {
    QUIRE_TRY_STATUS(tiers_.read_range(*from.file, from.blocks, pool));
  }
  return {};
}

// Verifies the saved KV of blocks that are there already. The load would go right without it, but
// the owner of a damaged file hears of it while there is another copy of its KV.
Status SavedSequences::verify_what_was_there(const Restored& restored,
                                             const OpenBlocks& open) const {
  if (restored.there.to.empty()) {
    return {};
  }
  QUIRE_TRY(const auto files, open(restored.there, Purpose::kVerify));
  for (const kv_store::KVFileRange& from : files) {
    QUIRE_TRY_STATUS(
        tiers_.for_each_layer_of(from.blocks, [&](int layer) { return from.verify_layer(layer); }));
  }
  return {};
}

// Starts reading in the background. The blocks stay with the loading sequence until all is read;
// the caller gets a fork of it.
Result<StateRef> SavedSequences::restore_in_background(Restored& restored, const OpenBlocks& open) {
  std::vector<tiers::BackgroundLoads::Order> orders;
  // The first append copies the last block, in all layers, so that one is read before.
  if (!restored.ranges.empty()) {
    QUIRE_TRY(auto last, open(take_last_block(restored.ranges.back()), Purpose::kRead));
    if (!last.empty()) {
      orders.push_back(
          {.ranges = std::move(last), .done = [](tiers::BackgroundLoads::Load&, double) {}});
    }
  }
  tiers::BackgroundLoads::Order others{.done = [this, sequence = restored.sequence,
                                                held = std::move(restored.before)](
                                                   tiers::BackgroundLoads::Load& load, double) {
    const bool last_is_right = tiers_.background_loads()
                                   .check(kv::parts_of(ledger().sequences().runs(sequence).back()))
                                   .ok();
    if (load.outcome().ok() && last_is_right) {  // the last block was a load of its own
      ledger().restored_kv().publish(sequence);
    }
    ledger().sequences().close(sequence);
  }};
  for (const kv_store::BlockRange& range : restored.ranges) {
    QUIRE_TRY(auto files, open(range, Purpose::kRead));
    std::ranges::move(files, std::back_inserter(others.ranges));
  }
  orders.push_back(std::move(others));
  return engine_.thread().ask<StateRef>([&] {
    ledger().restored_kv().advance_unpublished(restored.sequence, restored.missing);
    const SeqId fork = ledger().sequences().fork(restored.sequence);
    free_behind_window(fork);
    StateRef state = sequences_.adopt(fork, restored.sampled, restored.grade, restored.salt);
    tiers_.background_loads().start(std::move(orders));
    restored.loading = true;
    return state;
  });
}

Result<StateRef> SavedSequences::load(const std::filesystem::path& path,
                                      const LoadSequenceOptions& options) {
  auto opened = kv_store::KVFile::open(path);
  if (!opened.ok()) {
    return tiers::missing_file(std::move(opened).error());
  }
  const auto file = std::make_shared<const kv_store::KVFile>(std::move(opened).value());
  QUIRE_TRY_STATUS(file->check_fits(tiers_.model_fingerprint(), pool().geometry()));
  const kv_store::KVFileContent& content = file->content();
  QUIRE_TRY(SavedState rest,
            parse_saved_state(content.metadata_json, content.runs.size(), path.string()));
  const auto open = [&file](const kv_store::BlockRange& range, Purpose) {
    std::vector<kv_store::KVFileRange> ranges;
    ranges.push_back({.file = file, .blocks = range});
    return Result(std::move(ranges));
  };
  const StatesToLoad states{
      .at = content.states.at,
      .read = [&file](std::size_t index, std::span<const tensor::StatePart> parts,
                      std::span<std::byte> to) { return file->read_state(index, parts, to); }};
  QUIRE_TRY_STATUS(check_states(*file, rest));
  return restore(content.runs, std::move(rest), open, states, options);
}

}  // namespace quire::sequences
