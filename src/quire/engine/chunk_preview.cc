// What running a composition would do, without doing it. The rest of ChunkService:
// chunk_service.cc.
#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/chunks.h"
#include "quire/engine/blend.h"
#include "quire/engine/chunk_service.h"
#include "quire/engine/chunk_store.h"
#include "quire/engine/engine.h"
#include "quire/engine/reload_pace.h"
#include "quire/engine/reuse_grade.h"
#include "quire/engine/tier_service.h"
#include "quire/kv/chunk_registry.h"
#include "quire/kv/composition.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::engine {

// Which saved chunks and which of their KV a run would bring back. The same decisions as those of
// adopt() and read_variants(), in the same order, but nothing is read: KV that turns out to be
// damaged is computed by the run.
class ChunkService::Foresight {
 public:
  explicit Foresight(ChunkService& service)
      : service_(service), pace_(service.engine_.tiers().pace().forecast()) {}

  void adopt(const std::string& id) {
    const auto saved = service_.saved_chunk(id);
    if (saved && (saved->anchor.empty() || adopts_anchor(saved->anchor))) {
      adopt_saved(*saved);
    }
  }

  void read_variants(const kv::ResolvedComposition& composition) {
    for (const kv::Part& part : composition.missing()) {
      const Name name{part.chunk->id, part.key};
      if (part.key != kv::registered_key(*part.chunk) && may_read(*part.chunk, part.key)) {
        (pace_.reads_next() ? read_ : not_read_).insert(name);
      }
    }
  }

  [[nodiscard]] Result<const kv::Chunk*> find(const std::string& id) const {
    const auto saved = chunks_.find(id);
    return saved == chunks_.end() ? service_.registry_.get(id)
                                  : Result<const kv::Chunk*>(&saved->second);
  }

  [[nodiscard]] bool reads(const kv::Part& part) const {
    return read_.contains({part.chunk->id, part.key});
  }

  // Of KV that is neither there nor read.
  [[nodiscard]] std::string why_not(const kv::Part& part) const {
    const Name name{part.chunk->id, part.key};
    if (not_read_.contains(name) || service_.not_read_.contains(name)) {
      return service_.engine_.tiers().pace().why_not_read();
    }
    const bool has_other = !part.chunk->variants.empty() ||
                           read_.contains({part.chunk->id, kv::registered_key(*part.chunk)});
    return has_other ? "computed under another anchor, not yet under this one" : kNotComputedYet;
  }

 private:
  bool adopts_anchor(const std::string& id) {
    const auto saved = service_.saved_chunk(id);
    if (saved && saved->type == ChunkType::kSystemPrompt) {
      adopt_saved(*saved);
    }
    const auto known = find(id);
    return known.ok() && (*known)->type == ChunkType::kSystemPrompt;
  }

  void adopt_saved(const kv::Chunk& saved) {
    const Name name{saved.id, kv::registered_key(saved)};
    if (chunks_.contains(saved.id) || service_.pending_.contains(name)) {
      return;
    }
    const bool is_system = saved.type == ChunkType::kSystemPrompt;
    const bool has_kv = service_.needs_kv(saved);
    const bool in_turn = has_kv && (is_system || pace_.reads_next());
    const bool reads = in_turn && may_read(saved, name.second);
    if (has_kv && is_system && !reads) {
      return;
    }
    if (has_kv && !in_turn) {
      not_read_.insert(name);
    }
    if (reads) {
      read_.insert(name);
    }
    chunks_.emplace(saved.id, saved);
  }

  [[nodiscard]] bool may_read(const kv::Chunk& chunk, const kv::VariantKey& key) const {
    return service_.store_ != nullptr && !service_.pending_.contains({chunk.id, key}) &&
           service_.store_->has_kv(chunk.id, service_.object_of(chunk, key));
  }

  ChunkService& service_;
  ReloadPace::Forecast pace_;
  std::map<std::string, kv::Chunk> chunks_;  // that are on disk alone
  std::set<Name> read_, not_read_;           // KV that is; of the latter computing is faster
};

