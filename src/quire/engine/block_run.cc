// What handles of blocks stand for. The rest of SequenceService: sequence_service.cc.
#include "quire/engine/block_run.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
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

std::vector<BlockRun> runs_of(const std::weak_ptr<Engine>& engine, const kv::Ledger& ledger,
                              const kv::Chunk& chunk) {
  std::vector<BlockRun> runs;
  for (const auto& [key, id] : chunk.variants) {
    const kv::Segment& segment = *ledger.segment(id);
    BlockRun run{.engine = engine,
                 .chunk_id = chunk.id,
                 .registration = chunk.registration,
                 .segment = id,
                 .tokens = segment.num_tokens()};
    for (const BlockId block : segment.blocks().ids()) {
      run.blocks.push_back(block.value);
    }
    const bool registered = key == kv::VariantKey{.before = chunk.anchor};
    runs.insert(registered ? runs.begin() : runs.end(), std::move(run));
  }
  return runs;
}

}  // namespace

Result<BlockRun> SequenceService::chunk_run(const std::string& chunk_id) {
  return engine_.ask<BlockRun>([&]() -> Result<BlockRun> {
    QUIRE_TRY(const kv::Chunk* chunk, engine_.chunks_->registry().get(chunk_id));
    std::vector<BlockRun> runs = runs_of(engine_.weak_from_this(), ledger(), *chunk);
    if (runs.empty()) {
      return Error{
          .code = ErrorCode::kInvalidComposition,
          .message = base::str_cat("chunk ", chunk_id, " has no KV: a ",
                                   chunk_type_name(chunk->type), " is computed where it is used"),
          .chunk_id = chunk_id};
    }
    return std::move(runs.front());
  });
}

// Everything that has blocks of its own.
std::vector<BlockRun> SequenceService::known_runs() const {
  std::vector<BlockRun> runs;
  for (const kv::Chunk* chunk : engine_.chunks_->registry().list()) {
    std::ranges::move(runs_of(engine_.weak_from_this(), ledger(), *chunk),
                      std::back_inserter(runs));
  }
  for (const auto& known : states_) {
    if (const StateRef state = known.lock(); state != nullptr && !state->blocks.empty()) {
      runs.push_back(run_of(state));
    }
  }
  return runs;
}

// Follows the blocks as far as known runs explain them. The last run may be used in part; a run
// explains the blocks that it consists of, and nothing in them is anybody's guess.
Result<std::vector<BlockRun>> SequenceService::find_runs(std::span<const std::int32_t> blocks,
                                                         std::int64_t tokens) {
  using Found = std::vector<BlockRun>;
  return engine_.ask<Found>([&]() -> Result<Found> {
    const std::vector<BlockRun> known = known_runs();
    const std::int64_t block_tokens = ledger().config().block_tokens;
    std::vector<Found> found;
    std::vector<std::vector<TokenId>> meanings;
    const std::function<Status(Found&, std::span<const std::int32_t>, std::int64_t)> follow =
        [&](Found& path, std::span<const std::int32_t> rest, std::int64_t left) -> Status {
      for (const BlockRun& run : known) {
        const std::size_t common = std::min(rest.size(), run.blocks.size());
        if (!std::ranges::equal(rest.first(common), std::span(run.blocks).first(common))) {
          continue;
        }
        const std::int64_t room = static_cast<std::int64_t>(common) * block_tokens;
        const bool ends = common == rest.size() && left <= run.tokens &&
                          (left > room - block_tokens) && (left <= room + 1);
        const bool goes_on = common < rest.size() && left > run.tokens;
        if (!ends && !goes_on) {
          continue;
        }
        path.push_back(run);
        if (ends) {
          path.back().tokens = left;
          std::vector<TokenId> meaning;
          for (const BlockRun& part : path) {
            QUIRE_TRY(const auto part_tokens, tokens_of(part));
            meaning.insert(meaning.end(), part_tokens.begin(), part_tokens.end());
          }
          if (std::ranges::find(meanings, meaning) == meanings.end()) {
            meanings.push_back(std::move(meaning));
            found.push_back(path);
          }
        } else {
          QUIRE_TRY_STATUS(follow(path, rest.subspan(common), left - run.tokens));
        }
        path.pop_back();
      }
      return {};
    };
    Found path;
    QUIRE_TRY_STATUS(follow(path, blocks, tokens));
    if (found.size() == 1) {
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
