#include "quire/api/await.h"

#include <new>
#include <utility>
#include <vector>

#include "quire/base/no_memory.h"
#include "quire/engine/channel.h"  // IWYU pragma: keep (called through pointers)
#include "quire/engine/engine.h"
#include "quire/interrupt.h"
#include "quire/output.h"
#include "quire/result.h"

namespace quire {
namespace {

Status first_failure(Channels channels) {
  for (const auto& channel : channels) {
    QUIRE_TRY_STATUS(channel->failure());
  }
  return {};
}

// Waits until all have ended, one has failed, or the caller interrupts.
Status wait_all(Channels channels, const Interrupt& interrupted) {
  const int timeout_ms = interrupted || channels.size() > 1 ? kInterruptPollMs : -1;
  Status state;
  for (const auto& channel : channels) {
    while (state.ok() && !channel->wait_end(timeout_ms)) {
      state = interrupted && interrupted()
                  ? Status(ErrorCode::kCancelled, "the call was interrupted")
                  : first_failure(channels);
    }
  }
  return state.ok() ? first_failure(channels) : state;
}

}  // namespace

Status await(engine::Engine& engine, Channels channels, const Interrupt& interrupted) {
  Status done;
  try {
    done = wait_all(channels, interrupted);
  } catch (const std::bad_alloc&) {
    done = base::no_memory("waiting for requests");
  }
  if (done.ok()) {
    return done;
  }
  for (const auto& channel : channels) {
    engine.abandon(channel->id());
  }
  return done;
}

Result<std::vector<GenerationOutput>> await_outputs(engine::Engine& engine, Channels channels,
                                                    const Interrupt& interrupted) {
  QUIRE_TRY_STATUS(await(engine, channels, interrupted));
  std::vector<GenerationOutput> outputs;
  for (const auto& channel : channels) {
    QUIRE_TRY(auto output, channel->take_generation());
    outputs.push_back(std::move(output));
  }
  return outputs;
}

}  // namespace quire
