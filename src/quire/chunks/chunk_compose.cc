// Composing: from chunk ids to requests behind their segments.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/chunks.h"
#include "quire/chunks/blend.h"
#include "quire/chunks/chunk_attempt.h"
#include "quire/chunks/chunk_service.h"
#include "quire/chunks/part_origins.h"
#include "quire/engine/active_request.h"
#include "quire/engine/engine.h"
#include "quire/engine/session_service.h"
#include "quire/kv/chunk_registry.h"
#include "quire/kv/composition.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/tiers/background_loads.h"
#include "quire/tiers/tier_service.h"

namespace quire::chunks {
namespace {

constexpr std::size_t kShownDigits = 12;

}  // namespace

std::vector<std::string> ChunkService::chunk_ids(const CompositionSpec& spec) {
  std::vector<std::string> ids;
  if (!spec.system_chunk_id.empty()) {
    ids.push_back(spec.system_chunk_id);
  }
  ids.insert(ids.end(), spec.context_chunk_ids.begin(), spec.context_chunk_ids.end());
  ids.push_back(spec.query_chunk_id);
  return ids;
}

Status ChunkService::check_positions(const kv::ResolvedComposition& composition) const {
  const auto end = [](const kv::Part& part) {
    return std::int64_t{part.position} + std::ssize(*part.chunk->tokens);
  };
  std::int64_t positions = end(composition.query);
  for (const kv::Part& part : composition.parts) {
    positions = std::max(positions, end(part));
  }
  const std::int64_t limit = engine_.model_config().max_positions;
  if (positions <= limit) {
    return {};
  }
  return {ErrorCode::kOverflow,
          base::str_cat("the composition has ", positions, " positions, the model's context ",
                        engine_.model_config().context_text(), "; use fewer or shorter chunks")};
}

std::int32_t ChunkService::max_new_tokens(const Run& run,
                                          const kv::ResolvedComposition& composition) const {
  if (run.kind != engine::RequestKind::kGenerate) {
    return 0;
  }
  // The KV of the last sampled token is never needed, so one more token than positions fits.
  const std::int64_t room = engine_.model_config().max_positions - composition.query.position -
                            std::ssize(*composition.query.chunk->tokens) + std::int64_t{1};
  return static_cast<std::int32_t>(std::min<std::int64_t>(run.params->max_tokens, room));
}

// What the scheduler asks of a request, before chunks are computed for it and others evicted.
Status ChunkService::check_fits(const Run& run, const kv::ResolvedComposition& composition) const {
  const kv::Ledger& ledger = this->ledger();
  const bool plain = composition.mode == ReuseMode::kExact;
  const std::int64_t own =
      plain ? composition.num_tokens() : std::ssize(*composition.query.chunk->tokens);
  const std::int64_t more = std::max(max_new_tokens(run, composition), 1) - 1;
  std::int64_t needed = ledger.min_blocks(own + more);
  for (const kv::Part& part : composition.parts) {
    needed += plain ? 0 : ledger.min_blocks(std::ssize(*part.chunk->tokens));
  }
  const std::int64_t all = ledger.config().num_blocks;
  if (needed <= all) {
    return {};
  }
  const std::int64_t block_bytes = engine_.core().counters.block_bytes;
  return Error{
      .code = ErrorCode::kOverflow,
      .message = base::str_cat(
          "the composition needs ", needed, " blocks (", base::format_bytes(needed * block_bytes),
          ") with its answer, the pool has ", all, " (", base::format_bytes(all * block_bytes),
          "); use fewer or shorter chunks, lower max_tokens or raise kv_budget"),
      .needed_bytes = needed * block_bytes,
      .free_bytes = all * block_bytes};
}

Result<ChunkService::Compositions> ChunkService::resolve_known(std::span<const Run> runs) {
  Compositions compositions;
  for (const Run& run : runs) {
    QUIRE_TRY(auto composition, kv::resolve(registry_, whose(run), *run.spec, windowed()));
    QUIRE_TRY_STATUS(check_positions(composition));
    QUIRE_TRY_STATUS(check_fits(run, composition));
    compositions.push_back(std::move(composition));
  }
  return compositions;
}

Status ChunkService::adopt_all(const Run& run, Behind* behind) {
  for (const std::string& id : chunk_ids(*run.spec)) {
    QUIRE_TRY_STATUS(adopt(id, whose(run), behind));
  }
  return {};
}

// With what there is of them in the store.
Result<ChunkService::Compositions> ChunkService::resolve(std::span<const Run> runs, Uses& uses,
                                                         Behind* behind) {
  for (const Run& run : runs) {
    QUIRE_TRY_STATUS(adopt_all(run, behind));
  }
  QUIRE_TRY(Compositions compositions, resolve_known(runs));
  Uses held;
  held.reserve(runs.size());
  for (const Run& run : runs) {
    held.push_back(std::make_shared<Use>(registry_, *run.spec));
  }
  uses.swap(held);
  if (store_ == nullptr) {
    return compositions;
  }
  QUIRE_TRY(const bool read, read_variants(compositions, behind));
  return read ? resolve_known(runs) : std::move(compositions);
}

// How far a call of submit has come.
// Parts behind a BOS token wait for that. What is at work already is waited for.
Result<bool> ChunkService::start_missing(const Compositions& compositions, Attempt& attempt) {
  bool complete = true;
  std::set<std::string> want_bos;  // salts
  std::vector<Name> variants;
  std::int64_t needed = 0;  // blocks: of those, and of the longest query
  for (const kv::ResolvedComposition& composition : compositions) {
    needed = std::max(needed, ledger().min_blocks(std::ssize(*composition.query.chunk->tokens)));
  }
  for (const kv::ResolvedComposition& composition : compositions) {
    for (const kv::Part& part : composition.missing()) {
      complete = false;
      const Name name(part.chunk->id, part.key);
      const std::string& salt = part.chunk->salt;
      if (part.key.before == kv::kBosVariant && !bos_.contains(salt)) {
        want_bos.insert(salt);
      } else if (auto meanwhile = join(name)) {
        attempt.pending.push_back(*std::move(meanwhile));
      } else if (std::ranges::find(variants, name) == variants.end()) {
        variants.push_back(name);
        needed += registry_.blocks_for(part.chunk->tokens->size());
      }
    }
  }
  const std::int64_t lacks = lacking(needed);
  if (variants.empty() && lacks > 0) {
    return registry_.pool_has_no_room(lacks);  // as a prompt: it evicts no chunk
  }
  std::map<std::string, std::vector<Name>> by_salt;
  for (const Name& name : variants) {
    by_salt[registry_.find(name.first)->salt].push_back(name);
  }
  for (const auto& [salt, own] : by_salt) {
    QUIRE_TRY_STATUS(registry_.begin_variants(own, lacks));
    QUIRE_TRY_STATUS(start_variants(own, attempt));
  }
  for (const std::string& salt : want_bos) {
    QUIRE_TRY_STATUS(start_bos(salt, attempt));
  }
  return complete;
}

// Prefills for which room was set aside.
Status ChunkService::start_variants(std::span<const Name> variants, Attempt& attempt) {
  Status failure;
  for (const Name& name : variants) {
    const kv::Chunk* const chunk = registry_.find(name.first);
    QUIRE_CHECK(chunk != nullptr, "a chunk in use has gone");
    if (!failure.ok()) {
      [[maybe_unused]] const Status ended = registry_.end(name.first, name.second, std::nullopt);
      continue;
    }
    const auto prefill = start_prefill(*chunk, name.second, attempt.counted);
    if (!prefill.ok()) {
      failure = prefill.error();
      continue;
    }
    attempt.started.insert_or_assign(name, *prefill);
    attempt.pending.push_back(*prefill);
  }
  return failure;
}

// The KV that stands before contexts computed under a BOS token.
Status ChunkService::start_bos(const std::string& salt, Attempt& attempt) {
  const auto bos = bos_token();
  if (!bos) {
    return {ErrorCode::kUnsupported, "the model has no BOS token; compose without a BOS sink"};
  }
  const Name name = bos_name(salt);
  if (auto meanwhile = join(name)) {
    attempt.pending.push_back(*std::move(meanwhile));
    return {};
  }
  const auto place = std::make_shared<BosSegments>();  // made now: it is filled where none may be
  place->emplace(salt, kv::SegmentId{});
  QUIRE_TRY(const Pending pending, start({.prompt = {*bos}, .salt = salt}, name,
                                         [this, place](std::optional<kv::SegmentId> segment) {
                                           if (segment) {
                                             place->begin()->second = *segment;
                                             bos_.erase(place->begin()->first);
                                             bos_.merge(*place);
                                           }
                                           return Status();
                                         }));
  attempt.started.insert_or_assign(name, pending);
  attempt.pending.push_back(pending);
  return {};
}

// Of each part where its KV comes from. What this call has computed, `fresh`, counts as computed
// where it is used first, and has been taken out of it then.
ChunkService::Origins ChunkService::origins_of(const kv::ResolvedComposition& composition,
                                               Started& fresh) {
  Origins origins;
  const auto add = [&](const Name& name, std::string shown, std::int64_t tokens) {
    PartOrigin origin{.name = std::move(shown), .reused = tokens};
    if (const auto prefill = fresh.extract(name)) {
      origin.reused = prefill.mapped().channel->cached_tokens();
      origin.computed = tokens - origin.reused;
      origin.from_prefix_cache = true;
    }
    origins.push_back(std::move(origin));
  };
  if (composition.mode == ReuseMode::kExact) {
    return origins;  // its ids are a plain prompt
  }
  for (const kv::Part& part : composition.parts) {
    add({part.chunk->id, part.key}, part.chunk->id.substr(0, kShownDigits),
        std::ssize(*part.chunk->tokens));
  }
  const bool behind_bos = std::ranges::any_of(
      composition.parts, [](const kv::Part& part) { return part.key.before == kv::kBosVariant; });
  const Name bos = bos_name(composition.query.chunk->salt);
  if (behind_bos && fresh.contains(bos)) {
    add(bos, std::string(kv::kBosVariant), 1);
  }
  return origins;
}

// The request's sequence. Blending computes a part of the contexts again, here and now.
Result<SeqId> ChunkService::compose(const CompositionSpec& spec,
                                    const kv::ResolvedComposition& composition, Origins& origins,
                                    ReuseReport& reuse) {
  const kv::ComposeTail tail = {.tokens = *composition.query.chunk->tokens,
                                .position = composition.query.position};
  kv::Ledger& ledger = this->ledger();
  if (spec.mode != ReuseMode::kBlend) {
    reuse.sources = sources_of(origins, 0);
    return ledger.compose(composition.uses(), tail);
  }
  engine::EngineCore& core = engine_.core();
  QUIRE_TRY(const BlendResult blended, blend({.ledger = ledger,
                                              .store = core.shelves,
                                              .decoder = core.decoder(),
                                              .views = core.views,
                                              .max_rows = engine_.options().max_batch_tokens},
                                             spec.blend, composition));
  core.counters.tokens_computed += blended.recomputed_tokens;
  take_off(blended.recomputed, origins);
  reuse.sources = sources_of(origins, blended.recomputed_tokens);
  if (blended.context_tokens > 0) {
    reuse.recompute_share = static_cast<double>(blended.recomputed_tokens) /
                            static_cast<double>(blended.context_tokens);
  }
  auto sequence = ledger.compose(blended.uses, tail);
  for (const kv::SegmentId own : blended.own) {
    ledger.drop_segment(own);  // the sequence has it
  }
  return sequence;
}

Result<engine::NewRequest> ChunkService::request_for(const Run& run,
                                                     const kv::ResolvedComposition& composition,
                                                     Origins origins) {
  engine::NewRequest request{.kind = run.kind,
                             .session = run.options.session,
                             .salt = whose(run),
                             .streaming = run.streaming,
                             .notify = run.options.notify};
  if (run.kind == engine::RequestKind::kGenerate) {
    request.params = *run.params;
  }
  request.params.max_tokens = max_new_tokens(run, composition);
  const bool plain = composition.mode == ReuseMode::kExact;
  request.observer = std::make_shared<Use>(registry_, *run.spec, run.observer,
                                           plain && !run.counted ? &ledger() : nullptr);
  if (plain) {
    request.prompt = composition.joined();
    if (run.kind == engine::RequestKind::kForwardAll) {  // of the query; cached rows have no logits
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
  QUIRE_TRY(composed.sequence, compose(*run.spec, composition, origins, composed.reuse));
  composed.cached_tokens = reused_tokens(origins);
  request.composed = std::move(composed);
  return request;
}

Status ChunkService::start_runs(std::span<const Run> runs, Attempt& attempt) {
  std::vector<engine::NewRequest> requests;
  const auto close_all = [&] {
    for (const engine::NewRequest& request : requests) {
      if (request.composed) {
        ledger().close(request.composed->sequence);
      }
    }
  };
  attempt.origins.clear();
  attempt.channels.clear();  // of a visit that was refused memory
  Started fresh = attempt.started;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    attempt.origins.push_back(origins_of(attempt.compositions[i], fresh));
    auto request = request_for(runs[i], attempt.compositions[i], attempt.origins.back());
    if (!request.ok()) {
      close_all();
      return std::move(request).error();
    }
    requests.push_back(std::move(request).value());
  }
  return engine_.enqueue(std::move(requests), attempt.channels);
}

std::vector<tiers::BackgroundLoads::LoadRef> ChunkService::loads_of(
    const Compositions& compositions) const {
  const tiers::BackgroundLoads& under_way = tiers_.background_loads();
  std::vector<tiers::BackgroundLoads::LoadRef> loads;
  for (const kv::ResolvedComposition& composition : compositions) {
    if (composition.mode == ReuseMode::kExact || under_way.idle()) {
      continue;  // its ids are a plain prompt
    }
    for (const kv::SegmentUse& use : composition.uses()) {
      std::ranges::move(under_way.filling(ledger().segment(use.segment)->blocks().ids()),
                        std::back_inserter(loads));
    }
  }
  return loads;
}

// Chunks that were deleted while the run waited for their KV are not used any more.
void ChunkService::count_use(const Run& run, std::span<const PartOrigin> origins) {
  for (const PartOrigin& origin : origins) {  // the request reports them, and its prefill has
    engine_.core().counters.tokens_reused -= origin.from_prefix_cache ? origin.reused : 0;
  }
  if (!run.counted) {
    return;
  }
  const kv::SessionRef session = engine_.sessions().named(run.options.session, whose(run));
  for (const std::string& id : chunk_ids(*run.spec)) {
    if (registry_.find(id) != nullptr) {
      registry_.use(id, session);
      note_use(id, whose(run));
    }
  }
  registry_.count(whose(run), std::ranges::count(origins, 0, &PartOrigin::computed), 0);
}

void ChunkService::count_uses(std::span<const Run> runs, Attempt& attempt) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    count_use(runs[i], attempt.origins[i]);
  }
  attempt.in_use.clear();
}

Result<std::string> ChunkService::salt_of(const Run& run) const {
  const std::string& salt = run.spec->salt;
  QUIRE_TRY_STATUS(engine::SessionService::check_salt("salt", salt));
  QUIRE_TRY_STATUS(engine::SessionService::check_user(run.options));
  if (!salt.empty() && !run.options.salt.empty() && salt != run.options.salt) {
    return {ErrorCode::kInvalidArgument,
            "the composition is another salt's than the request; give that one, or none"};
  }
  return whose(run);
}

const std::string& ChunkService::whose(const Run& run) const {
  return engine_.salt_of(run.spec->salt.empty() ? run.options.salt : run.spec->salt);
}

}  // namespace quire::chunks
