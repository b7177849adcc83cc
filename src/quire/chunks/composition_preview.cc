#include "quire/chunks/composition_preview.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/chunk_types.h"
#include "quire/chunks/blend.h"
#include "quire/chunks/chunk_core.h"
#include "quire/chunks/chunk_library.h"
#include "quire/chunks/chunk_prefills.h"
#include "quire/chunks/composition_planner.h"
#include "quire/chunks/layer_blend.h"
#include "quire/chunks/narrowing.h"
#include "quire/engine/engine.h"
#include "quire/engine/host_tier.h"
#include "quire/engine/reuse_grade.h"
#include "quire/engine/session_service.h"
#include "quire/kv/block_table.h"
#include "quire/kv/chunk_anchor.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/composition.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/segment.h"
#include "quire/kv/types.h"
#include "quire/model/layer_plan.h"
#include "quire/model/state_shape.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/text/tokenizer.h"
#include "quire/tiers/reload_policy.h"
#include "quire/tiers/tier_service.h"
#include "quire/types.h"

namespace quire::chunks {

namespace {

CompositionInfo::Segment segment_of(const kv::Part& part, const ChunkCore& core) {
  return {.chunk_id = part.chunk->id,
          .type = part.chunk->type,
          .num_tokens = std::ssize(*part.chunk->tokens),
          .token_ids = part.chunk->tokens,
          .position = part.position,
          .kv_dtype = core.kv_name(part.chunk->format)};
}

std::span<CompositionInfo::Segment> all_but_query(CompositionInfo& info) {
  return std::span(info.segments).first(info.segments.size() - 1);
}

std::int64_t map_blocks_of(const kv::Segment& segment) {
  return segment.maps() == nullptr ? 0 : segment.maps()->size();
}

std::int64_t blocks_for(std::int64_t tokens, const kv::Ledger& ledger) {
  const std::int64_t block_tokens = ledger.config().block_tokens;
  return (tokens + block_tokens - 1) / block_tokens;
}

// Returns how layers of each kind use a part, where some carry a state.
std::string layers_of(const kv::Part& part, model::MixerKind kind) {
  const bool is_tail = kind == model::MixerKind::kShortConv;
  const char* const inputs = part.key.before.empty()              ? "inputs of the chunk alone"
                             : part.key.before == kv::kBosVariant ? "inputs from behind a BOS token"
                                                                  : "inputs from behind the anchor";
  return base::str_cat("attention: stored keys and values; ", model::mixer_name(kind), ": ",
                       is_tail ? "last inputs" : "map on the state", ", ", inputs);
}

// Counts blocks of segments. Segments that begin alike may share blocks, from the first one on.
// Those in other formats than the pool's own are counted by segments, since these share none.
class DistinctBlocks {
 public:
  // Returns how many of `blocks` are new. Cost: O(1), and O(blocks) where some are known.
  std::int64_t add(std::span<const BlockId> blocks) {
    std::vector<std::span<const BlockId>>& alike = by_first_[blocks.front()];
    std::int64_t known = 0;
    for (const std::span<const BlockId> other : alike) {
      const auto differ = std::ranges::mismatch(blocks, other).in1;
      known = std::max<std::int64_t>(known, differ - blocks.begin());
    }
    alike.push_back(blocks);
    return std::ssize(blocks) - known;
  }

 private:
  std::map<BlockId, std::vector<std::span<const BlockId>>> by_first_;
};

// Bytes of KV in other formats than the pool's own.
struct CodedBytes {
  std::int64_t all = 0;
  std::int64_t missing = 0;

  void add(std::int64_t bytes, bool is_there) {
    all += bytes;
    missing += is_there ? 0 : bytes;
  }
  // Adds them as blocks of the pool's own format, rounded up. memory_bytes gets what rounding adds,
  // to be taken off.
  void add_to(CompositionInfo& info, std::int64_t block_bytes) const {
    const auto blocks = [&](std::int64_t bytes) { return (bytes + block_bytes - 1) / block_bytes; };
    info.num_blocks += blocks(all);
    info.new_blocks += blocks(missing);
    info.memory_bytes += all - blocks(all) * block_bytes;
  }
};

// Adds the cost of blend as take_off() does: tokens that are computed twice come off what is reused
// elsewhere.
void add_blend(const BlendCost& cost, CompositionInfo& info) {
  info.tokens_computed += cost.tokens;
  info.tokens_reused = std::max<std::int64_t>(0, info.tokens_reused - cost.tokens);
  info.num_blocks += cost.blocks;
  info.new_blocks += cost.blocks;
}

}  // namespace

// Foresees which saved chunks and which of their KV a run would bring back. Decides as adopt() and
// read_variants() do, in the same order, but reads nothing: the run computes KV that turns out to
// be damaged.
class CompositionPreview::Foresight {
 public:
  Foresight(ChunkCore& core, ChunkPrefills& prefills, ChunkLibrary& library,
            const std::string& salt)
      : core_(core),
        prefills_(prefills),
        library_(library),
        salt_(salt),
        policy_(core.tiers.reload_policy().forecast()) {}

