#include "quire/sequences/block_runs.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/chunk_types.h"
#include "quire/chunks/chunk_service.h"
#include "quire/engine/engine.h"
#include "quire/engine/session_service.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/segment.h"
#include "quire/kv/segments.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/sequences/block_run.h"
#include "quire/sequences/sequence_state.h"
#include "quire/tiers/held_segment.h"
#include "quire/types.h"

namespace quire::sequences {

namespace {

Error stale(const std::string& what) {
  return {.code = ErrorCode::kInvalidComposition,
          .message = base::str_cat("the blocks are stale: ", what,
                                   "; get them again from where they came")};
}

}  // namespace

Result<std::vector<TokenId>> BlockRuns::tokens_of(const BlockRun& run) const {
  const auto first = [&](std::span<const TokenId> all) {
    const auto tokens = all.first(std::min(all.size(), static_cast<std::size_t>(run.tokens)));
    return std::vector<TokenId>(tokens.begin(), tokens.end());
  };
  if (run.chunk_id.empty()) {
    if (const tiers::HeldRef held = run.held.lock()) {
      return first(held->tokens);
    }
    const StateRef state = run.state.lock();
    return state == nullptr ? stale("where they come from has changed or was closed")
                            : Result<std::vector<TokenId>>(first(state->tokens));
  }
  const kv::Chunk* chunk = chunks_.registry().find(run.chunk_id);
  return chunk == nullptr ? stale(base::str_cat("chunk ", run.chunk_id, " has gone"))
                          : Result<std::vector<TokenId>>(first(*chunk->tokens));
}

// Returns the segments that have the run's KV. States are named as segments for it, which go to
// `named`.
Result<SegmentUses> BlockRuns::segments_of(const BlockRun& run, SegmentUses& named) const {
  if (!run.chunk_id.empty()) {
    const kv::Chunk* chunk = chunks_.registry().find(run.chunk_id);
    if (chunk == nullptr || chunk->registration != run.registration) {
      return stale(base::str_cat("chunk ", run.chunk_id, " has gone"));
    }
    for (const auto& [key, segment] : chunk->variants) {
      if (segment == run.segment) {
        return SegmentUses{
            {.segment = segment, .rank = {chunk->rank, static_cast<std::uint32_t>(key.gap)}}};
      }
    }
    return stale(base::str_cat("the KV of chunk ", run.chunk_id, " was computed again"));
  }
  if (const tiers::HeldRef held = run.held.lock()) {
    return SegmentUses{{.segment = held->id}};
  }
  const StateRef state = run.state.lock();
  if (state == nullptr) {
    return stale("where they come from has changed or was closed");
  }
  QUIRE_TRY(auto segments, engine_.core().ledger.segments().seal_runs(state->sequence));
  named.insert(named.end(), segments.begin(), segments.end());
  return segments;
}

BlockRun run_of(const StateRef& state) {
  return {.engine = state->engine,
          .salt = state->salt,
          .state = state,
          .blocks = state->blocks,
          .tokens = std::ssize(state->tokens)};
}

BlockRun run_of(const tiers::HeldRef& segment) {
  BlockRun run{.engine = segment->engine, .held = segment, .tokens = std::ssize(segment->tokens)};
  for (const BlockId block : segment->blocks) {
    run.blocks.push_back(block.value);
  }
  return run;
}

namespace {

BlockRun run_of_chunk(const std::weak_ptr<engine::Engine>& engine, const kv::Segments& segments,
                      const kv::Chunk& chunk, kv::SegmentId variant) {
  const kv::Segment& segment = *segments.find(variant);
  BlockRun run{.engine = engine,
               .salt = chunk.salt,
               .chunk_id = chunk.id,
               .registration = chunk.registration,
               .segment = variant,
               .tokens = segment.num_tokens()};
  for (const BlockId block : segment.blocks().ids()) {
    run.blocks.push_back(block.value);
  }
  return run;
}

}  // namespace

Result<BlockRun> BlockRuns::chunk_run(const std::string& chunk_id, const std::string& salt,
                                      const std::optional<kv::VariantKey>& key) {
  QUIRE_TRY_STATUS(engine::SessionService::check_salt("salt", salt));
  const std::string& whose = engine_.salt_of(salt);
  return engine_.thread().ask_for_blocks<BlockRun>([&]() -> Result<BlockRun> {
    QUIRE_TRY_STATUS(chunks_.adopt(chunk_id, whose));
    QUIRE_TRY(const kv::Chunk* chunk, chunks_.registry().get(chunk_id, whose));
    const auto variant = chunk->variants.find(key.value_or(kv::registered_key(*chunk)));
    if (variant == chunk->variants.end()) {
      return Error{
          .code = ErrorCode::kInvalidComposition,
          .message = base::str_cat("chunk ", chunk_id, " has no KV: a ",
                                   chunk_type_name(chunk->type), " is computed where it is used"),
          .chunk_id = chunk_id};
    }
    return run_of_chunk(engine_.self(), engine_.core().ledger.segments(), *chunk, variant->second);
  });
}

// Returns everything of a tenant that has blocks of its own.
std::vector<BlockRun> BlockRuns::known_runs(const std::string& salt) const {
  std::vector<BlockRun> runs;
  for (const kv::Chunk* chunk : chunks_.registry().list(salt)) {
    for (const auto& [key, variant] : chunk->variants) {
      runs.push_back(
          run_of_chunk(engine_.self(), engine_.core().ledger.segments(), *chunk, variant));
    }
  }
  states_.visit([&](const StateRef& state) {
    if (!state->blocks.empty() && state->salt == salt) {
      runs.push_back(run_of(state));
    }
  });
  return runs;
}

namespace {

// Meaning of block ids, or the first of several.
struct Meaning {
  std::vector<BlockRun> runs;   // none: nothing
  std::vector<TokenId> tokens;  // tokens of all runs
  bool several = false;         // other runs would have other tokens
};

void add(Meaning other, Meaning& meaning) {
  if (meaning.runs.empty()) {
    meaning = std::move(other);
  } else {
    meaning.several = meaning.several || other.several || other.tokens != meaning.tokens;
  }
}

// Follows block ids as far as known runs explain them. A run explains the blocks that it consists
// of, the last one may be used in part, and nothing is anybody's guess. Many runs may have the same
// blocks: what follows is looked at once, however many ways lead there.
class RunFinder {
 public:
  // An error for a run that has gone.
  using TokensOf = std::function<Result<std::vector<TokenId>>(const BlockRun& run)>;
  RunFinder(std::span<const BlockRun> known, std::int64_t block_tokens, TokensOf tokens_of)
      : known_(known), block_tokens_(block_tokens), tokens_of_(std::move(tokens_of)) {}

