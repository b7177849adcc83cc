#include "quire/kv/composition.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/str.h"
#include "quire/chunk_types.h"
#include "quire/kv/chunk_anchor.h"
#include "quire/kv/chunk_id.h"
#include "quire/kv/chunk_registry.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/format.h"
#include "quire/kv/types.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {
namespace {

Status invalid(std::string message) { return {ErrorCode::kInvalidComposition, std::move(message)}; }

Result<Part> part_of(const FindChunk& find, const std::string& id, ChunkType type) {
  QUIRE_TRY(const Chunk* chunk, find(id));
  if (chunk->type != type) {
    return Error{.code = ErrorCode::kInvalidComposition,
                 .message = base::str_cat("chunk ", id.substr(0, 12), "... is a ",
                                          chunk_type_name(chunk->type), " chunk, not a ",
                                          chunk_type_name(type), " chunk"),
                 .chunk_id = id};
  }
  return Part{.chunk = chunk, .format = chunk->format};
}

std::int64_t tokens_of(const Part& part) { return std::ssize(*part.chunk->tokens); }

// Returns the mode that blend starts from, or the mode itself.
ReuseMode base_mode(const CompositionSpec& spec) {
  return spec.mode == ReuseMode::kBlend ? spec.blend.base : spec.mode;
}

Status check_mode(const CompositionSpec& spec) {
  const bool has_base =
      spec.blend.base == ReuseMode::kAnchored || spec.blend.base == ReuseMode::kIndependent;
  if (spec.mode == ReuseMode::kBlend && !has_base) {
    return invalid(base::str_cat("blend starts from mode anchored or independent, not ",
                                 reuse_mode_name(spec.blend.base)));
  }
  const bool moves = spec.positions != Positions::kConcat;
  if (moves && (spec.mode == ReuseMode::kExact || spec.mode == ReuseMode::kBlend)) {
    return invalid(base::str_cat("mode ", reuse_mode_name(spec.mode),
                                 " is defined for positions \"concat\" only"));
  }
  if (spec.computed_in_place && base_mode(spec) != ReuseMode::kAnchored) {
    return invalid("computed_in_place belongs to mode anchored, or to blend on its base");
  }
  if (spec.bos_sink && spec.mode != ReuseMode::kIndependent) {
    return invalid("a BOS sink belongs to mode independent");
  }
  return {};
}

Status check_starts(std::span<const std::int32_t> starts, std::size_t num_segments) {
  if (starts.size() != num_segments) {
    return invalid(base::str_cat("positions has ", starts.size(), " starts for ", num_segments,
                                 " segments; give one for each, system and query included"));
  }
  for (std::size_t i = 0; i < starts.size(); ++i) {
    if (starts[i] < 0) {
      return invalid(base::str_cat("positions[", i, "] is ", starts[i], "; give 0 or more"));
    }
  }
  return {};
}

// Refuses what is wrong whatever the chunks are; `num_segments` of them, system and query included.
Status check_spec(const CompositionSpec& spec, std::size_t num_segments) {
  QUIRE_TRY_STATUS(check_mode(spec));
  if (spec.positions == Positions::kFixed) {
    QUIRE_TRY_STATUS(check_starts(spec.fixed, num_segments));
  }
  const double share = spec.blend.share;
  if (spec.mode == ReuseMode::kBlend && !(share >= 0 && share <= 1)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("recompute is ", share, "; give a share from 0 to 1")};
  }
  return {};
}

// Checks the tokens that blend recomputes.
Status check_blended(const Blend& blend, std::int64_t num_tokens) {
  if (blend.selector == Selector::kExplicit) {
    for (const std::int32_t token : blend.tokens) {
      if (token < 0 || token >= num_tokens) {
        return {ErrorCode::kInvalidArgument, base::str_cat("recompute names token ", token,
                                                           " of a composition of ", num_tokens)};
      }
    }
  }
  return {};
}

