#include "quire/engine/checkpoints.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/iso_time.h"
#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/checkpoints.h"
#include "quire/device/cpu/isa.h"
#include "quire/engine/arrivals.h"
#include "quire/engine/block_run.h"
#include "quire/engine/engine.h"
#include "quire/engine/sequence_service.h"
#include "quire/engine/tier_service.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/kv_store/checkpoint_manager.h"
#include "quire/kv_store/checkpoint_pieces.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_store.h"
#include "quire/kv_store/store.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

namespace json = base::json;

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 30;
constexpr double kMillisecond = 1e-3;

std::string kernels_here() { return std::string(device::isa_name(device::best_isa())); }

CheckpointInfo to_public(const kv_store::Checkpoint& checkpoint) {
  const auto created = std::chrono::milliseconds(checkpoint.entry.created_ms);
  CheckpointInfo info{.name = checkpoint.name,
                      .number = checkpoint.number,
                      .created_at = base::iso_utc(std::chrono::system_clock::time_point(created)),
                      .pinned = checkpoint.entry.pinned,
                      .bytes = checkpoint.entry.bytes,
                      .written_bytes = checkpoint.written_bytes,
                      .written_objects = checkpoint.written_objects};
  for (const kv_store::SavedSequence& saved : checkpoint.sequences) {
    auto& sequence = info.sequences.emplace_back();
    sequence.name = saved.name;
    for (const kv_store::SavedSequence::Run& run : saved.runs) {
      sequence.tokens += run.tokens;
    }
  }
  return info;
}

Error damaged(const kv_store::SavedSequence& saved, std::string_view why) {
  return {.code = ErrorCode::kCorrupt,
          .message = base::str_cat("saved sequence ", base::quoted(saved.name), ": ", why)};
}

ReuseGrade grade_called(std::string_view name) {
  for (const ReuseGrade grade : {ReuseGrade::kExact, ReuseGrade::kEqualMath}) {
    if (name == reuse_grade_name(grade)) {
      return grade;
    }
  }
  return ReuseGrade::kApproximate;
}

// Somebody else's checkpoint may say anything.
Status check_run(const Engine& engine, std::span<const TokenId> tokens, std::int64_t position) {
  if (!tokens.empty()) {
    QUIRE_TRY_STATUS(engine.check_prompt(tokens));
  }
  const std::int64_t end = position + std::ssize(tokens);
  const std::int64_t limit = engine.model_config().max_positions;
  if (position >= 0 && end <= limit) {
    return {};
  }
  return {ErrorCode::kOverflow, base::str_cat("a saved run stands at ", position, " to ", end,
                                              ", the model's context ends at ", limit)};
}

using Loads = std::vector<Arrivals::LoadRef>;

// Engine thread: what still fills blocks of the runs; the error of what has spoilt one.
Result<Loads> loads_of(const Arrivals& arrivals, const kv_store::LiveSequence& live) {
  Loads found;
  for (const kv_store::LiveRun& run : live.runs) {
    QUIRE_TRY_STATUS(arrivals.check(run.blocks));
    std::ranges::move(arrivals.filling(run.blocks), std::back_inserter(found));
  }
  return found;
}

}  // namespace

Result<std::unique_ptr<CheckpointService>> CheckpointService::open(
    const std::string& folder, const CheckpointOptions& options) {
  QUIRE_TRY_STATUS(options.validate());
  auto store = kv_store::Store::open(folder, {.max_bytes = options.max_bytes});
  if (!store.ok()) {
    return missing_file(std::move(store).error());
  }
  std::unique_ptr<CheckpointService> service(new CheckpointService(std::move(store).value()));
  QUIRE_TRY(auto manager, kv_store::CheckpointManager::create(
                              service->store_, {.series = options.series,
                                                .tenant = options.tenant,
                                                .keep = options.keep,
                                                .every_tokens = options.every_tokens,
                                                .every_ms = static_cast<std::int64_t>(std::ceil(
                                                    options.every_seconds / kMillisecond))}));
  service->manager_ = std::make_unique<kv_store::CheckpointManager>(std::move(manager));
  return service;
}

std::string CheckpointService::to_json(const Rest& rest) {
  json::array ranks;
  for (const kv::MergeRank& rank : rest.ranks) {
    ranks.push_back({rank.chunk, rank.variant});
  }
  return json::serialize(json::object{{"ranks", std::move(ranks)},
                                      {"stored_from", json::value_from(rest.stored_from)},
                                      {"own_position", rest.own_position},
                                      {"tail", json::value_from(rest.tail)},
                                      {"sampled", rest.sampled},
                                      {"grade", reuse_grade_name(rest.grade)}});
}

