#include "quire/kv/segments.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/block_table.h"
#include "quire/kv/coalescing.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger_state.h"
#include "quire/kv/segment.h"
#include "quire/kv/sequence.h"
#include "quire/kv/shared_blocks.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {
namespace {

Status check_position(std::int32_t position, std::int64_t num_tokens, std::string_view what) {
  constexpr std::int64_t kMaxPosition = std::numeric_limits<std::int32_t>::max();
  if (position >= 0 && position <= kMaxPosition - num_tokens) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat(what, " of ", num_tokens, " tokens cannot be used at ", position,
                        "; give 0 to ", kMaxPosition - num_tokens)};
}

// Returns the first `num_tokens` tokens of a segment as a segment that shares its blocks.
Result<std::shared_ptr<const Segment>> first_part(const LedgerConfig& config,
                                                  const std::shared_ptr<const Segment>& segment,
                                                  std::int32_t num_tokens) {
  if (num_tokens == segment->num_tokens()) {
    return segment;
  }
  if (num_tokens < 1 || num_tokens > segment->num_tokens()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("cannot use ", num_tokens, " tokens of a segment of ",
                          segment->num_tokens(), "; give 1 to ", segment->num_tokens())};
  }
  const std::span<const TokenId> tokens = segment->tokens();
  return std::make_shared<const Segment>(
      segment->blocks().clone(blocks_for_tokens(config, num_tokens)),
      std::vector<TokenId>(tokens.begin(), tokens.begin() + num_tokens), segment->stored_from(), 0,
      segment->format());
}

std::int32_t total(const BlockCounts& blocks) {
  return std::accumulate(blocks.of.begin(), blocks.of.end(), std::int32_t{0});
}

// Returns kOutOfBlocks where the pool has not so many blocks of each format. `what` needs them.
Status check_room(const SharedBlocks& shared, const BlockCounts& needed, const std::string& what) {
  const BlockCounts lacking = shared.lacking(needed);
  if (lacking == BlockCounts()) {
    return {};
  }
  const LedgerConfig& config = shared.config();
  const std::int64_t bytes = config.bytes_of(needed);
  const std::int64_t had = bytes - config.bytes_of(lacking);
  return Error{.code = ErrorCode::kOutOfBlocks,
               .message = base::str_cat(
                   what, " needs ", total(needed), " blocks (", base::format_bytes(bytes), "), ",
                   total(needed) - total(lacking), " (", base::format_bytes(had), ") of a pool of ",
                   base::format_bytes(config.budget_bytes()), " can be had"),
               .needed_bytes = bytes,
               .free_bytes = had};
}

// Returns so many blocks of the pool's own format. kOutOfBlocks.
Result<BlockTable> blocks_for_maps(SharedBlocks& shared, std::int32_t count) {
  BlockCounts needed;
  needed[kOwnFormat] = count;
  QUIRE_TRY_STATUS(check_room(shared, needed, "keeping the maps of a chunk"));
  BlockTable table(shared);
  table.reserve(count);
  for (const BlockRef block : shared.acquire(count, BlockId{})) {
    table.push(block);
  }
  return table;
}

}  // namespace

Result<SegmentId> Segments::seal(SeqId id) {
  QUIRE_TRY(Segment segment, state_->sequence(id).seal(state_->maps_of(id), true));
  return state_->name(std::make_shared<const Segment>(std::move(segment)));
}

Result<SegmentId> Segments::seal_to_forget(SeqId id) {
  QUIRE_TRY(Segment segment, state_->sequence(id).seal(state_->maps_of(id), false));
  return state_->name(std::make_shared<const Segment>(std::move(segment)));
}

Result<std::vector<SegmentUse>> Segments::seal_runs(SeqId id) {
  const Sequence& sequence = state_->sequence(id);
  const auto give_up = [this, before = LedgerMark{state_->last_id}] {
    drop_since(before, [](SegmentId) { return false; });
  };
  try {
    std::vector<SegmentUse> uses;
    uses.reserve(sequence.sealed().size() + 1);
    for (const SealedRun& run : sequence.sealed()) {
      uses.push_back(
          {.segment = state_->name(run.segment), .position = run.start_position, .rank = run.rank});
    }
    if (sequence.num_computed() > 0) {
      auto own = seal(id);
      if (!own.ok()) {
        give_up();
        return std::move(own).error();
      }
      uses.push_back({.segment = *own, .position = sequence.open().start_position});
    }
    return uses;
  } catch (const std::bad_alloc&) {
    give_up();
    throw;
  }
}

