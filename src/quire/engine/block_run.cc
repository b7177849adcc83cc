// What handles of blocks stand for. The rest of SequenceService: sequence_service.cc.
#include "quire/engine/block_run.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/chunks.h"
#include "quire/engine/chunk_service.h"
#include "quire/engine/engine.h"
#include "quire/engine/sequence_service.h"
#include "quire/kv/chunk_registry.h"
#include "quire/kv/ledger.h"
#include "quire/kv/segment.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

Error stale(const std::string& what) {
  return {.code = ErrorCode::kInvalidComposition,
          .message = base::str_cat("the blocks are stale: ", what,
                                   "; get them again from where they came")};
}

}  // namespace

Result<std::vector<TokenId>> SequenceService::tokens_of(const BlockRun& run) const {
  const auto first = [&](std::span<const TokenId> all) {
    const auto tokens = all.first(std::min(all.size(), static_cast<std::size_t>(run.tokens)));
    return std::vector<TokenId>(tokens.begin(), tokens.end());
  };
  if (run.chunk_id.empty()) {
    if (const HeldRef held = run.held.lock()) {
      return first(held->tokens);
    }
    const StateRef state = run.state.lock();
    return state == nullptr ? stale("where they come from has changed or was closed")
                            : Result<std::vector<TokenId>>(first(state->tokens));
  }
  const kv::Chunk* chunk = engine_.chunks_->registry().find(run.chunk_id);
  return chunk == nullptr ? stale(base::str_cat("chunk ", run.chunk_id, " has gone"))
                          : Result<std::vector<TokenId>>(first(*chunk->tokens));
}

// Where the run's KV is. States are named as segments for it, which go to `named`.
Result<SequenceService::Segments> SequenceService::segments_of(const BlockRun& run,
                                                               Segments& named) const {
  if (!run.chunk_id.empty()) {
    const kv::Chunk* chunk = engine_.chunks_->registry().find(run.chunk_id);
    if (chunk == nullptr || chunk->registration != run.registration) {
      return stale(base::str_cat("chunk ", run.chunk_id, " has gone"));
    }
    for (const auto& [key, segment] : chunk->variants) {
      if (segment == run.segment) {
        return Segments{
            {.segment = segment, .rank = {chunk->rank, static_cast<std::uint32_t>(key.gap)}}};
      }
    }
    return stale(base::str_cat("the KV of chunk ", run.chunk_id, " was computed again"));
  }
  if (const HeldRef held = run.held.lock()) {
    return Segments{{.segment = held->id}};
  }
  const StateRef state = run.state.lock();
  if (state == nullptr) {
    return stale("where they come from has changed or was closed");
  }
  QUIRE_TRY(auto segments, ledger().seal_runs(state->sequence));
  named.insert(named.end(), segments.begin(), segments.end());
  return segments;
}

BlockRun SequenceService::run_of(const StateRef& state) {
  return {.engine = state->engine,
          .state = state,
          .blocks = state->blocks,
          .tokens = std::ssize(state->tokens)};
}

