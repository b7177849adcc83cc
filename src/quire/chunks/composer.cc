#include "quire/chunks/composer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <ranges>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/base/no_memory.h"
#include "quire/chunk_types.h"
#include "quire/chunks/blend.h"
#include "quire/chunks/chunk_library.h"
#include "quire/chunks/chunk_prefills.h"
#include "quire/chunks/composition_attempt.h"
#include "quire/chunks/composition_planner.h"
#include "quire/chunks/composition_preview.h"
#include "quire/chunks/layer_blend.h"
#include "quire/chunks/narrowing.h"
#include "quire/chunks/part_reuse.h"
#include "quire/engine/active_request.h"
#include "quire/engine/channel.h"
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/session_service.h"
#include "quire/interrupt.h"
#include "quire/kv/block_parts.h"
#include "quire/kv/block_table.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/composition.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/tiers/background_loads.h"
#include "quire/tiers/tier_service.h"

namespace quire::chunks {

namespace {

// Attempts compute a BOS token, then the chunks' missing variants, then read what blending needs,
// then the runs. Two more serve damaged KV, and a chunk that was deleted and registered again.
constexpr int kAttempts = 6;

constexpr std::size_t kShownDigits = 12;

}  // namespace

Result<std::vector<std::shared_ptr<engine::Channel>>> Composer::submit(
    std::span<const ComposedRun> runs, const Interrupt& interrupted,
    std::vector<kv::VariantName>* computed) {
  for (const ComposedRun& run : runs) {
    QUIRE_TRY([[maybe_unused]] const std::string salt, planner_.salt_of(run));
    QUIRE_TRY_STATUS(run.kind == engine::RequestKind::kGenerate ? core_.engine.check(*run.params)
                                                                : Status());
  }
  CompositionAttempt attempt{.counted = std::ranges::all_of(runs, &ComposedRun::counted)};
  try {
    return submit(runs, interrupted, computed, attempt);
  } catch (const std::bad_alloc&) {
    give_up(std::move(attempt));
    return base::no_memory("a composition");
  }
}

Result<std::vector<std::shared_ptr<engine::Channel>>> Composer::submit(
    std::span<const ComposedRun> runs, const Interrupt& interrupted,
    std::vector<kv::VariantName>* computed, CompositionAttempt& attempt) {
  int attempts = kAttempts;
  for (const ComposedRun& run : runs) {  // parts of a chain are computed one after the other
    attempts += run.spec->mode == ReuseMode::kExact
                    ? static_cast<int>(run.spec->context_chunk_ids.size())
                    : 0;
  }
  for (int count = 0; count < attempts; count += attempt.end ? 0 : 1) {
    attempt.end.reset();
    const auto started = core_.engine.thread().ask_for_blocks<bool>([&] {  // blending takes some
      auto advanced = advance(runs, attempt);
      if (!advanced.ok()) {
        attempt.in_use.clear();
      }
      return advanced;
    });
    const auto right = started.ok() && *started ? await_read(runs, attempt, interrupted) : started;
    if (right.ok() && *right) {
      if (attempt.counted) {
        library_.save_variants(attempt.started);
      }
      if (computed != nullptr) {
        std::ranges::copy(attempt.started | std::views::keys, std::back_inserter(*computed));
      }
      return std::move(attempt.channels);
    }
    const Status done = right.ok() ? await_missing(attempt, interrupted) : right.error();
    if (!done.ok()) {
      give_up(std::move(attempt));
      return done.error();
    }
  }
  give_up(std::move(attempt));
  return {ErrorCode::kOutOfBlocks,
          "the composition's chunks were deleted as fast as they were computed; try again"};
}

// Starts the runs if all KV is there. Blending looks at KV here and now, so that must be there; any
// other run waits for it layer by layer. Runs count as uses when what they read was right.
Result<bool> Composer::advance(std::span<const ComposedRun> runs, CompositionAttempt& attempt) {
  explain(runs, attempt);
  ReadBehind behind;
  auto resolved = resolve(runs, attempt.in_use,
                          attempt.reads_behind && !core_.has_states() ? &behind : nullptr);
  library_.start_reading(std::move(behind));  // whatever has failed since
  QUIRE_TRY(attempt.compositions, std::move(resolved));
  QUIRE_TRY(const bool complete, start_missing(attempt.compositions, attempt));
  if (!complete) {
    return false;
  }
  attempt.loads = loads_of(attempt.compositions);
  const bool blends = std::ranges::any_of(
      runs, [](const ComposedRun& run) { return run.spec->mode == ReuseMode::kBlend; });
  if (blends && !attempt.loads.empty()) {
    return false;
  }
  QUIRE_TRY_STATUS(start_runs(runs, attempt));
  drop_chains(attempt.compositions);
  if (attempt.loads.empty()) {
    count_uses(runs, attempt);
  }
  return true;
}

// Drops KV that was computed for these compositions alone. Their sequences have it.
void Composer::drop_chains(const Compositions& compositions) {
  for (const kv::ResolvedComposition& composition : compositions) {
    for (const kv::Part& part : composition.parts) {
      if (kv::is_chained(part.key)) {
        core_.registry.variants().drop({part.chunk->id, part.key});
      }
    }
  }
}

void Composer::explain(std::span<const ComposedRun> runs, CompositionAttempt& attempt) {
  if (!attempt.explained.empty()) {
    return;
  }
  std::vector<std::vector<ReusePart>> explained(runs.size());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].options.explain) {
      CompositionSpec spec = *runs[i].spec;
      spec.salt = planner_.whose(runs[i]);
      const Result<CompositionInfo> info = preview_.preview_now(spec);
      explained[i] = info.ok() ? parts_of(*info) : std::vector<ReusePart>();  // else it is refused
    }
  }
  attempt.explained = std::move(explained);
}