Result<SegmentId> Segments::reserve(std::vector<TokenId> tokens, std::int32_t stored_from,
                                    FormatId format, std::optional<FormatId> last) {
  SharedBlocks& shared = state_->shared;
  const LedgerConfig& config = shared.config();
  if (tokens.empty()) {
    return {ErrorCode::kInvalidArgument, "a segment has at least one token"};
  }
  const std::uint8_t most = std::max(format.value, last.value_or(format).value);
  if (most >= config.formats.size()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("a segment cannot have format ", +most, ": the pool has ",
                          config.formats.size(), " formats")};
  }
  const bool full = std::ssize(tokens) % config.block_tokens == 0;
  const FormatId last_format =
      full || !last ? config.last_format(std::ssize(tokens), format) : *last;
  BlockCounts needed;
  needed[format] = blocks_for_tokens(config, std::ssize(tokens));
  if (last_format != format) {
    --needed[format];
    ++needed[last_format];
  }
  QUIRE_TRY_STATUS(
      check_room(shared, needed, base::str_cat("a segment of ", tokens.size(), " tokens")));
  BlockTable blocks(shared);
  blocks.reserve(total(needed));
  shared.lend_for(needed);
  const auto take = [&](FormatId of) {
    for (const BlockRef block : shared.acquire(of, needed[of])) {
      blocks.push(block);
    }
  };
  take(format);
  if (last_format != format) {
    take(last_format);
  }
  return state_->name(std::make_shared<const Segment>(std::move(blocks), std::move(tokens),
                                                      stored_from, 0, format));
}

Result<SegmentId> Segments::slice(SegmentId id, std::int32_t first, std::int32_t count) {
  const auto found = state_->segments.find(id.value);
  if (found == state_->segments.end()) {
    return {ErrorCode::kNotFound, base::str_cat("no segment ", id.value)};
  }
  QUIRE_TRY_STATUS(Coalescing(*state_).take_out({&id, 1}));
  const Segment& base = *found->second;
  const std::int32_t block_tokens = state_->shared.config().block_tokens;
  const bool inside = first >= 0 && count >= 1 && count <= base.num_tokens() - first;
  const bool whole = first % block_tokens == 0 &&
                     (count % block_tokens == 0 || first + count == base.num_tokens());
  if (!inside || !whole) {
    return {
        ErrorCode::kInvalidArgument,
        base::str_cat("tokens ", first, " to ", first + std::int64_t{count}, " are no blocks of ",
                      block_tokens, " tokens of a segment of ", base.num_tokens())};
  }
  const std::int32_t first_block = first / block_tokens;
  const std::int32_t num_blocks = blocks_for_tokens(state_->shared.config(), count);
  BlockTable blocks(state_->shared);
  blocks.reserve(num_blocks);
  for (std::int32_t i = 0; i < num_blocks; ++i) {
    state_->shared.retain(base.blocks().ref(first_block + i));
    blocks.push(base.blocks().ref(first_block + i));
  }
  const std::span<const TokenId> tokens =
      base.tokens().subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  return state_->name(std::make_shared<const Segment>(
      std::move(blocks), std::vector<TokenId>(tokens.begin(), tokens.end()),
      base.stored_from() + first, 0, base.format()));
}

Result<SegmentId> Segments::derive(SegmentId id, std::span<const std::int32_t> tokens) {
  const auto found = state_->segments.find(id.value);
  if (found == state_->segments.end()) {
    return {ErrorCode::kNotFound, base::str_cat("no segment ", id.value)};
  }
  QUIRE_TRY_STATUS(Coalescing(*state_).take_out({&id, 1}));
  const Segment& base = *found->second;
  const std::int32_t block_tokens = state_->shared.config().block_tokens;
  std::vector<std::int32_t> touched;  // blocks
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= base.num_tokens()) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("no token ", token, " in a segment of ", base.num_tokens())};
    }
    if (touched.empty() || touched.back() != token / block_tokens) {
      touched.push_back(token / block_tokens);
    }
  }
  SharedBlocks& shared = state_->shared;
  BlockCounts needed;
  for (const std::int32_t block : touched) {
    ++needed[base.blocks().ref(block).format()];
  }
  QUIRE_TRY_STATUS(check_room(shared, needed, "recomputing tokens of a segment"));
  // Copies are ordered last: what is refused memory before has ordered none.
  shared.copies().reserve_more(static_cast<std::int32_t>(touched.size()));
  BlockTable blocks = base.blocks().clone(base.blocks().size());
  std::vector<BlockRef> fresh;
  fresh.reserve(touched.size());
  shared.lend_for(needed);
  const auto take = [&](FormatId format, std::int32_t count) {
    for (const BlockRef block : shared.acquire(format, count)) {
      blocks.replace(touched[fresh.size()], block);
      fresh.push_back(block);
    }
  };
  const FormatId format = base.blocks().format();
  take(format, needed[format]);
  if (const FormatId last = base.blocks().last_format(); last != format) {
    take(last, needed[last]);
  }
  const SegmentId derived = state_->name(std::make_shared<const Segment>(
      std::move(blocks), std::vector<TokenId>(base.tokens().begin(), base.tokens().end()),
      base.stored_from(), 0, base.format(), base.maps()));
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    const std::int32_t first = touched[i] * block_tokens;
    shared.copies().add({.from = base.blocks().ref(touched[i]).id,
                         .to = fresh[i].id,
                         .tokens = std::min(block_tokens, base.num_tokens() - first),
                         .format = fresh[i].format()});
  }
  return derived;
}