CompositionInfo ChunkService::describe(const CompositionSpec& spec,
                                       const kv::ResolvedComposition& composition,
                                       const Foresight& foresight) const {
  CompositionInfo info{.mode = composition.mode,
                       .grade = graded(composition.grade, engine_.same_bits()),
                       .total_tokens = composition.num_tokens()};
  const kv::Ledger& ledger = this->ledger();
  const std::int64_t block_tokens = ledger.config().block_tokens;
  const auto blocks_for = [&](std::int64_t tokens) {
    return (tokens + block_tokens - 1) / block_tokens;
  };
  const bool exact = composition.mode == ReuseMode::kExact;
  const std::vector<TokenId> prompt = exact ? composition.joined() : std::vector<TokenId>();
  const kv::PrefixMatch match = exact ? ledger.probe(prompt, options_.salt) : kv::PrefixMatch{};
  const std::int64_t query = std::ssize(*composition.query.chunk->tokens);
  const bool misses = exact && match.tokens < info.total_tokens - query;
  const std::string miss = misses ? kv::to_text(ledger.explain(prompt, options_.salt)) : "";
  std::int64_t seen = 0;
  std::set<std::pair<const kv::Chunk*, kv::VariantKey>> counted;
  for (const kv::Part& part : composition.parts) {
    const std::int64_t tokens = std::ssize(*part.chunk->tokens);
    const bool cached =
        exact ? seen + tokens <= match.tokens : part.segment.has_value() || foresight.reads(part);
    seen += tokens;
    info.segments.push_back({.chunk_id = part.chunk->id,
                             .type = part.chunk->type,
                             .num_tokens = tokens,
                             .token_ids = part.chunk->tokens,
                             .position = part.position,
                             .cached = cached,
                             .why_not = cached  ? ""
                                        : exact ? miss
                                                : foresight.why_not(part)});
    const bool first = counted.insert({part.chunk, part.key}).second;
    info.num_blocks += first && !exact ? blocks_for(tokens) : 0;
    info.new_blocks += first && !exact && !part.segment ? blocks_for(tokens) : 0;
    info.tokens_reused += cached && !exact ? tokens : 0;
  }
  info.segments.push_back({.chunk_id = composition.query.chunk->id,
                           .type = composition.query.chunk->type,
                           .num_tokens = query,
                           .token_ids = composition.query.chunk->tokens,
                           .position = composition.query.position,
                           .why_not = kQueryIsComputed});
  const std::int64_t own = exact ? info.total_tokens : query;
  info.tokens_reused += match.tokens;
  if (spec.mode == ReuseMode::kBlend) {
    const BlendCost cost = blend_cost(spec.blend, composition, ledger.config().block_tokens);
    info.tokens_reused = std::max<std::int64_t>(0, info.tokens_reused - cost.tokens);
    info.new_blocks += cost.blocks;
  }
  info.tokens_computed = info.total_tokens - info.tokens_reused;
  info.num_levels = exact ? 1 : std::ssize(composition.parts) + 1;
  info.num_blocks += blocks_for(own);
  info.new_blocks += blocks_for(own) - match.blocks;
  info.memory_bytes = info.num_blocks * engine_.counters_.block_bytes;
  return info;
}

Result<CompositionInfo> ChunkService::preview(const CompositionSpec& spec) {
  return engine_.ask<CompositionInfo>([&]() -> Result<CompositionInfo> {
    Foresight foresight(*this);
    for (const std::string& id : chunk_ids(spec)) {
      foresight.adopt(id);
    }
    QUIRE_TRY(
        const auto composition,
        kv::resolve([&](const std::string& id) { return foresight.find(id); }, spec, windowed()));
    QUIRE_TRY_STATUS(check_positions(composition));
    foresight.read_variants(composition);
    return describe(spec, composition, foresight);
  });
}

}  // namespace quire::engine