  void adopt(const std::string& id) {
    const auto saved = library_.saved_chunk(id, salt_);
    if (saved && (saved->anchor.empty() || adopts_anchor(saved->anchor))) {
      adopt_saved(*saved);
    }
  }

  void read_variants(const kv::ResolvedComposition& composition) {
    for (const kv::Part& part : composition.missing()) {
      const kv::VariantName name{part.chunk->id, part.key};
      if (part.key != kv::registered_key(*part.chunk) && may_read(*part.chunk, part.key)) {
        (policy_.reads_next() ? read_ : not_read_).insert(name);
      }
    }
  }

  [[nodiscard]] Result<const kv::Chunk*> find(const std::string& id) const {
    const auto saved = chunks_.find(id);
    return saved == chunks_.end() ? core_.registry.get(id, salt_)
                                  : Result<const kv::Chunk*>(&saved->second);
  }

  // Returns whether absent KV comes without being computed for this run: somebody else may be at it
  // already.
  [[nodiscard]] bool brings(const kv::Part& part) const {
    const kv::VariantName name{part.chunk->id, part.key};
    return read_.contains(name) || prefills_.is_under_way(name);
  }

  // Returns why KV that is not there is not read either.
  [[nodiscard]] std::string why_not(const kv::Part& part) const {
    const kv::VariantName name{part.chunk->id, part.key};
    if (not_read_.contains(name) || library_.computes_instead(name)) {
      return core_.tiers.reload_policy().why_not_read();
    }
    const bool has_other = !part.chunk->variants.empty() ||
                           read_.contains({part.chunk->id, kv::registered_key(*part.chunk)});
    if (kv::is_chained(part.key)) {
      return "computed anew in mode exact";
    }
    return has_other ? "computed under another anchor, not yet under this one" : kNotComputedYet;
  }

 private:
  bool adopts_anchor(std::string_view anchor) {
    const std::vector<std::string_view> ids = anchor_ids(anchor);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto before = std::span(ids).first(i);
      const auto saved = library_.saved_chunk(std::string(ids[i]), salt_);
      if (saved && kv::check_in_anchor(*saved, before).ok()) {
        adopt_saved(*saved);
      }
      const auto known = find(std::string(ids[i]));
      if (!known.ok() || !kv::check_in_anchor(**known, before).ok()) {
        return false;
      }
    }
    return true;
  }

  void adopt_saved(const kv::Chunk& saved) {
    const kv::VariantName name{saved.id, kv::registered_key(saved)};
    if (chunks_.contains(saved.id) || prefills_.is_under_way(name)) {
      return;
    }
    const bool is_system = saved.type == ChunkType::kSystemPrompt;
    const bool has_kv = core_.needs_kv(saved);
    const bool in_turn = has_kv && (is_system || saved.converted || policy_.reads_next());
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
    return !prefills_.is_under_way({chunk.id, key}) && library_.has_kv(chunk, key);
  }

  ChunkCore& core_;
  ChunkPrefills& prefills_;
  ChunkLibrary& library_;
  const std::string& salt_;
  tiers::ReloadPolicy::Forecast policy_;
  std::map<std::string, kv::Chunk> chunks_;    // chunks that are on disk alone
  std::set<kv::VariantName> read_, not_read_;  // KV that is; of the latter computing is faster
};