bool Segments::drop(SegmentId id) { return state_->segments.erase(id.value) > 0; }

void Segments::drop_since(LedgerMark mark, const std::function<bool(SegmentId)>& keeps) {
  std::erase_if(state_->segments, [&](const auto& segment) {
    return segment.first > mark.last_id && !keeps({segment.first});
  });
}

bool Segments::forget(SegmentId id) {
  const auto found = state_->segments.extract(id.value);
  if (found.empty()) {
    return false;
  }
  const auto own = static_cast<std::size_t>(found.mapped()->found_blocks());
  const std::span<const BlockRef> live = found.mapped()->blocks().live();
  std::vector<BlockRef> blocks;
  try {
    blocks.assign(live.begin() + static_cast<std::ptrdiff_t>(own), live.end());
  } catch (const std::bad_alloc&) {
    return true;  // as in drop(), cached blocks are evicted when their turn comes
  }
  found.mapped() = nullptr;
  state_->shared.forget(blocks);
  return true;
}

const Segment* Segments::find(SegmentId id) const {
  const auto found = state_->segments.find(id.value);
  return found == state_->segments.end() ? nullptr : found->second.get();
}

std::int32_t Segments::num_blocks(SegmentId id) const {
  const auto found = state_->segments.find(id.value);
  return found == state_->segments.end() ? 0 : found->second->blocks().size();
}

std::int64_t Segments::num_bytes(SegmentId id) const {
  const auto found = state_->segments.find(id.value);
  return found == state_->segments.end() ? 0 : found->second->num_bytes();
}

Result<SeqId> Segments::compose(std::span<const SegmentUse> uses, ComposeTail tail) {
  return open_behind(uses, tail, kOwnFormat);
}

// Opens a composed sequence. In another format than the pool's own, nothing may be lacking.
Result<SeqId> Segments::open_behind(std::span<const SegmentUse> uses, ComposeTail tail,
                                    FormatId format) {
  std::vector<SegmentId> used(uses.size());
  std::ranges::transform(uses, used.begin(), &SegmentUse::segment);
  QUIRE_TRY_STATUS(Coalescing(*state_).take_out(used));
  std::vector<SealedRun> sealed;
  sealed.reserve(uses.size());
  std::int32_t end = 0;
  for (const SegmentUse use : uses) {
    const auto found = state_->segments.find(use.segment.value);
    if (found == state_->segments.end()) {
      return {ErrorCode::kNotFound, base::str_cat("no segment ", use.segment.value)};
    }
    const std::int32_t num_tokens = use.tokens.value_or(found->second->num_tokens());
    QUIRE_TRY_STATUS(check_position(use.position, num_tokens, "a segment"));
    QUIRE_TRY(auto segment, first_part(state_->shared.config(), found->second, num_tokens));
    if (state_->states.exist() && segment->maps() == nullptr) {
      return {
          ErrorCode::kIncompatible,
          "KV cannot stand before tokens of a model whose layers carry a state without the maps "
          "of its chunk on that state; use whole chunks, or mode exact"};
    }
    sealed.push_back(
        {.segment = std::move(segment), .start_position = use.position, .rank = use.rank});
    end = std::max(end, use.position + num_tokens);
  }
  const std::int32_t position = tail.position.value_or(end);
  QUIRE_TRY_STATUS(check_position(position, std::ssize(tail.tokens), "an open run"));
  return state_->add(Sequence(state_->shared, tail.tokens, std::move(sealed), position, format));
}