namespace {

BlockRun run_of(const std::weak_ptr<Engine>& engine, const kv::Ledger& ledger,
                const kv::Chunk& chunk, kv::SegmentId variant) {
  const kv::Segment& segment = *ledger.segment(variant);
  BlockRun run{.engine = engine,
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

Result<BlockRun> SequenceService::chunk_run(const std::string& chunk_id,
                                            const std::optional<kv::VariantKey>& key) {
  return engine_.ask_for_blocks<BlockRun>([&]() -> Result<BlockRun> {
    QUIRE_TRY_STATUS(engine_.chunks_->adopt(chunk_id));
    QUIRE_TRY(const kv::Chunk* chunk, engine_.chunks_->registry().get(chunk_id));
    const auto variant = chunk->variants.find(key.value_or(kv::registered_key(*chunk)));
    if (variant == chunk->variants.end()) {
      return Error{
          .code = ErrorCode::kInvalidComposition,
          .message = base::str_cat("chunk ", chunk_id, " has no KV: a ",
                                   chunk_type_name(chunk->type), " is computed where it is used"),
          .chunk_id = chunk_id};
    }
    return engine::run_of(engine_.weak_from_this(), ledger(), *chunk, variant->second);
  });
}

// Everything that has blocks of its own.
std::vector<BlockRun> SequenceService::known_runs() const {
  std::vector<BlockRun> runs;
  for (const kv::Chunk* chunk : engine_.chunks_->registry().list()) {
    for (const auto& [key, variant] : chunk->variants) {
      runs.push_back(engine::run_of(engine_.weak_from_this(), ledger(), *chunk, variant));
    }
  }
  for (const auto& known : states_) {
    if (const StateRef state = known.lock(); state != nullptr && !state->blocks.empty()) {
      runs.push_back(run_of(state));
    }
  }
  return runs;
}

namespace {

// Follows block ids as far as known runs explain them: a run explains the blocks that it consists
// of, the last one may be used in part, and nothing is anybody's guess.
class RunFinder {
 public:
  using Path = std::vector<BlockRun>;
  RunFinder(std::span<const BlockRun> known, std::int64_t block_tokens)
      : known_(known), block_tokens_(block_tokens) {}

  // All ways to explain `blocks` with `tokens` tokens.
  [[nodiscard]] std::vector<Path> find(std::span<const std::int32_t> blocks, std::int64_t tokens) {
    follow(blocks, tokens);
    return std::move(found_);
  }

 private:
  void follow(std::span<const std::int32_t> rest, std::int64_t left) {
    for (const BlockRun& run : known_) {
      const std::size_t common = std::min(rest.size(), run.blocks.size());
      if (!std::ranges::equal(rest.first(common), std::span(run.blocks).first(common))) {
        continue;
      }
      const std::int64_t room = static_cast<std::int64_t>(common) * block_tokens_;
      const bool ends = common == rest.size() && left <= run.tokens &&
                        left > room - block_tokens_ && left <= room + 1;
      path_.push_back(run);
      if (ends) {
        path_.back().tokens = left;
        found_.push_back(path_);
      } else if (common < rest.size() && left > run.tokens) {
        follow(rest.subspan(common), left - run.tokens);
      }
      path_.pop_back();
    }
  }

  std::span<const BlockRun> known_;
  std::int64_t block_tokens_;
  Path path_;
  std::vector<Path> found_;
};

}  // namespace

Result<std::vector<TokenId>> SequenceService::joined_tokens(std::span<const BlockRun> runs) const {
  std::vector<TokenId> joined;
  for (const BlockRun& run : runs) {
    QUIRE_TRY(const auto tokens, tokens_of(run));
    joined.insert(joined.end(), tokens.begin(), tokens.end());
  }
  return joined;
}

Result<std::vector<BlockRun>> SequenceService::find_runs(std::span<const std::int32_t> blocks,
                                                         std::int64_t tokens) {
  using Path = RunFinder::Path;
  return engine_.ask<Path>([&]() -> Result<Path> {
    const std::vector<BlockRun> known = known_runs();
    std::vector<Path> found = RunFinder(known, ledger().config().block_tokens).find(blocks, tokens);
    bool one_meaning = !found.empty();
    for (const Path& other : found) {
      QUIRE_TRY(const auto first, joined_tokens(found.front()));
      QUIRE_TRY(const auto meaning, joined_tokens(other));
      one_meaning = one_meaning && meaning == first;
    }
    if (one_meaning) {
      return std::move(found.front());
    }
    return Error{
        .code = ErrorCode::kInvalidComposition,
        .message = base::str_cat(
            blocks.size(), " block ids with ", tokens, " tokens ",
            found.empty() ? "are not those of any chunk or sequence" : "could mean several things",
            "; give the handle that chunk_blocks, a sequence or a context returned")};
  });
}

}  // namespace quire::engine