  // Returns the meaning of `blocks` with `tokens` tokens.
  [[nodiscard]] Meaning find(std::span<const std::int32_t> blocks, std::int64_t tokens) {
    explained_[{0, 0}] = {};
    for (auto at = explained_.begin(); at != explained_.end(); ++at) {  // what it adds comes later
      const auto& [explained, before] = *at;
      for (const BlockRun& run : known_) {
        follow(run, explained, blocks.subspan(explained.first), tokens - explained.second, before);
      }
    }
    return std::move(whole_);
  }

 private:
  using Explained = std::pair<std::size_t, std::int64_t>;  // blocks and tokens that are explained

  void follow(const BlockRun& run, Explained explained, std::span<const std::int32_t> rest,
              std::int64_t left, const Meaning& before) {
    const std::size_t common = std::min(rest.size(), run.blocks.size());
    if (!std::ranges::equal(rest.first(common), std::span(run.blocks).first(common))) {
      return;
    }
    const std::int64_t room = static_cast<std::int64_t>(common) * block_tokens_;
    const bool ends = common == rest.size() && left >= 0 && left <= run.tokens &&
                      left > room - block_tokens_ && left <= room + 1;
    const bool goes_on = common < rest.size() && left > run.tokens;
    if (!ends && !goes_on) {
      return;
    }
    Meaning meaning = before;
    meaning.runs.push_back(run);
    meaning.runs.back().tokens = ends ? left : run.tokens;
    if (const auto tokens = tokens_of_(meaning.runs.back()); tokens.ok()) {
      meaning.tokens.insert(meaning.tokens.end(), tokens->begin(), tokens->end());
      add(std::move(meaning),
          ends ? whole_ : explained_[{explained.first + common, explained.second + run.tokens}]);
    }
  }

  std::span<const BlockRun> known_;
  std::int64_t block_tokens_;
  TokensOf tokens_of_;
  std::map<Explained, Meaning> explained_;
  Meaning whole_;
};

}  // namespace

Result<std::vector<BlockRun>> BlockRuns::find_runs(std::span<const std::int32_t> blocks,
                                                   std::int64_t tokens, const std::string& salt) {
  using Runs = std::vector<BlockRun>;
  QUIRE_TRY_STATUS(engine::SessionService::check_salt("salt", salt));
  return engine_.thread().ask<Runs>([&]() -> Result<Runs> {
    const Runs known = known_runs(engine_.salt_of(salt));
    RunFinder finder(known, engine_.core().ledger.config().block_tokens,
                     [this](const BlockRun& run) { return tokens_of(run); });
    Meaning meaning = finder.find(blocks, tokens);
    if (!meaning.runs.empty() && !meaning.several) {
      return std::move(meaning.runs);
    }
    return Error{.code = ErrorCode::kInvalidComposition,
                 .message = base::str_cat(
                     blocks.size(), " block ids with ", tokens, " tokens ",
                     meaning.runs.empty() ? "are not those of any chunk or sequence"
                                          : "could mean several things",
                     "; give the handle that chunk_blocks, a sequence or a context returned")};
  });
}

}  // namespace quire::sequences
