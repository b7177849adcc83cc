// The tokens of a step: how each is chosen, on the device or here, and which of those that were
// assumed are right.
//
// Thread rule: the engine thread.
#pragma once

#include <cstddef>
#include <span>

#include "quire/engine/step_state.h"
#include "quire/model/forward_batch.h"
#include "quire/sched/types.h"

namespace quire::engine {

// Tells the batch how each row's token is chosen and what changes in its logits before. So a device
// can do it where the logits are.
void offer_choices(Step& step, RunningStep& running, model::ForwardBatch& batch);
// Gives the batch the tokens of `now`, which the device has: the rows of `next` are those of `now`.
void take_tokens_from_device(Step& step, model::ForwardBatch& batch);

// Fills `sampled`, and the logits of forward requests. Behind an assumed token it goes on only if
// that was chosen: a token is chosen as it is without drafts, or not at all.
void sample_step(Step& step, std::span<float> logits);
// Gives the request the tokens of a run, up to one that ends it, and books them and their KV.
// Returns whether the request ends.
[[nodiscard]] bool accept_sampled(Step& step, const sched::ScheduledRun& run, std::size_t index);

}  // namespace quire::engine
