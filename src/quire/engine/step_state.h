// Step: the state of steps, one after the other. Its functions: step.h, step_ahead.h, step_loads.h;
// their order: step_run.h.
//
// Invariants
//   1. At most two steps are launched: `now`, which ends next, and `next` behind it.
//   2. The ledger knows the tokens of `now` when that has been awaited, not before. For `next` it
//      has made room and nothing else.
//   3. Tasks run while nothing is launched.
//   4. A request that ends with `now` gives its blocks back at once. `next` writes there before
//      anything that is launched or copied later.
//
// Thread rule: the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "quire/base/stopwatch.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/engine/active_request.h"
#include "quire/engine/batch_builder.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/engine_thread.h"
#include "quire/engine/hooks.h"
#include "quire/engine/kept_states.h"
#include "quire/engine/request_table.h"
#include "quire/engine/running_step.h"
#include "quire/engine/speculation.h"
#include "quire/engine/stats_snapshot.h"
#include "quire/kernels/choice.h"
#include "quire/result.h"
#include "quire/sampling/sampler.h"
#include "quire/sched/step_pace.h"
#include "quire/sched/types.h"
#include "quire/types.h"

namespace quire::engine {

// The tokens that a run has given.
struct SampledRun {
  std::vector<sampling::SampledToken> tokens;  // behind its certain rows, in order
  std::int32_t right = 0;                      // those of them that were assumed
  std::optional<std::size_t> branch;           // that has the last right one; none: the run itself
  Status status;                               // error of the row behind them
  [[nodiscard]] bool empty() const { return tokens.empty() && status.ok(); }
  void clear();  // keeps its memory
};

struct StepOptions {
  bool share_reads = true;          // true: KV that requests share is read once
  std::int32_t shared_tokens = 32;  // runs are shared in multiples of so many tokens
  SwapMode swap = SwapMode::kAuto;
};

// Steps, one after the other. Keeps its arrays, so that a steady batch allocates nothing.
struct Step {
  Step(EngineCore& core, RequestTable& requests, StatsSnapshot& stats, EngineThread& thread,
       device::ThreadPool& pool, const StepOptions& options);
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  // Borrowed.
  EngineCore& core;
  RequestTable& requests;
  StatsSnapshot& stats;
  const EngineThread& thread;
  device::ThreadPool& pool;
  const Hooks* hooks = nullptr;

  RunningStep now;                 // the step that ends next
  RunningStep next;                // launched behind it
  bool copies_lost = false;        // true: cached KV may be wrong
  std::int64_t coalesced_at = -1;  // step before which blocks were coalesced last
  BatchBuilder builder;
  StepPoints points;
  sched::StepPlan plan;
  const SwapMode swap;
  sched::PaceMeter pace;
  std::vector<std::int32_t> ids_from;         // [rows of next]
  std::vector<kernels::Choice> choices;       // [logit rows of a step]
  std::vector<kernels::LogitChange> changes;  // changes of their logits
  std::vector<std::int32_t> wanted_logits;    // [runs of a step]
  std::vector<sampling::Sampler> samplers;    // [threads]
  std::vector<SampledRun> sampled;            // [runs of now]
  std::vector<TokenId> accepted;              // tokens of the run that is booked
  std::unique_ptr<Speculation> speculation;   // null: no tokens are guessed
  std::vector<ActiveRequest*> touched;        // requests of the step that have something to deliver
  std::vector<ActiveRequest*> finished;       // requests that end with the step
};

}  // namespace quire::engine