Status Composer::await_missing(CompositionAttempt& attempt, const Interrupt& interrupted) {
  QUIRE_TRY_STATUS(tiers::BackgroundLoads::await(attempt.loads, interrupted));
  for (const tiers::BackgroundLoads::LoadRef& load : std::exchange(attempt.loads, {})) {
    attempt.reads_behind = load->outcome().ok() && attempt.reads_behind;
  }
  QUIRE_TRY_STATUS(prefills_.wait(attempt.pending, interrupted));
  return attempt.end ? ChunkCore::await(*attempt.end, interrupted) : Status();
}

// Runs that read what was damaged have handed out nothing: they end, and begin anew without it.
Result<bool> Composer::await_read(std::span<const ComposedRun> runs, CompositionAttempt& attempt,
                                  const Interrupt& interrupted) {
  QUIRE_TRY_STATUS(tiers::BackgroundLoads::await(attempt.loads, interrupted));
  bool right = true;
  for (const tiers::BackgroundLoads::LoadRef& load : attempt.loads) {
    right = load->outcome().ok() && right;
  }
  if (attempt.loads.empty()) {
    return true;
  }
  attempt.loads.clear();
  attempt.reads_behind = right;
  QUIRE_TRY_STATUS(core_.engine.thread().call([&] {
    if (right) {
      count_uses(runs, attempt);
    } else {
      withdraw_runs(attempt);
    }
    core_.engine.refresh_stats();
  }));
  return right;
}

void Composer::withdraw_runs(CompositionAttempt& attempt) {
  for (const std::shared_ptr<engine::Channel>& channel : std::exchange(attempt.channels, {})) {
    core_.engine.requests().abort(channel->id());
    core_.engine.core().counters.tokens_reused -=
        channel->cached_tokens();  // nobody gets that output
  }
}

// Takes back what the attempt alone has wanted, without waiting for it: a step that runs may wait
// for files. The thread of an engine that closes may still be at the registry, which ends with it.
void Composer::give_up(CompositionAttempt attempt) {
  try {
    const auto last = std::make_shared<CompositionAttempt>(std::move(attempt));
    const bool sent = core_.engine.thread().post([this, last] { take_back(*last); });
    if (!sent) {
      std::ranges::for_each(last->in_use, &ChunkUse::forget);
    }
  } catch (const std::bad_alloc&) {
    core_.engine.thread().call_surely([&] { take_back(attempt); });
    std::ranges::for_each(attempt.in_use, &ChunkUse::forget);
  }
}

