#include "quire/diagnostics/bench_state.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "quire/base/stopwatch.h"
#include "quire/base/temporary_folder.h"
#include "quire/chunk_types.h"
#include "quire/chunks/chunk_drafts.h"
#include "quire/chunks/chunk_service.h"
#include "quire/chunks/composition_planner.h"
#include "quire/diagnostics/peaks.h"
#include "quire/diagnostics/warmed.h"
#include "quire/engine/active_request.h"
#include "quire/result.h"
#include "quire/runtime/runtime.h"
#include "quire/sampling.h"
#include "quire/sequences/block_run.h"
#include "quire/sequences/block_runs.h"
#include "quire/sequences/sequence_service.h"
#include "quire/sequences/sequence_state.h"
#include "quire/tiers/held_segment.h"
#include "quire/types.h"

namespace quire::diagnostics {
namespace {

constexpr int kRounds = 9;  // rounds that are counted
constexpr std::int32_t kChunks = 8;

template <class T>
Status outcome(const Result<T>& result) {
  return result.ok() ? Status() : result.error();
}

// Returns the seconds of `call` and of dropping the Result that it returns, or its error.
template <class Call>
Result<double> seconds_of(Call call) {
  const auto start = engine::Clock::now();
  QUIRE_TRY_STATUS(outcome(call()));
  return base::seconds_since(start);
}

// Returns the median of what `round` returns, seconds; its first error.
template <class Round>
Result<double> median_of_rounds(Round round) {
  QUIRE_TRY(const std::vector<double> seconds, warmed(kRounds, round));
  return median(seconds);
}

}  // namespace

Result<double> time_fork(runtime::Runtime& runtime, const std::vector<TokenId>& ids) {
  QUIRE_TRY(const sequences::StateRef state, runtime.sequences().open(ids, {}));
  return median_of_rounds(
      [&] { return seconds_of([&] { return runtime.sequences().cut(state, std::ssize(ids)); }); });
}

Result<RestoreTimes> time_restore(runtime::Runtime& runtime, const std::vector<TokenId>& ids,
                                  const Peaks& peaks) {
  const base::TemporaryFolder folder;
  if (folder.path().empty()) {
    return {ErrorCode::kIo, "cannot make a temporary folder for the saved sequence"};
  }
  const std::filesystem::path file = folder.path() / "sequence.qkv";
  {
    QUIRE_TRY(sequences::StateRef state, runtime.sequences().open(ids, {}));
    if (!runtime.chunks().core().has_states()) {
      // The tokens stand behind a run of their own: in a plain prompt the prefix cache would find
      // them.
      QUIRE_TRY(const tiers::HeldRef held, runtime.sequences().hold(state, {}));
      const sequences::BlockRun run = sequences::run_of(held);
      QUIRE_TRY(state, runtime.sequences().open({&run, 1}, {&ids.front(), 1}, {}));
    }
    QUIRE_TRY_STATUS(runtime.saved_sequences().save(state, file, {}));
  }
  RestoreTimes times;
  const auto round = [&]() -> Result<double> {
    QUIRE_TRY_STATUS(outcome(runtime.engine().clear_prefix_cache()));
    return seconds_of([&] { return runtime.saved_sequences().load(file, {}); });
  };
  QUIRE_TRY(times.seconds, median_of_rounds(round));
  QUIRE_TRY(times.path_seconds, peaks.path_seconds(file));
  return times;
}

Result<double> time_compose(runtime::Runtime& runtime, std::int32_t tokens, const TakeIds& take) {
  std::vector<ChunkContent> contents;
  contents.reserve(kChunks + 1);
  for (std::int32_t i = 0; i < kChunks; ++i) {
    contents.push_back({.content = take(std::max(tokens / kChunks, 1))});
  }
  contents.push_back({.content = take(kComposedQueryTokens), .type = ChunkType::kQuery});
  QUIRE_TRY(const auto registered, runtime.chunks().register_chunks(contents, {}, {}));
  CompositionSpec spec{.without_system = true};
  for (const chunks::RegisteredChunk& chunk : registered) {
    spec.context_chunk_ids.push_back(chunk.id);
  }
  spec.query_chunk_id = spec.context_chunk_ids.back();
  spec.context_chunk_ids.pop_back();
  const SamplingParams one = {.temperature = 0, .max_tokens = 1};
  const chunks::ComposedRun run = {.spec = &spec, .params = &one};
  const auto round = [&]() -> Result<double> {
    const auto start = engine::Clock::now();
    QUIRE_TRY(const auto requests, runtime.chunks().submit({&run, 1}, {}));
    const double seconds = base::seconds_since(start);
    QUIRE_TRY_STATUS(outcome(requests.front()->take_generation()));
    return seconds;
  };
  auto seconds = median_of_rounds(round);
  for (const chunks::RegisteredChunk& chunk : registered) {
    QUIRE_TRY_STATUS(outcome(runtime.chunks().remove(chunk.id, false, "")));
  }
  return seconds;
}

}  // namespace quire::diagnostics
