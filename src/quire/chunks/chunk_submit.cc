// Submitting compositions: one call from its first visit to the engine thread until its runs have
// started, or it is given up.
#include <algorithm>
#include <iterator>
#include <memory>
#include <new>
#include <ranges>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/no_memory.h"
#include "quire/chunks.h"
#include "quire/chunks/chunk_attempt.h"
#include "quire/chunks/chunk_service.h"
#include "quire/engine/active_request.h"
#include "quire/engine/channel.h"
#include "quire/engine/engine.h"
#include "quire/engine/session_service.h"
#include "quire/interrupt.h"
#include "quire/kv/chunk_registry.h"
#include "quire/result.h"
#include "quire/tiers/background_loads.h"
#include "quire/tiers/tier_service.h"

namespace quire::chunks {
namespace {

// A BOS token first, then the chunks' missing variants, then what is read for blending, then the
// runs; twice more if KV turns out to be damaged or a chunk was deleted and registered again.
constexpr int kAttempts = 6;

}  // namespace

// Blending looks at KV here and now, so that must be there; any other run waits for it layer by
// layer. Runs count as uses when what they read was right.
Result<bool> ChunkService::advance(std::span<const Run> runs, Attempt& attempt) {
  Behind behind;
  auto resolved =
      resolve(runs, attempt.in_use, attempt.reads_behind && !windowed() ? &behind : nullptr);
  start_reading(std::move(behind));  // whatever has failed since
  QUIRE_TRY(attempt.compositions, std::move(resolved));
  QUIRE_TRY(const bool complete, start_missing(attempt.compositions, attempt));
  if (!complete) {
    return false;
  }
  attempt.loads = loads_of(attempt.compositions);
  const bool blends =
      std::ranges::any_of(runs, [](const Run& run) { return run.spec->mode == ReuseMode::kBlend; });
  if (blends && !attempt.loads.empty()) {
    return false;
  }
  QUIRE_TRY_STATUS(start_runs(runs, attempt));
  if (attempt.loads.empty()) {
    count_uses(runs, attempt);
  }
  return true;
}

Status ChunkService::await_missing(Attempt& attempt, const Interrupt& interrupted) {
  QUIRE_TRY_STATUS(tiers::BackgroundLoads::await(attempt.loads, interrupted));
  for (const tiers::BackgroundLoads::LoadRef& load : std::exchange(attempt.loads, {})) {
    attempt.reads_behind = load->outcome().ok() && attempt.reads_behind;
  }
  return wait(attempt.pending, interrupted);
}

// Runs that read what was damaged have handed out nothing: they end, and begin anew without it.
Result<bool> ChunkService::await_read(std::span<const Run> runs, Attempt& attempt,
                                      const Interrupt& interrupted) {
  QUIRE_TRY_STATUS(tiers::BackgroundLoads::await(attempt.loads, interrupted));
  bool right = true;
  for (const tiers::BackgroundLoads::LoadRef& load : attempt.loads) {
    right = load->outcome().ok() && right;
  }
  if (attempt.loads.empty()) {
    return true;
  }
  attempt.loads.clear();
  attempt.reads_behind = right;
  QUIRE_TRY_STATUS(engine_.thread().call([&] {
    if (right) {
      count_uses(runs, attempt);
    } else {
      withdraw_runs(attempt);
    }
    engine_.publish_stats();
  }));
  return right;
}

void ChunkService::withdraw_runs(Attempt& attempt) {
  for (const std::shared_ptr<engine::Channel>& channel : std::exchange(attempt.channels, {})) {
    engine_.abort_now(channel->id());
    engine_.core().counters.tokens_reused -= channel->cached_tokens();  // nobody gets that output
  }
}

// Takes back what the attempt alone has wanted, without waiting for it: a step that runs may wait
// for files. The thread of an engine that closes may still be at the registry, which ends with it.
void ChunkService::give_up(Attempt attempt) {
  try {
    const auto last = std::make_shared<Attempt>(std::move(attempt));
    const bool sent = engine_.thread().post([this, last] { take_back(*last); });
    if (!sent) {
      std::ranges::for_each(last->in_use, &Use::forget);
    }
  } catch (const std::bad_alloc&) {
    engine_.thread().call_surely([&] { take_back(attempt); });
    std::ranges::for_each(attempt.in_use, &Use::forget);
  }
}

// Engine thread. Doing it twice does no more.
void ChunkService::take_back(Attempt& attempt) {
  withdraw_runs(attempt);
  leave(std::exchange(attempt.pending, {}));
  for (const auto& [name, prefill] : attempt.started) {
    if (*prefill.waiters == 0) {
      registry_.drop_variant(name);  // no effect where it is the BOS token
    }
  }
  for (auto next = bos_.begin(); next != bos_.end();) {
    const std::string salt = (next++)->first;
    drop_unused_bos(salt);
  }
  attempt.in_use.clear();
  engine_.publish_stats();
}

Result<std::vector<std::shared_ptr<engine::Channel>>> ChunkService::submit(
    std::span<const Run> runs, const Interrupt& interrupted,
    std::vector<kv::VariantName>* computed) {
  for (const Run& run : runs) {
    QUIRE_TRY([[maybe_unused]] const std::string salt, salt_of(run));
    QUIRE_TRY_STATUS(run.kind == engine::RequestKind::kGenerate ? engine_.check(*run.params)
                                                                : Status());
  }
  Attempt attempt{.counted = std::ranges::all_of(runs, &Run::counted)};
  try {
    return submit(runs, interrupted, computed, attempt);
  } catch (const std::bad_alloc&) {
    give_up(std::move(attempt));
    return base::no_memory("a composition");
  }
}

Result<std::vector<std::shared_ptr<engine::Channel>>> ChunkService::submit(
    std::span<const Run> runs, const Interrupt& interrupted, std::vector<kv::VariantName>* computed,
    Attempt& attempt) {
  for (int count = 0; count < kAttempts; ++count) {
    const auto started = engine_.thread().ask_for_blocks<bool>([&] {  // blending takes some
      auto advanced = advance(runs, attempt);
      if (!advanced.ok()) {
        attempt.in_use.clear();
      }
      return advanced;
    });
    const auto right = started.ok() && *started ? await_read(runs, attempt, interrupted) : started;
    if (right.ok() && *right) {
      if (attempt.counted) {
        save_variants(attempt.started);
      }
      if (computed != nullptr) {
        std::ranges::copy(attempt.started | std::views::keys, std::back_inserter(*computed));
      }
      return std::move(attempt.channels);
    }
    const Status done = right.ok() ? await_missing(attempt, interrupted) : right.error();
    if (!done.ok()) {
      give_up(std::move(attempt));
      return done.error();
    }
  }
  give_up(std::move(attempt));
  return {ErrorCode::kOutOfBlocks,
          "the composition's chunks were deleted as fast as they were computed; try again"};
}

}  // namespace quire::chunks