// Takes an attempt back. Engine thread. A second call does nothing.
void Composer::take_back(CompositionAttempt& attempt) {
  withdraw_runs(attempt);
  prefills_.leave(std::exchange(attempt.pending, {}));
  for (const auto& [name, prefill] : attempt.started) {
    if (*prefill.waiters == 0) {
      core_.registry.variants().drop(name);  // no effect where it is the BOS token
    }
  }
  prefills_.drop_unused_bos();
  attempt.in_use.clear();
  core_.engine.refresh_stats();
}

Status Composer::adopt_all(const ComposedRun& run, ReadBehind* behind) {
  for (const std::string& id : CompositionPlanner::chunk_ids(*run.spec)) {
    QUIRE_TRY_STATUS(library_.adopt(id, planner_.whose(run), behind));
  }
  return {};
}

// Adopts saved chunks and reads their saved KV first.
Result<Compositions> Composer::resolve(std::span<const ComposedRun> runs, ChunkUses& uses,
                                       ReadBehind* behind) {
  for (const ComposedRun& run : runs) {
    QUIRE_TRY_STATUS(adopt_all(run, behind));
  }
  QUIRE_TRY(Compositions compositions, planner_.resolve(runs));
  ChunkUses held;
  held.reserve(runs.size());
  for (const ComposedRun& run : runs) {
    held.push_back(std::make_shared<ChunkUse>(core_.registry, *run.spec));
  }
  uses.swap(held);
  if (!library_.has_store()) {
    return compositions;
  }
  QUIRE_TRY(const bool read, library_.read_variants(compositions, behind));
  return read ? planner_.resolve(runs) : std::move(compositions);
}

// Returns whether a chunk that the part stands behind is without KV. Its prefill comes first.
Result<bool> Composer::waits_for_anchor(const kv::Part& part) const {
  if (kv::is_chained(part.key) || part.key.before == kv::kBosVariant) {
    return false;
  }
  QUIRE_TRY(const kv::Chunk* lacking,
            prefills_.first_without_kv(part.key.before, part.chunk->salt));
  return lacking != nullptr;
}

// Starts prefills of the KV that is missing. Parts behind a BOS token wait for that token's KV.
// Prefills at work already are waited for.
Result<bool> Composer::start_missing(const Compositions& compositions,
                                     CompositionAttempt& attempt) {
  bool complete = true;
  std::set<std::string> want_bos;  // salts
  std::vector<kv::VariantName> variants;
  PrefillPlaces chains;
  kv::BlockCounts needed;  // blocks of those, and of the longest query
  for (const kv::ResolvedComposition& composition : compositions) {
    const std::int64_t own = core_.ledger().min_blocks(std::ssize(*composition.query.chunk->tokens),
                                                       kv::BehindWindow::kKeeps);
    needed[kv::kOwnFormat] = std::max(needed[kv::kOwnFormat], static_cast<std::int32_t>(own));
  }
  for (const kv::ResolvedComposition& composition : compositions) {
    for (const kv::Part& part : composition.missing()) {
      complete = false;
      const kv::VariantName name(part.chunk->id, part.key);
      const std::string& salt = part.chunk->salt;
      if (part.key.before == kv::kBosVariant && !prefills_.has_bos(salt)) {
        want_bos.insert(salt);
        continue;
      }
      if (auto meanwhile = prefills_.join(name)) {
        attempt.pending.push_back(*std::move(meanwhile));
        continue;
      }
      if (std::ranges::find(variants, name) != variants.end()) {
        continue;
      }
      QUIRE_TRY(const bool waits, waits_for_anchor(part));
      if (waits) {
        continue;
      }
      QUIRE_TRY_STATUS(check_computable(core_, *part.chunk, part.key));
      variants.push_back(name);
      if (kv::is_chained(part.key)) {
        chains[name] = {.before = composition.chain_before(part), .position = part.position};
      }
      core_.add_blocks(*part.chunk, needed);
    }
  }
  std::map<std::string, std::vector<kv::VariantName>> by_salt;
  for (const kv::VariantName& name : variants) {
    by_salt[core_.registry.find(name.first)->salt].push_back(name);
  }
  if (attempt.end = core_.end_to_await(needed); attempt.end) {
    QUIRE_TRY_STATUS(check_variants(by_salt));
    return false;
  }
  const std::int64_t lacks = core_.lacking(needed);
  if (variants.empty() && lacks > 0) {
    return core_.registry.room().pool_has_no_room(lacks);  // error of a prompt: it evicts no chunk
  }
  for (const auto& [salt, own] : by_salt) {
    QUIRE_TRY_STATUS(core_.registry.variants().begin(own, lacks));
    QUIRE_TRY_STATUS(start_variants(own, chains, attempt));
  }
  for (const std::string& salt : want_bos) {
    QUIRE_TRY_STATUS(start_bos(salt, attempt));
  }
  return complete;
}