// Returns the anchor that contexts are computed behind, in this mode.
std::string before_contexts(const CompositionSpec& spec) {
  if (base_mode(spec) == ReuseMode::kAnchored) {
    return spec.system_chunk_id;
  }
  return std::string(spec.bos_sink ? kBosVariant : "");
}

// Returns the anchor that a context is computed behind: its own one where the chunks of that stand
// before it, else `anchor`.
std::string anchor_in_place(const Chunk& chunk, std::span<const Part> parts,
                            const CompositionSpec& spec, const std::string& anchor) {
  if (base_mode(spec) != ReuseMode::kAnchored || spec.computed_in_place || chunk.anchor.empty() ||
      chunk.anchor == anchor) {
    return anchor;
  }
  std::vector<std::string_view> before;
  for (const Part& part : parts) {
    before.push_back(part.chunk->id);
  }
  if (spec.system_chunk_id.empty()) {  // contexts of the anchor begin anywhere
    const std::string_view first = anchor_ids(chunk.anchor).front();
    before.erase(before.begin(), std::ranges::find(before, first));
  }
  return stands_within(chunk.anchor, before) ? chunk.anchor : anchor;
}

void place_fixed(const CompositionSpec& spec, ResolvedComposition& composition) {
  for (std::size_t i = 0; i < composition.parts.size(); ++i) {
    composition.parts[i].position = spec.fixed[i];
  }
  composition.query.position = spec.fixed.back();
}

Status place(const CompositionSpec& spec, std::size_t num_systems,
             ResolvedComposition& composition) {
  if (spec.positions == Positions::kFixed) {
    place_fixed(spec, composition);
    return {};
  }
  std::int64_t next = 0;   // behind what was placed
  std::int64_t start = 0;  // start of parallel contexts
  std::int64_t end = 0;
  for (std::size_t i = 0; i < composition.parts.size(); ++i) {
    Part& part = composition.parts[i];
    const bool parallel = spec.positions == Positions::kParallel && i >= num_systems;
    part.position = static_cast<std::int32_t>(parallel ? start : next);
    next = part.position + tokens_of(part);
    end = std::max(end, next);
    start = i < num_systems ? next : start;
    if (end + tokens_of(composition.query) > std::numeric_limits<std::int32_t>::max()) {
      return {ErrorCode::kOverflow, base::str_cat("the composition has over ", end, " positions")};
    }
  }
  composition.query.position = static_cast<std::int32_t>(end);
  return {};
}

// Sets the gap of each context to the system chunk. Contexts computed in place have other KV at
// every distance from it.
Status set_gaps(ResolvedComposition& composition) {
  const Part& system = composition.parts.front();
  for (Part& part : std::span(composition.parts).subspan(1)) {
    if (part.position < system.position) {
      return invalid(base::str_cat("a context at position ", part.position,
                                   " stands before the system chunk at ", system.position,
                                   ", which it should have seen; move it, or leave out "
                                   "computed_in_place"));
    }
    part.key.gap = static_cast<std::int32_t>(std::int64_t{part.position} - system.position -
                                             tokens_of(system));
  }
  return {};
}

// Returns whether every part begins where the one before it ends, as in a plain prompt.
bool in_line(const ResolvedComposition& composition) {
  std::int64_t next =
      composition.parts.empty() ? composition.query.position : composition.parts.front().position;
  for (const Part& part : composition.parts) {
    if (part.position != next) {
      return false;
    }
    next += std::ssize(*part.chunk->tokens);
  }
  return composition.query.position == next;
}

