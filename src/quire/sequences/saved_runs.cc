// The part of SavedSequences that checks the runs of a file, which a stranger may have written.
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/restore_points.h"
#include "quire/kv/types.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sequences/saved_sequences.h"
#include "quire/sequences/saved_state.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tiers/held_segment.h"
#include "quire/tiers/tier_service.h"
#include "quire/types.h"

namespace quire::sequences {

// Checks the tokens and positions of a run.
Status SavedSequences::check_run(std::span<const TokenId> tokens, std::int32_t position) const {
  if (!tokens.empty()) {
    QUIRE_TRY_STATUS(engine_.check_prompt(tokens));
  }
  const std::int64_t end = position + std::ssize(tokens);
  const std::int64_t limit = engine_.model_config().context_length;
  if (position >= 0 && end <= limit) {
    return {};
  }
  return {ErrorCode::kOverflow,
          base::str_cat("saved tokens stand at ", position, " to ", end,
                        ", the model's context ends at ", engine_.model_config().context_text())};
}

Result<kv::FormatId> SavedSequences::format_of(const kv_store::SavedRun& run,
                                               const SavedState& rest) const {
  const auto geometry = kv_store::with_type(pool().geometry(), run.type);
  const auto format = pool().find_format(geometry);
  // Runs in other formats belong to a sequence that says its own.
  if (format && (*format == kv::kOwnFormat || !rest.kv_dtype.empty())) {
    return *format;
  }
  return {ErrorCode::kIncompatible,
          base::str_cat("the saved sequence does not fit the model: ",
                        kv_store::geometry_difference(geometry, pool().geometry()))};
}

Result<tiers::SegmentShape> SavedSequences::segment_of(std::span<const kv_store::SavedRun> parts,
                                                       const SavedState& rest) const {
  tiers::SegmentShape segment;
  QUIRE_TRY(segment.format, format_of(parts.front(), rest));
  segment.tokens = parts.front().tokens;
  segment.last_format = segment.format;
  if (parts.size() == 1) {
    return segment;
  }
  const kv_store::SavedRun& full = parts.front();
  const kv_store::SavedRun& last = parts.back();
  const kv::LedgerConfig& config = ledger().config();
  QUIRE_TRY(segment.last_format, format_of(last, rest));
  const bool goes_on = std::ssize(full.tokens) % config.block_tokens == 0 &&
                       last.start_position - full.start_position == std::ssize(full.tokens);
  if (!goes_on || std::ssize(last.tokens) >= config.block_tokens || last.lost_blocks > 0 ||
      last.lost_parts > 0 || config.formats[segment.format.value].open != segment.last_format) {
    return {ErrorCode::kCorrupt,
            base::str_cat("saved runs of ", full.tokens.size(), " tokens in ",
                          base::quoted(engine_.core().kv_name(segment.format)), " and ",
                          last.tokens.size(), " in ",
                          base::quoted(engine_.core().kv_name(segment.last_format)),
                          " are no full blocks with a last one that is not full")};
  }
  segment.tokens.insert(segment.tokens.end(), last.tokens.begin(), last.tokens.end());
  return segment;
}

// The pool stores what is appended to the sequence, so the sequence's own KV has that format, too.
// Where it is stored block by block, a last block that is not full has the open one.
Status SavedSequences::check_own(std::span<const kv_store::SavedRun> parts,
                                 const SavedState& rest) const {
  const kv::LedgerConfig& config = ledger().config();
  QUIRE_TRY(const tiers::SegmentShape own, segment_of(parts, rest));
  const std::int64_t tokens = std::ssize(parts.front().tokens);
  const bool open = own.format == config.open_format() && parts.size() == 1;
  if (open ? tokens >= config.block_tokens : own.format != kv::kOwnFormat) {
    return {ErrorCode::kIncompatible,
            base::str_cat("the saved sequence does not fit the model: kv_dtype of its own run is ",
                          engine_.core().kv_name(own.format), ", here it is ",
                          engine_.core().kv_name())};
  }
  if (!open && config.open_format() && tokens % config.block_tokens != 0) {
    return {ErrorCode::kCorrupt, base::str_cat("the own run of a saved sequence ends after ",
                                               tokens, " tokens, inside of a block in ",
                                               base::quoted(engine_.core().kv_name(own.format)))};
  }
  return {};
}

Status SavedSequences::check_formats(std::span<const kv_store::SavedRun> runs,
                                     const SavedState& rest) const {
  const std::string own = engine_.core().kv_name();
  if (!rest.kv_dtype.empty() && rest.kv_dtype != own) {
    return {ErrorCode::kIncompatible,
            base::str_cat("the saved sequence does not fit the model: kv_dtype is ", rest.kv_dtype,
                          ", here it is ", own)};
  }
  const auto parts = parts_of(runs, rest);
  const std::int32_t most = ledger().config().open_format() ? pool().geometry().block_tokens : 1;
  if (std::ssize(rest.tail) > most) {
    return {ErrorCode::kCorrupt, base::str_cat("a saved sequence has ", rest.tail.size(),
                                               " tokens without KV, at most ", most)};
  }
  if (parts.size() > rest.ranks.size()) {
    QUIRE_TRY_STATUS(check_own(parts.back(), rest));
    const std::int64_t behind = std::ssize(parts.back().back().tokens) % most;
    if (std::ssize(rest.tail) > 1 && behind != 0) {  // a block has KV of all its tokens or of none
      return {ErrorCode::kCorrupt,
              base::str_cat("a saved sequence has ", rest.tail.size(), " tokens without KV behind ",
                            behind, " of their block")};
    }
  }
  for (const auto& run : parts) {
    QUIRE_TRY([[maybe_unused]] const tiers::SegmentShape segment, segment_of(run, rest));
  }
  return {};
}

// Checks the saved run with the maps of a run.
Status SavedSequences::check_maps(const kv_store::SavedRun& maps, std::int32_t blocks) const {
  const std::int64_t block_tokens = pool().geometry().block_tokens;
  if (!ledger().points().exist()) {
    return {ErrorCode::kIncompatible,
            "the saved sequence has maps on states, which no layer of the model carries"};
  }
  if (std::ssize(maps.tokens) == blocks * block_tokens && !maps.type && maps.lost_blocks == 0 &&
      maps.lost_parts == 0) {
    return {};
  }
  return {ErrorCode::kCorrupt, base::str_cat("a saved run of ", maps.tokens.size(),
                                             " tokens is no ", blocks, " blocks with maps")};
}

// Reserves room for the runs that the sequence was composed of.
Status SavedSequences::reserve_before(std::span<const kv_store::SavedRun> runs,
                                      const SavedState& rest, Restored& restored) {
  const auto parts = parts_of(runs, rest);
  for (std::size_t i = 0; i < rest.ranks.size(); ++i) {
    const kv_store::SavedRun& run = parts[i].front();
    if (run.lost_blocks > 0 || run.lost_parts > 0) {
      return {ErrorCode::kCorrupt,
              base::str_cat("saved run ", i, " has lost ",
                            run.lost_blocks > 0 ? run.lost_blocks : run.lost_parts,
                            run.lost_blocks > 0 ? " blocks" : " window parts",
                            ": only the last run, the sequence's own, loses any")};
    }
    QUIRE_TRY(tiers::SegmentShape segment, segment_of(parts[i], rest));
    QUIRE_TRY_STATUS(check_run(segment.tokens, run.start_position));
    if (i < rest.map_blocks.size()) {
      segment.num_map_blocks = rest.map_blocks[i];
      QUIRE_TRY_STATUS(check_maps(maps_of(runs, rest, i), segment.num_map_blocks));
    }
    QUIRE_TRY(const tiers::HeldRef held, tiers_.reserve(segment, rest.stored_from[i]));
    restored.before.push_back(held);
    restored.uses.push_back(
        {.segment = held->id, .position = run.start_position, .rank = rest.ranks[i]});
  }
  return {};
}

// Only plain sequences lose window parts, so the tokens say all of the KV. It is computed again
// where blocks have no such parts, as on an accelerator, and where other kernels computed it.
Status SavedSequences::check_parts(Restored& restored, const SavedState& rest) const {
  if (!rest.ranks.empty()) {
    return {ErrorCode::kCorrupt,
            base::str_cat("the own run of a saved sequence has lost ", restored.lost_parts,
                          " window parts behind ", rest.ranks.size(),
                          " runs, where sequences keep all of them")};
  }
  if (ledger().config().window_group.tokens > 0 && rest.grade == ReuseGrade::kExact) {
    return {};
  }
  const std::int32_t block_tokens = ledger().config().block_tokens;
  const bool ends_full =
      ledger().config().open_format().has_value();  // the rest is a run of its own
  const std::int32_t blocks = (restored.num_kv + (ends_full ? 0 : block_tokens - 1)) / block_tokens;
  restored.there = {.to = std::vector<BlockId>(static_cast<std::size_t>(blocks))};  // to verify
  restored.computes = true;
  restored.num_kv = 0;
  restored.lost_parts = 0;
  restored.grade = ReuseGrade::kExact;
  return {};
}

}  // namespace quire::sequences