// Checks that chunks may hold so much more, before it is waited for blocks.
Status Composer::check_variants(
    const std::map<std::string, std::vector<kv::VariantName>>& by_salt) {
  kv::ChunkRoom& room = core_.registry.room();
  for (const auto& [salt, own] : by_salt) {
    std::int64_t bytes = 0;
    for (const kv::VariantName& name : own) {
      bytes += room.bytes_for(*core_.registry.find(name.first));
    }
    QUIRE_TRY_STATUS(room.check_room({.salt = salt, .bytes = bytes}));
  }
  return {};
}

// Starts prefills for which room was set aside.
Status Composer::start_variants(std::span<const kv::VariantName> variants,
                                const PrefillPlaces& chains, CompositionAttempt& attempt) {
  Status failure;
  for (const kv::VariantName& name : variants) {
    const kv::Chunk* const chunk = core_.registry.find(name.first);
    QUIRE_CHECK(chunk != nullptr, "a chunk in use has gone");
    if (!failure.ok()) {
      [[maybe_unused]] const Status ended =
          core_.registry.variants().end(name.first, name.second, std::nullopt);
      continue;
    }
    const auto place = chains.find(name);
    const auto prefill = prefills_.start_prefill(*chunk, name.second, attempt.counted,
                                                 place == chains.end() ? nullptr : &place->second);
    if (!prefill.ok()) {
      failure = prefill.error();
      continue;
    }
    attempt.started.insert_or_assign(name, *prefill);
    attempt.pending.push_back(*prefill);
  }
  return failure;
}

// Starts computing the KV that stands before contexts computed under a BOS token.
Status Composer::start_bos(const std::string& salt, CompositionAttempt& attempt) {
  const auto bos = core_.bos_token();
  if (!bos) {
    return {ErrorCode::kUnsupported, "the model has no BOS token; compose without a BOS sink"};
  }
  const kv::VariantName name = ChunkPrefills::bos_name(salt);
  if (auto meanwhile = prefills_.join(name)) {
    attempt.pending.push_back(*std::move(meanwhile));
    return {};
  }
  QUIRE_TRY(const PendingPrefill pending, prefills_.start_bos(salt, *bos));
  attempt.started.insert_or_assign(name, pending);
  attempt.pending.push_back(pending);
  return {};
}