Result<CheckpointService::Rest> CheckpointService::parse(const kv_store::SavedSequence& saved) {
  QUIRE_TRY(const json::value value, base::parse_json(saved.metadata_json, "metadata"));
  const json::object* object = value.if_object();
  if (object == nullptr) {
    return damaged(saved, "its metadata is no object");
  }
  Rest rest;
  QUIRE_TRY(const std::int64_t position, base::get_int(*object, "own_position", 0));
  QUIRE_TRY(const std::int64_t sampled, base::get_int(*object, "sampled", 0));
  QUIRE_TRY(const std::string grade, base::get_string(*object, "grade", ""));
  const json::value* tail = base::find(*object, "tail");
  const json::value* ranks = base::find(*object, "ranks");
  const json::value* stored_from = base::find(*object, "stored_from");
  if (tail == nullptr || ranks == nullptr || stored_from == nullptr || position < 0 ||
      position > kMaxTokens || sampled < 0 || sampled > kMaxTokens) {
    return damaged(saved, "a field is missing or out of range");
  }
  const auto tokens = json::try_value_to<std::vector<TokenId>>(*tail);
  const auto pairs =
      json::try_value_to<std::vector<std::pair<std::uint64_t, std::uint32_t>>>(*ranks);
  const auto stored = json::try_value_to<std::vector<std::int32_t>>(*stored_from);
  if (tokens.has_error() || pairs.has_error() || stored.has_error() || tokens->size() > 1 ||
      stored->size() != pairs->size() || pairs->size() > saved.runs.size() ||
      pairs->size() + 1 < saved.runs.size()) {
    return damaged(saved, "its tail or its ranks are malformed");
  }
  rest.tail = *tokens;
  rest.stored_from = *stored;
  rest.own_position = static_cast<std::int32_t>(position);
  rest.sampled = static_cast<std::int32_t>(sampled);
  rest.grade = grade_called(grade);
  for (const auto& [chunk, variant] : *pairs) {
    rest.ranks.push_back({chunk, variant});
  }
  return rest;
}

Result<kv_store::LiveSequence> CheckpointService::describe(Engine& engine, const Named& named) {
  const SequenceState& state = *named.state;
  kv_store::LiveSequence live{.name = named.name,
                              .fingerprint = engine.tiers().model_fingerprint(),
                              .kernels = kernels_here()};
  Rest rest{.sampled = state.sampled, .grade = state.grade};
  if (!state.tokens.empty()) {
    rest.tail = {state.tokens.back()};
  }
  const int block_tokens = engine.tiers().shelves().geometry().block_tokens;
  using Runs = std::vector<kv::RunView>;  // valid as long as the state
  QUIRE_TRY(const Runs runs, engine.ask<Runs>([&]() -> Result<Runs> {
    return engine.ledger_->runs(state.sequence);  // NOLINT(bugprone-unchecked-optional-access)
  }));
  auto token = state.tokens.begin();
  for (const kv::RunView& run : runs) {
    if (run.num_tokens == 0) {
      continue;
    }
    kv_store::LiveRun& of = live.runs.emplace_back();
    of.run = {.tokens = {token, token + run.num_tokens}, .start_position = run.start_position};
    token += run.num_tokens;
    const auto blocks = run.blocks.first(static_cast<std::size_t>(of.run.num_blocks(block_tokens)));
    of.blocks.assign(blocks.begin(), blocks.end());
    if (std::ranges::count(blocks, -1, &BlockId::value) > 0) {
      return {ErrorCode::kUnsupported,
              base::str_cat("the model's window has freed the first blocks of sequence ",
                            base::quoted(named.name), "; it cannot be saved")};
    }
  }
  for (const kv::RunView& run : std::span(runs).first(runs.size() - 1)) {
    rest.ranks.push_back(run.rank);
    rest.stored_from.push_back(run.stored_from);
  }
  rest.own_position = runs.back().start_position;
  live.follows_from_tokens = rest.ranks.empty() && state.grade == ReuseGrade::kExact;
  live.metadata_json = to_json(rest);
  QUIRE_TRY_STATUS(await_arrival(engine, live));
  return live;
}

Status CheckpointService::await_arrival(Engine& engine, const kv_store::LiveSequence& live) {
  QUIRE_TRY(const Loads loads,
            engine.ask<Loads>([&] { return loads_of(engine.tiers().arrivals(), live); }));
  for (const Arrivals::LoadRef& load : loads) {
    QUIRE_TRY_STATUS(load->wait());
  }
  return {};
}