// Returns whether every token of a context is computed again. A list may name others too, and some
// twice.
bool recomputes_all(const CompositionSpec& spec, const ResolvedComposition& composition,
                    std::int32_t layers) {
  if (spec.mode != ReuseMode::kBlend || spec.blend.only_layer) {
    return false;
  }
  if (spec.blend.layers) {
    return spec.blend.layers->first == 0 && spec.blend.layers->last >= layers;
  }
  if (spec.blend.selector == Selector::kNone) {
    return false;
  }
  if (spec.blend.selector != Selector::kExplicit) {
    return spec.blend.selector == Selector::kAll || spec.blend.share >= 1;
  }
  const bool has_system = !spec.system_chunk_id.empty();
  const std::int64_t first = has_system ? std::ssize(*composition.parts.front().chunk->tokens) : 0;
  const std::int64_t end = composition.num_tokens() - std::ssize(*composition.query.chunk->tokens);
  const std::set<std::int32_t> tokens(spec.blend.tokens.begin(), spec.blend.tokens.end());
  return std::ranges::count_if(tokens, [&](std::int32_t token) {
           return token >= first && token < end;
         }) == end - first;
}

// Returns whether KV of a part is not what a plain prompt has, whose format is the pool's. Rows
// that are computed again have that format, too.
bool has_changed_kv(const CompositionSpec& spec, const ResolvedComposition& composition,
                    const ModelShape& model) {
  const bool anew = !spec.blend.layers && recomputes_all(spec, composition, model.layers);
  const std::size_t systems = spec.system_chunk_id.empty() ? 0 : 1;
  const auto stored = std::span(composition.parts).first(anew ? systems : composition.parts.size());
  return std::ranges::any_of(stored,
                             [&](const Part& part) { return model.changes_kv[part.format.value]; });
}

// Returns the grade of the result. Every token sees all before it when each context was computed
// behind all chunks before it, at the distances of a plain prompt.
ReuseGrade grade_of(const CompositionSpec& spec, const ResolvedComposition& composition,
                    const ModelShape& model) {
  if (has_changed_kv(spec, composition, model)) {
    return ReuseGrade::kApproximate;
  }
  if (spec.mode == ReuseMode::kExact) {  // a plain prompt is one run
    return composition.chained ? ReuseGrade::kEqualMath : ReuseGrade::kExact;
  }
  const bool maps_states = model.has_states && !composition.parts.empty();
  if (maps_states || std::ranges::any_of(composition.parts,
                                         [](const Part& part) { return part.chunk->converted; })) {
    return ReuseGrade::kApproximate;
  }
  bool sees_all = true;
  for (std::size_t i = 0; i < composition.parts.size(); ++i) {
    sees_all = sees_all && anchor_ids(composition.parts[i].key.before).size() == i;
  }
  const bool same = in_line(composition) && !spec.bos_sink &&
                    (sees_all || recomputes_all(spec, composition, model.layers));
  return same ? ReuseGrade::kEqualMath : ReuseGrade::kApproximate;
}

std::vector<SegmentUse> uses_of(std::span<const Part> parts) {
  std::vector<SegmentUse> uses;
  uses.reserve(parts.size());
  for (const Part& part : parts) {
    QUIRE_CHECK(part.segment.has_value(), "a part of the composition has no KV");
    uses.push_back({.segment = *part.segment,
                    .position = part.position,
                    .rank = {part.chunk->rank, static_cast<std::uint32_t>(part.key.gap)}});
  }
  return uses;
}

// Names the KV of parts that have seen all parts before them. The first two are those of mode
// anchored where a system chunk is there, and are shared with it. Converted KV is never taken.
void chain(std::size_t num_systems, ResolvedComposition& composition) {
  composition.chained = true;
  bool shared = true;  // all so far
  std::string before;  // name of the parts before
  for (std::size_t i = 0; i < composition.parts.size(); ++i) {
    Part& part = composition.parts[i];
    shared = shared && i <= num_systems && !part.chunk->converted;
    if (!shared) {
      part.key.before = base::str_cat(kChainVariant, before);
    } else if (i > 0) {
      part.key.before = composition.parts.front().chunk->id;
    } else {
      part.key.before.clear();
    }
    before = i == 0 ? part.chunk->id : variant_id(part.chunk->id, before, 0);
  }
}

}  // namespace

bool is_chained(const VariantKey& key) { return key.before.starts_with(kChainVariant); }

