#include "quire/contexts/checkpoints.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/iso_time.h"
#include "quire/base/kv_fingerprint.h"
#include "quire/base/str.h"
#include "quire/engine/session_service.h"
#include "quire/kv/format.h"
#include "quire/kv_store/checkpoint.h"
#include "quire/kv_store/checkpoint_manager.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/saved_ranges.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/store_entry.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/runtime/runtime.h"
#include "quire/sequence_types.h"
#include "quire/sequences/block_run.h"
#include "quire/sequences/saved_state.h"
#include "quire/sequences/sequence_service.h"
#include "quire/sequences/sequence_state.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/state_view.h"
#include "quire/tiers/tier_service.h"
#include "quire/types.h"

namespace quire::contexts {
namespace {

constexpr double kMillisecond = 1e-3;

// Returns the tokens with KV of a saved sequence. Its blocks with maps have none.
std::int64_t tokens_of(const kv_store::SavedSequence& saved) {
  std::int64_t tokens = 0;
  for (const kv_store::SavedSequence::RunShape& run : saved.runs) {
    tokens += run.tokens;
  }
  const auto rest = sequences::parse_saved_state(saved.metadata_json, saved.runs.size(), "it");
  std::size_t next = 0;
  for (std::size_t run = 0; rest.ok() && run < rest->map_blocks.size(); ++run) {
    next += static_cast<std::size_t>(rest->parts[run]);
    tokens -= saved.runs[next - 1].tokens;
  }
  return tokens;
}

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
    sequence.tokens = tokens_of(saved);
  }
  return info;
}

// Checks that the files hold KV of that kind.
Status check_fit(std::span<const kv_store::KVFileRange> ranges,
                 const base::KVFingerprint& fingerprint, const tensor::KVGeometry& geometry) {
  for (const kv_store::KVFileRange& range : ranges) {
    QUIRE_TRY_STATUS(range.file->check_fits(fingerprint, geometry));
  }
  return {};
}

}  // namespace

Status check_options(const CheckpointOptions& options) {
  const auto refuse = [](const char* option, const auto& value, const char* range) {
    return Status(ErrorCode::kInvalidArgument,
                  base::str_cat(option, " is ", value, ", must be ", range));
  };
  constexpr double kMaxSeconds = 1e10;
  if (options.keep < 0) {
    return refuse("keep", options.keep, "at least 0");
  }
  if (options.max_bytes < 0) {
    return refuse("max_bytes", options.max_bytes, "at least 0");
  }
  if (options.every_tokens < 0) {
    return refuse("every_tokens", options.every_tokens, "at least 0");
  }
  if (!(options.every_seconds >= 0 && options.every_seconds <= kMaxSeconds)) {
    return refuse("every_seconds", options.every_seconds, "0 to 1e10");
  }
  return engine::SessionService::check_salt("tenant", options.tenant);
}

Result<std::unique_ptr<CheckpointService>> CheckpointService::open(
    const runtime::Runtime& runtime, const std::string& folder, const CheckpointOptions& options) {
  QUIRE_TRY_STATUS(check_options(options));
  const std::string& tenant = runtime.engine().salt_of(options.tenant);
  auto store = kv_store::Store::open(folder, {.max_bytes = options.max_bytes,
                                              .tenant = tenant,  // the limit is one of its own
                                              .write = {.compress = options.compress}});
  if (!store.ok()) {
    return tiers::missing_file(std::move(store).error());
  }
  std::unique_ptr<CheckpointService> service(
      new CheckpointService(std::move(store).value(), tenant));
  QUIRE_TRY(auto manager, kv_store::CheckpointManager::create(
                              service->store_, {.series = options.series,
                                                .tenant = service->tenant_,
                                                .keep = options.keep,
                                                .every_tokens = options.every_tokens,
                                                .every_ms = static_cast<std::int64_t>(std::ceil(
                                                    options.every_seconds / kMillisecond))}));
  service->manager_ = std::make_unique<kv_store::CheckpointManager>(std::move(manager));
  return service;
}