Result<CheckpointInfo> CheckpointService::save(Engine& engine, std::span<const Named> sequences,
                                               const std::string& name) {
  std::vector<kv_store::LiveSequence> live;
  live.reserve(sequences.size());
  for (const Named& named : sequences) {
    QUIRE_TRY(live.emplace_back(), describe(engine, named));
  }
  QUIRE_TRY(const kv_store::Checkpoint saved, manager_->save(name, live, engine.tiers().shelves()));
  saved_.clear();
  for (const Named& named : sequences) {
    saved_[named.name] = named.state->tokens;
  }
  return to_public(saved);
}

bool CheckpointService::due(std::span<const Named> sequences) const {
  std::int64_t new_tokens = 0;
  for (const Named& named : sequences) {
    const std::vector<TokenId>& now = named.state->tokens;
    const auto saved = saved_.find(named.name);
    new_tokens += saved == saved_.end() ? std::ssize(now)
                                        : now.end() - std::ranges::mismatch(now, saved->second).in1;
  }
  return manager_->due(new_tokens);
}

// Room for a run that others stand behind, and its KV.
Result<HeldRef> CheckpointService::load_segment(Engine& engine,
                                                const kv_store::SavedSequence& saved,
                                                std::size_t run, const std::vector<TokenId>& tokens,
                                                std::int32_t stored_from) const {
  QUIRE_TRY(const HeldRef held, engine.ask<HeldRef>([&]() -> Result<HeldRef> {
    // NOLINTNEXTLINE(bugprone-unchecked-optional-access): a running engine has a ledger
    QUIRE_TRY(const kv::SegmentId id, engine.ledger_->reserve_segment(tokens, stored_from));
    return engine.tiers().keep(id);
  }));
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access): and shelves
  QUIRE_TRY_STATUS(manager_->read(saved, run, 0, held->blocks, *engine.store_));
  return held;
}

// Engine thread: the sequence behind `before`, with room for the KV of its first `num_kv` own
// tokens. What the prefix cache has of them is there already.
Result<CheckpointService::Room> CheckpointService::make_room(Engine& engine,
                                                             std::span<const kv::SegmentUse> before,
                                                             std::span<const TokenId> own,
                                                             std::int32_t position,
                                                             std::int32_t num_kv) {
  kv::Ledger& ledger = *engine.ledger_;  // NOLINT(bugprone-unchecked-optional-access)
  Room room;
  if (before.empty()) {
    room.sequence = ledger.open(own, true);
  } else {
    QUIRE_TRY(room.sequence, ledger.compose(before, {.tokens = own, .position = position}));
  }
  room.first = ledger.num_computed(room.sequence);
  if (Status made = ledger.extend(room.sequence, num_kv - room.first); !made.ok()) {
    ledger.close(room.sequence);
    return made.error();
  }
  const kv::RunView run = ledger.runs(room.sequence).back();
  room.blocks.assign(run.blocks.begin(), run.blocks.end());
  return room;
}

Result<StateRef> CheckpointService::load(Engine& engine,
                                         const kv_store::SavedSequence& saved) const {
  QUIRE_TRY(Rest rest, parse(saved));
  QUIRE_TRY(const kv_store::LiveSequence live, manager_->tokens_of(saved));
  if (!live.runs.empty() && !(live.fingerprint == engine.tiers().model_fingerprint())) {
    return {ErrorCode::kIncompatible,
            base::str_cat("saved sequence ", base::quoted(saved.name), " is of another model")};
  }
  // KV that is not what this machine would compute must not get into the prefix cache: it becomes a
  // run before the sequence's own one.
  const bool foreign = live.kernels != kernels_here();
  if (foreign || !rest.ranks.empty()) {
    rest.grade = std::max(rest.grade, ReuseGrade::kEqualMath);
  }
  if (rest.ranks.empty() && !live.runs.empty() && rest.grade != ReuseGrade::kExact) {
    const kv_store::SavedRun& run = live.runs.front().run;
    const std::int64_t end = run.start_position + std::ssize(run.tokens);
    rest.own_position = static_cast<std::int32_t>(std::min(end, kMaxTokens));
    rest.ranks.emplace_back();
    rest.stored_from.emplace_back();
  }
  std::vector<HeldRef> held;
  std::vector<kv::SegmentUse> before;
  for (std::size_t i = 0; i < rest.ranks.size(); ++i) {
    const kv_store::SavedRun& run = live.runs[i].run;
    QUIRE_TRY_STATUS(check_run(engine, run.tokens, run.start_position));
    QUIRE_TRY(held.emplace_back(), load_segment(engine, saved, i, run.tokens, rest.stored_from[i]));
    before.push_back(
        {.segment = held[i]->id, .position = run.start_position, .rank = rest.ranks[i]});
  }
  std::vector<TokenId> own;
  if (live.runs.size() > before.size()) {
    own = live.runs.back().run.tokens;
  }
  const auto num_kv = static_cast<std::int32_t>(own.size());
  own.insert(own.end(), rest.tail.begin(), rest.tail.end());
  QUIRE_TRY_STATUS(check_run(engine, own, rest.own_position));
  QUIRE_TRY(const Room room, engine.ask<Room>([&] {
    return make_room(engine, before, own, rest.own_position, num_kv);
  }));
  // NOLINTBEGIN(bugprone-unchecked-optional-access): a running engine has a ledger and shelves
  kv_store::PagedStore& shelves = *engine.store_;
  const std::int32_t first_block = room.first / shelves.geometry().block_tokens;
  const auto missing = std::span(room.blocks).subspan(static_cast<std::size_t>(first_block));
  const Status read = num_kv == room.first
                          ? Status()
                          : manager_->read(saved, before.size(), first_block, missing, shelves);
  return engine.ask<StateRef>([&]() -> Result<StateRef> {
    if (!read.ok()) {
      engine.ledger_->close(room.sequence);
      return read.error();
    }
    engine.ledger_->advance(room.sequence, num_kv - room.first);
    const auto sampled = std::min(rest.sampled, static_cast<std::int32_t>(own.size()));
    return engine.sequences().adopt(room.sequence, sampled, rest.grade);
  });
  // NOLINTEND(bugprone-unchecked-optional-access)
}