// Describes a plain prompt, of which the prefix cache may have a part.
void CompositionPreview::describe_exact(const kv::ResolvedComposition& composition,
                                        CompositionInfo& info) const {
  const kv::Ledger& ledger = core_.ledger();
  const std::vector<TokenId> prompt = composition.joined();
  const std::string& salt = composition.query.chunk->salt;
  const kv::PrefixMatch match = ledger.cache().probe(prompt, salt);
  const std::int32_t usable =
      std::max(match.tokens, engine::host_prefix(core_.engine.core(), prompt, salt));
  const std::int64_t contexts_end = info.total_tokens - info.segments.back().num_tokens;
  const std::string miss =
      usable < contexts_end ? kv::to_text(ledger.cache().explain(prompt, salt, usable)) : "";
  std::int64_t end = 0;
  for (CompositionInfo::Segment& segment : all_but_query(info)) {
    end += segment.num_tokens;
    segment.cached = end <= usable;
    segment.why_not = segment.cached ? "" : miss;
  }
  info.num_levels = 1;
  info.tokens_reused = usable;
  info.tokens_known = std::max(match.known_tokens, usable);
  info.tokens_computed = info.total_tokens - usable;
  info.num_blocks = blocks_for(info.total_tokens, ledger);
  info.new_blocks = info.num_blocks - match.blocks;
}

// Describes chunks with KV of their own. Missing KV is computed once, at its first place, all of it
// before blend computes some again.
void CompositionPreview::describe_composed(const kv::ResolvedComposition& composition,
                                           const Foresight& foresight,
                                           CompositionInfo& info) const {
  const kv::Ledger& ledger = core_.ledger();
  const std::string& salt = composition.query.chunk->salt;
  const std::int64_t query = info.segments.back().num_tokens;
  info.num_levels = std::ssize(info.segments);
  info.tokens_computed = query;
  info.num_blocks = info.new_blocks = blocks_for(query, ledger);
  bool wants_bos = false;
  std::set<kv::VariantName> seen;
  DistinctBlocks held;
  CodedBytes coded;
  for (std::size_t i = 0; i < composition.parts.size(); ++i) {
    const kv::Part& part = composition.parts[i];
    CompositionInfo::Segment& segment = info.segments[i];
    const bool first = seen.emplace(part.chunk->id, part.key).second;
    segment.cached = !first || part.segment || foresight.brings(part);
    segment.why_not = segment.cached ? "" : foresight.why_not(part);
    if (part.format != kv::kOwnFormat) {
      coded.add(first ? core_.registry.room().bytes_for(*part.chunk) : 0, part.segment.has_value());
    } else if (part.segment) {
      info.num_blocks += held.add(ledger.segments().find(*part.segment)->blocks().ids());
      info.num_blocks += first ? map_blocks_of(*ledger.segments().find(*part.segment)) : 0;
    } else if (first) {
      const std::int64_t blocks =
          blocks_for(segment.num_tokens, ledger) + core_.map_blocks(segment.num_tokens);
      info.num_blocks += blocks;
      info.new_blocks += blocks;
    }
    if (segment.cached) {
      info.tokens_reused += segment.num_tokens;
      continue;
    }
    // Computed behind nothing it is a plain prompt.
    const bool plain = part.key.before.empty() && core_.options.enable_deduplication &&
                       part.format == kv::kOwnFormat && !core_.has_states();
    const kv::PrefixMatch match =
        plain ? ledger.cache().probe(*segment.token_ids, salt, kv::BehindWindow::kKeeps)
              : kv::PrefixMatch{};
    info.tokens_reused += match.tokens;
    info.tokens_computed += segment.num_tokens - match.tokens;
    info.new_blocks -= match.blocks;
    wants_bos = wants_bos || part.key.before == kv::kBosVariant;
  }
  coded.add_to(info, ledger.config().block_bytes(kv::kOwnFormat));
  if (wants_bos && !prefills_.has_bos(salt) &&
      !prefills_.is_under_way(ChunkPrefills::bos_name(salt))) {
    const std::int64_t blocks = 1 + core_.map_blocks(1);
    ++info.tokens_computed;
    info.num_blocks += blocks;
    info.new_blocks += blocks;
  }
}

// Asks the segments of a composition that meet as if each stood alone.
std::optional<bool> CompositionPreview::each_retokenizes_alike(const CompositionInfo& info) {
  bool all_known = true;
  bool all_alike = true;
  [[maybe_unused]] const Status closed = core_.engine.thread().call([&] {
    for (const CompositionInfo::Segment& segment : info.segments) {
      const kv::Chunk* const chunk = core_.registry.find(segment.chunk_id);
      const bool known = chunk != nullptr && chunk->retokenizes_alike.has_value();
      all_known = all_known && known;
      all_alike = all_alike && (!known || *chunk->retokenizes_alike);
    }
  });
  return all_known || !all_alike ? std::optional(all_alike) : std::nullopt;
}

