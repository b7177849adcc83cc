// Speculation in a step: guesses are added to its plan as assumed rows (docs/adr/0047).
//
// Without LLMOptions::speculate these functions do nothing.
//
// Thread rule: the engine thread.
#pragma once

#include "quire/base/ids.h"
#include "quire/engine/active_request.h"
#include "quire/engine/step_state.h"
#include "quire/types.h"

namespace quire::engine {

// Guesses what follows the runs of `plan`, which is fresh, and adds assumed rows for it. The
// requests know the tokens (ActiveRequest::assumed).
void draft_tokens(Step& step);
// Returns whether the step behind `now` shall be planned, so that tokens can be guessed for it.
[[nodiscard]] bool wants_drafts(Step& step);
// Notes what `now` has cost.
void note_cost(Step& step, double seconds);
// Tells the source of guesses the output of a request that is done.
void learn_output(Step& step, const ActiveRequest& active, SeqId sequence);

}  // namespace quire::engine