Result<std::vector<CheckpointService::Named>> CheckpointService::load(
    Engine& engine, const kv_store::Checkpoint& checkpoint,
    std::span<const std::string> only) const {
  for (const std::string& name : only) {
    if (std::ranges::find(checkpoint.sequences, name, &kv_store::SavedSequence::name) ==
        checkpoint.sequences.end()) {
      return {ErrorCode::kNotFound,
              base::str_cat("checkpoint ", base::quoted(checkpoint.name), " has no sequence ",
                            base::quoted(name), "; it has ", checkpoint.sequences.size())};
    }
  }
  std::vector<Named> loaded;
  for (const kv_store::SavedSequence& saved : checkpoint.sequences) {
    if (only.empty() || std::ranges::find(only, saved.name) != only.end()) {
      QUIRE_TRY(StateRef state, load(engine, saved));
      loaded.push_back({.name = saved.name, .state = std::move(state)});
    }
  }
  return loaded;
}

Result<std::vector<CheckpointService::Named>> CheckpointService::load_newest(
    Engine& engine, std::span<const std::string> only) const {
  QUIRE_TRY(const std::vector<kv_store::Checkpoint> checkpoints, manager_->list());
  Error last{.code = ErrorCode::kNotFound, .message = "there is no checkpoint to load"};
  for (const kv_store::Checkpoint& checkpoint : checkpoints) {
    auto loaded = load(engine, checkpoint, only);
    if (loaded.ok()) {
      return loaded;
    }
    last = loaded.error();
    const bool gone = last.code == ErrorCode::kNotFound || last.code == ErrorCode::kIo;
    if (last.code != ErrorCode::kCorrupt && !gone) {
      break;  // an earlier one would fare no better
    }
  }
  return last;
}

Result<std::vector<CheckpointService::Named>> CheckpointService::load(
    Engine& engine, const std::string& name, std::span<const std::string> only) {
  std::vector<Named> loaded;
  if (name.empty()) {
    QUIRE_TRY(loaded, load_newest(engine, only));
  } else {
    QUIRE_TRY(const kv_store::Checkpoint checkpoint, manager_->find(name));
    QUIRE_TRY(loaded, load(engine, checkpoint, only));
  }
  for (const Named& named : loaded) {
    saved_[named.name] = named.state->tokens;
  }
  return loaded;
}

Result<std::vector<CheckpointInfo>> CheckpointService::list() const {
  QUIRE_TRY(const std::vector<kv_store::Checkpoint> checkpoints, manager_->list());
  std::vector<CheckpointInfo> infos;
  std::ranges::transform(checkpoints, std::back_inserter(infos), to_public);
  return infos;
}

Result<CheckpointInfo> CheckpointService::latest() const {
  QUIRE_TRY(const kv_store::Checkpoint checkpoint, manager_->latest());
  return to_public(checkpoint);
}

Result<std::int64_t> CheckpointService::cleanup(std::int64_t keep) {
  if (keep < 0) {
    return {ErrorCode::kInvalidArgument, base::str_cat("keep is ", keep, ", must be at least 0")};
  }
  return manager_->prune(keep);
}

Result<CheckpointInfo> CheckpointService::compact(const std::string& name) {
  QUIRE_TRY(const kv_store::Checkpoint compacted, manager_->compact(name));
  return to_public(compacted);
}

}  // namespace quire::engine