bool CompositionPreview::retokenizes_alike(const CompositionInfo& info) {
  if (core_.engine.text() == nullptr) {
    return true;
  }
  const text::Tokenizer& tokenizer = core_.engine.text()->tokenizer;
  const bool apart = std::all_of(info.segments.begin() + 1, info.segments.end(),
                                 [&](const CompositionInfo::Segment& segment) {
                                   return tokenizer.stands_apart(segment.token_ids->front());
                                 });
  const std::optional<bool> each = apart ? each_retokenizes_alike(info) : std::nullopt;
  return each ? *each : tokenizer.retokenizes_alike(info.token_ids());
}

Result<CompositionInfo> CompositionPreview::preview(const CompositionSpec& spec) {
  QUIRE_TRY_STATUS(engine::SessionService::check_salt("salt", spec.salt));
  return core_.engine.thread().ask<CompositionInfo>([&] { return preview_now(spec); });
}

Result<CompositionInfo> CompositionPreview::preview_now(const CompositionSpec& spec) {
  const std::string& salt = core_.engine.salt_of(spec.salt);
  Foresight foresight(core_, prefills_, library_, salt);
  for (const std::string& id : CompositionPlanner::chunk_ids(spec)) {
    foresight.adopt(id);
  }
  QUIRE_TRY_STATUS(core_.check_mode(spec));
  QUIRE_TRY(const auto composition,
            kv::resolve([&](const std::string& id) { return foresight.find(id); }, spec,
                        core_.model_shape()));
  QUIRE_TRY_STATUS(planner_.check_positions(composition));
  QUIRE_TRY_STATUS(planner_.check_layers(spec, composition));
  foresight.read_variants(composition);
  CompositionInfo info{.mode = composition.mode,
                       .grade = engine::graded(composition.grade, core_.engine.same_bits()),
                       .total_tokens = composition.num_tokens()};
  for (const kv::Part& part : composition.missing()) {
    QUIRE_TRY_STATUS(foresight.brings(part) ? Status()
                                            : check_computable(core_, *part.chunk, part.key));
  }
  for (const kv::Part& part : composition.parts) {
    info.segments.push_back(segment_of(part, core_));
  }
  info.segments.push_back(segment_of(composition.query, core_));
  info.segments.back().why_not = kQueryIsComputed;
  info.segments.back().kv_dtype = core_.kv_name(kv::kOwnFormat);
  if (composition.plain()) {
    for (CompositionInfo::Segment& segment : info.segments) {
      segment.kv_dtype = core_.kv_name(kv::kOwnFormat);  // a plain prompt
    }
    describe_exact(composition, info);
  } else {
    describe_composed(composition, foresight, info);
    for (std::size_t i = 0; core_.has_states() && i < composition.parts.size(); ++i) {
      info.segments[i].layers =
          layers_of(composition.parts[i], core_.engine.model_config().state.kind);
    }
  }
  if (composition.mode == ReuseMode::kBlend) {
    const std::int32_t block_tokens = core_.ledger().config().block_tokens;
    BlendCost cost = is_by_layers(spec.blend)
                         ? layer_blend_cost(spec.blend, composition, block_tokens,
                                            core_.engine.model_config().layers)
                         : blend_cost(spec.blend, composition, block_tokens);
    for (const kv::Part& part : composition.parts) {  // contexts have maps of their own then
      const bool is_context = part.chunk->type == ChunkType::kContext;
      cost.blocks += is_context ? core_.map_blocks(std::ssize(*part.chunk->tokens)) : 0;
    }
    add_blend(cost, info);
  }
  info.tokens_known = std::max(info.tokens_known, info.tokens_reused);
  info.memory_bytes += info.num_blocks * core_.engine.core().counters.block_bytes;
  return info;
}

std::vector<ReusePart> parts_of(const CompositionInfo& info) {
  const std::int64_t to_replay = std::min(info.tokens_known, info.total_tokens - 1);
  std::vector<ReusePart> parts;
  parts.reserve(info.segments.size());
  for (const CompositionInfo::Segment& segment : info.segments) {
    parts.push_back({.chunk_type = std::string(chunk_type_name(segment.type)),
                     .chunk_id = segment.chunk_id,
                     .position = segment.position,
                     .tokens = segment.num_tokens,
                     .hit = segment.cached,
                     .reason = segment.cached ? "hit" : segment.why_not,
                     .matched_tokens = info.tokens_known,
                     .usable_tokens = info.tokens_reused,
                     .replayed_tokens = std::max<std::int64_t>(to_replay - info.tokens_reused, 0),
                     .kv_dtype = segment.kv_dtype,
                     .layers = segment.layers});
  }
  return parts;
}

}  // namespace quire::chunks