Result<SeqId> Segments::compose_in(FormatId format, std::span<const SegmentUse> uses,
                                   ComposeTail tail) {
  SharedBlocks& shared = state_->shared;
  const LedgerConfig& config = shared.config();
  if (format.value >= config.formats.size()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("a run cannot be computed in format ", +format.value, " of ",
                          config.formats.size())};
  }
  if (tail.tokens.empty()) {
    return {ErrorCode::kInvalidArgument, "a run that is sealed has at least one token"};
  }
  std::vector<SegmentId> used(uses.size());
  std::ranges::transform(uses, used.begin(), &SegmentUse::segment);
  QUIRE_TRY_STATUS(Coalescing(*state_).take_out(used));  // which needs room, too
  const BlockCounts needed = config.blocks_for(std::ssize(tail.tokens), format);
  QUIRE_TRY_STATUS(
      check_room(shared, needed, base::str_cat("a run of ", tail.tokens.size(), " tokens")));
  return open_behind(uses, tail, format);
}

Status Segments::hold_maps(SeqId id, std::int32_t blocks) {
  QUIRE_TRY(BlockTable maps, blocks_for_maps(state_->shared, blocks));
  QUIRE_CHECK(state_->sequences.contains(id.value), "maps of an unknown sequence");
  state_->sequence_maps.insert_or_assign(id.value, std::make_shared<BlockTable>(std::move(maps)));
  return {};
}

Status Segments::hold_maps(SegmentId id, std::int32_t blocks) {
  QUIRE_TRY(BlockTable maps, blocks_for_maps(state_->shared, blocks));
  return set_maps(id, std::make_shared<const BlockTable>(std::move(maps)));
}

Status Segments::share_maps(SegmentId from, SegmentId to) {
  const Segment* const other = find(from);
  if (other == nullptr) {
    return {ErrorCode::kNotFound, base::str_cat("no segment ", from.value)};
  }
  return set_maps(to, other->maps());
}

// Gives maps to a segment.
Status Segments::set_maps(SegmentId id, std::shared_ptr<const BlockTable> maps) {
  const auto found = state_->segments.find(id.value);
  if (found == state_->segments.end()) {
    return {ErrorCode::kNotFound, base::str_cat("no segment ", id.value)};
  }
  QUIRE_TRY_STATUS(Coalescing(*state_).take_out({&id, 1}));
  const Segment& base = *found->second;
  found->second = std::make_shared<const Segment>(
      base.blocks().clone(base.blocks().size()),
      std::vector<TokenId>(base.tokens().begin(), base.tokens().end()), base.stored_from(),
      base.found_blocks(), base.format(), std::move(maps));
  return {};
}

std::span<const BlockId> Segments::trim_maps(SeqId id, std::int32_t blocks) {
  BlockTable& maps = *state_->maps_of(id);
  maps.truncate(blocks);
  return maps.ids();
}

std::vector<std::span<const BlockId>> Segments::maps_before(SeqId id) const {
  std::vector<std::span<const BlockId>> maps;
  for (const SealedRun& run : state_->sequence(id).sealed()) {
    maps.push_back(run.segment->maps() == nullptr ? std::span<const BlockId>()
                                                  : run.segment->maps()->ids());
  }
  return maps;
}

std::int32_t Segments::tokens_before(SeqId id) const {
  return tokens_of(state_->sequence(id).sealed());
}

std::int32_t Segments::blocks_before(SeqId id) const {
  std::int64_t bytes = 0;
  for (const SealedRun& run : state_->sequence(id).sealed()) {
    bytes += run.segment->num_bytes();
  }
  const std::int64_t own = state_->shared.config().block_bytes(kOwnFormat);
  return static_cast<std::int32_t>((bytes + own - 1) / own);
}

std::vector<TokenId> Segments::joined_tokens(SeqId id) const {
  const Sequence& sequence = state_->sequence(id);
  std::vector<TokenId> joined;
  joined.reserve(static_cast<std::size_t>(tokens_of(sequence.sealed())) + sequence.tokens().size());
  for (const SealedRun& run : sequence.sealed()) {
    joined.insert(joined.end(), run.segment->tokens().begin(), run.segment->tokens().end());
  }
  joined.insert(joined.end(), sequence.tokens().begin(), sequence.tokens().end());
  return joined;
}

}  // namespace quire::kv