Result<kv_store::LiveSequence> CheckpointService::describe(runtime::Runtime& runtime,
                                                           const Named& named,
                                                           std::vector<sequences::StateRef>& held) {
  auto described =
      runtime.saved_sequences().describe(named.state, sequences::SavedSequences::Windows::kHeld);
  if (!described.ok()) {
    return {described.error().code,
            base::str_cat("sequence ", base::quoted(named.name), ": ", described.error().message)};
  }
  const sequences::SavedState& rest = described->rest;
  kv_store::LiveSequence live{
      .name = named.name,
      .metadata_json = to_json(rest),
      .fingerprint = runtime.tiers().model_fingerprint(),
      .kernels = rest.kernels,
      .follows_from_tokens = rest.ranks.empty() && rest.grade == ReuseGrade::kExact,
      .states = std::move(described->states),
      .state_bytes = std::move(described->state_bytes)};
  std::ranges::move(described->held, std::back_inserter(held));
  for (std::size_t i = 0; i < described->runs.size(); ++i) {
    kv_store::SavedRun& run = described->runs[i];
    run.type.reset();  // an object has one run, whose type is the object's
    live.runs.push_back({.run = std::move(run),
                         .blocks = std::move(described->blocks[i]),
                         .format = described->formats[i]});
  }
  return live;
}

// Refuses a sequence of another salt: KV of one salt does not get into the ranges of another one.
Status CheckpointService::check_tenant(const Named& named) const {
  if (named.state->salt.empty() || named.state->salt == tenant_) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat("sequence ", base::quoted(named.name),
                        " has a salt; save it with the checkpoints of that tenant")};
}