// Returns how much of each part's KV is reused. A variant of `fresh`, which this call has computed,
// counts as computed at its first use, and is erased from `fresh` then.
Composer::ReuseByPart Composer::reuse_by_part(const kv::ResolvedComposition& composition,
                                              StartedPrefills& fresh) {
  ReuseByPart parts;
  const auto add = [&](const kv::VariantName& name, std::string shown, std::int64_t tokens) {
    PartReuse part{.name = std::move(shown), .reused = tokens};
    if (const auto prefill = fresh.extract(name)) {
      part.reused = prefill.mapped().channel->cached_tokens();
      part.computed = tokens - part.reused;
      part.from_prefix_cache = true;
    }
    parts.push_back(std::move(part));
  };
  if (composition.plain()) {
    return parts;  // its ids are a plain prompt
  }
  for (const kv::Part& part : composition.parts) {
    add({part.chunk->id, part.key}, part.chunk->id.substr(0, kShownDigits),
        std::ssize(*part.chunk->tokens));
  }
  const bool behind_bos = std::ranges::any_of(
      composition.parts, [](const kv::Part& part) { return part.key.before == kv::kBosVariant; });
  const kv::VariantName bos = ChunkPrefills::bos_name(composition.query.chunk->salt);
  if (behind_bos && fresh.contains(bos)) {
    add(bos, std::string(kv::kBosVariant), 1);
  }
  return parts;
}

// Makes the request's sequence. Blending computes a part of the contexts again, here and now.
Result<SeqId> Composer::compose(const CompositionSpec& spec,
                                const kv::ResolvedComposition& composition, ReuseByPart& parts,
                                ReuseReport& reuse) {
  const kv::ComposeTail tail = {.tokens = *composition.query.chunk->tokens,
                                .position = composition.query.position};
  kv::Ledger& ledger = core_.ledger();
  std::vector<kv::SegmentId> segments;
  std::ranges::transform(composition.uses(), std::back_inserter(segments),
                         &kv::SegmentUse::segment);
  QUIRE_TRY_STATUS(core_.make_readable(segments));
  if (spec.mode != ReuseMode::kBlend) {
    reuse.sources = sources_of(parts, 0);
    return ledger.segments().compose(composition.uses(), tail);
  }
  engine::EngineCore& core = core_.engine.core();
  QUIRE_TRY_STATUS(complete_hidden(spec.blend, composition));
  const BlendContext context{.ledger = ledger,
                             .paged_pool = core.paged_pool,
                             .decoder = core.decoder(),
                             .views = core.views,
                             .max_rows = core_.engine.options().max_batch_tokens,
                             .kernels = core_.engine.context(),
                             .states = &core.states,
                             .hidden = &core_.hidden};
  QUIRE_TRY(const BlendResult blended, is_by_layers(spec.blend)
                                           ? blend_layers(context, spec.blend, composition)
                                           : blend(context, spec.blend, composition));
  core.counters.tokens_computed += blended.recomputed_tokens;
  take_off(blended.recomputed, parts);
  reuse.sources = sources_of(parts, blended.recomputed_tokens);
  reuse.recompute_share = blended.share;
  auto sequence = ledger.segments().compose(blended.uses, tail);
  for (const kv::SegmentId own : blended.own) {
    ledger.segments().drop(own);  // the sequence has it
  }
  return sequence;
}

// Computes the hidden states that a blend by layers begins with, for KV that was computed since the
// chunks were registered.
Status Composer::complete_hidden(const Blend& how, const kv::ResolvedComposition& composition) {
  for (const kv::Part& part : composition.parts) {
    if (how.layers && how.layers->first > 0 && part.chunk->type == ChunkType::kContext) {
      QUIRE_TRY_STATUS(prefills_.keep_hidden(*part.chunk, part.key));
    }
  }
  return {};
}