std::vector<Part> ResolvedComposition::missing() const {
  std::vector<Part> missing;
  if (plain()) {
    return missing;
  }
  for (const Part& part : parts) {
    if (chained && !missing.empty()) {
      break;  // the others stand behind it
    }
    const auto same = [&](const Part& other) {
      return other.chunk == part.chunk && other.key == part.key;
    };
    if (!part.segment && std::ranges::none_of(missing, same)) {
      missing.push_back(part);
    }
  }
  return missing;
}

std::vector<SegmentUse> ResolvedComposition::uses() const { return uses_of(parts); }

std::vector<SegmentUse> ResolvedComposition::chain_before(const Part& part) const {
  const auto itself = std::ranges::find_if(
      parts, [&](const Part& other) { return other.chunk == part.chunk && other.key == part.key; });
  return uses_of({parts.begin(), itself});
}

std::int64_t ResolvedComposition::num_tokens() const {
  std::int64_t tokens = tokens_of(query);
  for (const Part& part : parts) {
    tokens += tokens_of(part);
  }
  return tokens;
}

std::vector<TokenId> ResolvedComposition::joined() const {
  std::vector<TokenId> ids;
  ids.reserve(static_cast<std::size_t>(num_tokens()));
  for (const Part& part : parts) {
    ids.insert(ids.end(), part.chunk->tokens->begin(), part.chunk->tokens->end());
  }
  ids.insert(ids.end(), query.chunk->tokens->begin(), query.chunk->tokens->end());
  return ids;
}

Result<ResolvedComposition> resolve(ChunkRegistry& registry, std::string_view salt,
                                    const CompositionSpec& spec, const ModelShape& model) {
  return resolve([&](const std::string& id) { return registry.get(id, salt); }, spec, model);
}

Result<ResolvedComposition> resolve(const FindChunk& find, const CompositionSpec& spec,
                                    const ModelShape& model) {
  const std::size_t num_systems = spec.system_chunk_id.empty() ? 0 : 1;
  QUIRE_TRY_STATUS(check_spec(spec, num_systems + spec.context_chunk_ids.size() + 1));
  if (spec.system_chunk_id.empty() && !spec.without_system) {
    return {ErrorCode::kInvalidComposition,
            "a composition has exactly one system chunk; give system_chunk_id, or say "
            "without_system"};
  }
  if (spec.query_chunk_id.empty()) {
    return {ErrorCode::kInvalidComposition,
            "a composition has exactly one query chunk; give query_chunk_id"};
  }
  ResolvedComposition composition{.mode = spec.mode};
  if (num_systems == 1) {
    QUIRE_TRY(Part part, part_of(find, spec.system_chunk_id, ChunkType::kSystemPrompt));
    composition.parts.push_back(std::move(part));
  }
  const std::string before = before_contexts(spec);
  for (const std::string& id : spec.context_chunk_ids) {
    QUIRE_TRY(Part part, part_of(find, id, ChunkType::kContext));
    part.key.before = anchor_in_place(*part.chunk, composition.parts, spec, before);
    composition.parts.push_back(std::move(part));
  }
  QUIRE_TRY(composition.query, part_of(find, spec.query_chunk_id, ChunkType::kQuery));
  QUIRE_TRY_STATUS(place(spec, num_systems, composition));
  if (spec.mode == ReuseMode::kBlend) {
    QUIRE_TRY_STATUS(check_blended(spec.blend, composition.num_tokens()));
  }
  if (spec.computed_in_place && num_systems == 1) {
    QUIRE_TRY_STATUS(set_gaps(composition));
  }
  const bool coded = std::ranges::any_of(
      composition.parts, [](const Part& part) { return part.format != kOwnFormat; });
  if (spec.mode == ReuseMode::kExact && coded) {
    chain(num_systems, composition);
  }
  for (Part& part : composition.parts) {
    const auto variant = part.chunk->variants.find(part.key);
    if (!composition.plain() && variant != part.chunk->variants.end()) {
      part.segment = variant->second;
    }
  }
  composition.grade = grade_of(spec, composition, model);
  return composition;
}

}  // namespace quire::kv