Result<CheckpointInfo> CheckpointService::save(runtime::Runtime& runtime,
                                               std::span<const Named> sequences,
                                               const std::string& name) {
  std::vector<kv_store::LiveSequence> live;
  std::vector<sequences::StateRef> held;  // what they borrow
  live.reserve(sequences.size());
  for (const Named& named : sequences) {
    QUIRE_TRY_STATUS(check_tenant(named));
    QUIRE_TRY(live.emplace_back(), describe(runtime, named, held));
  }
  std::vector<std::vector<BlockId>> blocks;
  std::vector<kv::FormatId> formats;
  for (const kv_store::LiveSequence& sequence : live) {
    for (const kv_store::LiveRun& run : sequence.runs) {
      blocks.push_back(run.blocks);
      formats.push_back(run.format);
    }
  }
  QUIRE_TRY(tiers::TierService::Readable from, runtime.tiers().readable(blocks, formats));
  auto readable = from.runs.begin();
  for (kv_store::LiveSequence& sequence : live) {
    for (kv_store::LiveRun& run : sequence.runs) {
      run.blocks = std::move(*readable++);
    }
  }
  QUIRE_TRY(const kv_store::Checkpoint saved, manager_->save(name, live, from.pool()));
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

Result<sequences::StateRef> CheckpointService::load(runtime::Runtime& runtime,
                                                    const kv_store::SavedSequence& saved,
                                                    const std::set<std::string>& whole,
                                                    bool wait) const {
  const std::string what = base::str_cat("saved sequence ", base::quoted(saved.name));
  QUIRE_TRY(sequences::SavedState rest,
            sequences::parse_saved_state(saved.metadata_json, saved.runs.size(), what));
  QUIRE_TRY(const kv_store::LiveSequence live, manager_->tokens_of(saved));
  const kv_store::PagedPool& pool = runtime.tiers().paged_pool();
  const tensor::KVGeometry& geometry = pool.geometry();
  const kv_store::KVType own = kv_store::kv_type_of(geometry);
  std::vector<kv_store::SavedRun> runs;
  for (const kv_store::LiveRun& run : live.runs) {
    const tensor::KVGeometry shape = kv_store::with_type(run.geometry, own);
    if (const std::string differs = kv_store::geometry_difference(shape, geometry);
        !differs.empty()) {
      return {ErrorCode::kIncompatible, base::str_cat(what, " does not fit the model: ", differs)};
    }
    const kv_store::KVType type = kv_store::kv_type_of(run.geometry);
    runs.push_back(run.run);
    runs.back().type = type == own ? std::nullopt : std::optional(type);
  }
  QUIRE_TRY_STATUS(runtime.saved_sequences().check_formats(runs, rest));
  if (!live.runs.empty() && !(live.fingerprint == runtime.tiers().model_fingerprint())) {
    return {ErrorCode::kIncompatible, base::str_cat(what, " is of another model")};
  }
  const auto open = [&](const kv_store::BlockRange& wanted,
                        sequences::SavedSequences::Purpose purpose)
      -> Result<std::vector<kv_store::KVFileRange>> {
    QUIRE_TRY(auto ranges, manager_->open_blocks(saved, wanted, geometry.block_tokens));
    QUIRE_TRY_STATUS(check_fit(ranges, live.fingerprint, pool.geometry(wanted.format)));
    if (purpose == sequences::SavedSequences::Purpose::kVerify) {
      std::erase_if(ranges, [&](const kv_store::KVFileRange& range) {
        return whole.contains(range.file->content().object_hash);
      });
    }
    return ranges;
  };
  sequences::SavedSequences::StatesToLoad states;
  for (const kv_store::SavedSequence::StateObject& state : saved.states) {
    states.at.push_back({.tokens = state.tokens});
  }
  states.read = [&](std::size_t index, std::span<const tensor::StatePart> parts,
                    std::span<std::byte> to) -> Status {
    QUIRE_TRY(const kv_store::KVFile file, manager_->open_state(saved, index));
    QUIRE_TRY_STATUS(file.check_fits(live.fingerprint, geometry));
    return file.read_state(0, parts, to);
  };
  return runtime.saved_sequences().restore(runs, std::move(rest), open, states,
                                           {.wait = wait, .salt = tenant_});
}

Result<std::vector<CheckpointService::Named>> CheckpointService::load(
    runtime::Runtime& runtime, const kv_store::Checkpoint& checkpoint,
    std::span<const std::string> only, bool wait) {
  for (const std::string& name : only) {
    if (std::ranges::find(checkpoint.sequences, name, &kv_store::SavedSequence::name) ==
        checkpoint.sequences.end()) {
      return {ErrorCode::kNotFound,
              base::str_cat("checkpoint ", base::quoted(checkpoint.name), " has no sequence ",
                            base::quoted(name), "; it has ", checkpoint.sequences.size())};
    }
  }
  std::vector<Named> loaded;
  std::set<std::string> whole;  // forks share objects, which are read once
  for (const kv_store::SavedSequence& saved : checkpoint.sequences) {
    if (only.empty() || std::ranges::find(only, saved.name) != only.end()) {
      QUIRE_TRY(sequences::StateRef state, load(runtime, saved, whole, wait));
      std::ranges::transform(saved.parts, std::inserter(whole, whole.end()),
                             &kv_store::ObjectRange::object);
      loaded.push_back({.name = saved.name, .state = std::move(state)});
    }
  }
  // A folder that may only be read keeps no account of uses.
  [[maybe_unused]] const Status used = store_.entries().touch(checkpoint.entry.key, tenant_);
  return loaded;
}

Result<std::vector<CheckpointService::Named>> CheckpointService::load_newest(
    runtime::Runtime& runtime, std::span<const std::string> only, bool wait) {
  return kv_store::take_newest(*manager_, [&](const kv_store::Checkpoint& checkpoint) {
    return load(runtime, checkpoint, only, wait);
  });
}

Result<std::vector<CheckpointService::Named>> CheckpointService::load(
    runtime::Runtime& runtime, const std::string& name, std::span<const std::string> only,
    bool wait) {
  std::vector<Named> loaded;
  if (name.empty()) {
    QUIRE_TRY(loaded, load_newest(runtime, only, wait));
  } else {
    QUIRE_TRY(const kv_store::Checkpoint checkpoint, manager_->find(name));
    QUIRE_TRY(loaded, load(runtime, checkpoint, only, wait));
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

}  // namespace quire::contexts