Result<engine::NewRequest> Composer::request_for(const ComposedRun& run,
                                                 const kv::ResolvedComposition& composition,
                                                 ReuseByPart parts) {
  engine::NewRequest request{.kind = run.kind,
                             .session = run.options.session,
                             .salt = planner_.whose(run),
                             .streaming = run.streaming,
                             .notify = run.options.notify,
                             .urgency = engine::urgency_of(run.options, run.submitted),
                             .followers = run.followers,
                             .follows = run.follows};
  if (run.kind == engine::RequestKind::kGenerate) {
    request.params = *run.params;
  }
  request.params.max_tokens = planner_.max_new_tokens(run, composition);
  const bool plain = composition.plain();
  request.observer =
      std::make_shared<ChunkUse>(core_.registry, *run.spec, run.observer,
                                 plain && !run.counted ? &core_.ledger().segments() : nullptr);
  if (plain) {
    request.prompt = composition.joined();
    std::int32_t end = 0;
    for (const kv::Part& part : composition.parts) {
      end += static_cast<std::int32_t>(part.chunk->tokens->size());
      request.marks.push_back({.tokens = end, .stays = true});
    }
    if (run.kind == engine::RequestKind::kForwardAll) {  // cached rows would have no logits
      request.reuse = false;
      request.first_logit = static_cast<std::int32_t>(std::ssize(request.prompt) -
                                                      std::ssize(*composition.query.chunk->tokens));
    }
    return request;
  }
  engine::ComposedPrompt composed{.reuse = {.grade = composition.grade}};
  for (const kv::Part& part : composition.parts) {
    composed.pieces.push_back(part.chunk->tokens);
  }
  composed.pieces.push_back(composition.query.chunk->tokens);
  QUIRE_TRY(composed.sequence, compose(*run.spec, composition, parts, composed.reuse));
  composed.cached_tokens = reused_tokens(parts);
  request.composed = std::move(composed);
  return request;
}

Status Composer::start_runs(std::span<const ComposedRun> runs, CompositionAttempt& attempt) {
  std::vector<engine::NewRequest> requests;
  const auto close_all = [&] {
    for (const engine::NewRequest& request : requests) {
      if (request.composed) {
        core_.ledger().sequences().close(request.composed->sequence);
      }
    }
  };
  attempt.parts.clear();
  attempt.channels.clear();  // channels of a visit that was refused memory
  StartedPrefills fresh = attempt.started;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    attempt.parts.push_back(reuse_by_part(attempt.compositions[i], fresh));
    auto request = request_for(runs[i], attempt.compositions[i], attempt.parts.back());
    if (!request.ok()) {
      close_all();
      return std::move(request).error();
    }
    request->parts = attempt.explained[i];
    requests.push_back(std::move(request).value());
  }
  return core_.engine.requests().enqueue(std::move(requests), attempt.channels);
}

std::vector<tiers::BackgroundLoads::LoadRef> Composer::loads_of(
    const Compositions& compositions) const {
  const tiers::BackgroundLoads& under_way = core_.tiers.background_loads();
  std::vector<tiers::BackgroundLoads::LoadRef> loads;
  for (const kv::ResolvedComposition& composition : compositions) {
    if (composition.plain() || under_way.idle()) {
      continue;  // its ids are a plain prompt
    }
    for (const kv::SegmentUse& use : composition.uses()) {
      const kv::BlockTable& blocks = core_.ledger().segments().find(use.segment)->blocks();
      std::ranges::move(under_way.filling(kv::parts_of(blocks)), std::back_inserter(loads));
    }
  }
  return loads;
}

// Counts the use of a run's chunks. Chunks that were deleted while the run waited for their KV are
// not used any more.
void Composer::count_use(const ComposedRun& run, std::span<const PartReuse> parts) {
  for (const PartReuse& part : parts) {  // the request reports them, and its prefill has
    core_.engine.core().counters.tokens_reused -= part.from_prefix_cache ? part.reused : 0;
  }
  if (!run.counted) {
    return;
  }
  const kv::SessionRef session =
      core_.engine.sessions().named(run.options.session, planner_.whose(run));
  for (const std::string& id : CompositionPlanner::chunk_ids(*run.spec)) {
    if (core_.registry.find(id) != nullptr) {
      core_.registry.usage().use(id, session);
      library_.note_use(id, planner_.whose(run));
    }
  }
  core_.registry.usage().count(planner_.whose(run),
                               std::ranges::count(parts, 0, &PartReuse::computed), 0);
}

void Composer::count_uses(std::span<const ComposedRun> runs, CompositionAttempt& attempt) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    count_use(runs[i], attempt.parts[i]);
  }
  attempt.in_use.clear();
}

}  // namespace quire::chunks
