// The states of a step: where its runs find and store them, and which are kept as restore points.
// Nothing here does anything for a model without layers that carry a state.
//
// A point in the middle of a run is kept by the pass itself, behind the row before it. So no step
// is made for it. Points are wanted before the last token of a prompt, and at the end of an answer.
// They are wanted where a prompt leaves a known history, and ever further back from its end.
//
// A sequence behind segments begins with the state that their maps make, in its first step and
// whenever it begins again.
//
// Thread rule: the engine thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/base/ids.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/step_state.h"
#include "quire/kv/states.h"
#include "quire/model/forward_batch.h"
#include "quire/result.h"
#include "quire/sched/types.h"

namespace quire::engine {

// Tells the batch where the states of its runs are, and puts KV into blocks that begin at a point.
// Fails as PagedPool::write_blocks does.
[[nodiscard]] Status add_states(Step& step, const RunningStep& running, model::ForwardBatch& batch);
// Returns kInvalidArgument that names the part of the state behind a run with a NaN or an infinity.
// Looks where a prompt ends; behind it the logits tell. On an accelerator it looks at nothing:
// saving does. Then also gives back what the pass has kept of the run.
[[nodiscard]] Status check_state(Step& step, const sched::ScheduledRun& run);
// Notes that the first `count` assumed rows that run `index` has taken are right.
void note_right_rows(Step& step, std::size_t index, std::int32_t count);
// Advances the states of a booked step by the rows that were noted. Call it before anything reads a
// state.
void advance_states(Step& step);
// Makes points of what the pass has kept of a run that was booked, and with `ends` of its end.
void keep_points(Step& step, const sched::ScheduledRun& run, bool ends);

// Makes state `to` the one behind the segments that the sequence is composed of, from their maps.
// Returns false where there are none. Fails with kCorrupt for maps of another model.
[[nodiscard]] Result<bool> compose_state(EngineCore& core, SeqId sequence, std::int32_t to);

// Makes a state the point behind the first `tokens` tokens of a sequence. Copies the KV of the
// block that the point ends in beside the state.
void add_point(EngineCore& core, SeqId sequence, std::int32_t tokens, const kv::HeldState& state,
               bool stays);

}  // namespace quire::engine
