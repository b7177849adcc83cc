// Continuous batching. plan() decides from plain state and changes nothing. commit() alone admits,
// allocates, evicts and preempts.
//
// A policy ranks the requests (policy.h). Admission takes the first waiting request in rank, and no
// other before it. Preemption takes the last running one; it waits again and keeps its age. First
// come, first served is the default: the oldest request always runs, so none starves.
//
// Thread rule: one thread, the engine's, owns it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/ledger.h"
#include "quire/result.h"
#include "quire/sched/kept_kv.h"
#include "quire/sched/step_pace.h"
#include "quire/sched/types.h"
#include "quire/types.h"

namespace quire::sched {

class Scheduler {
 public:
  // Borrows `ledger`, which outlives the scheduler. Precondition: config.validate().ok().
  Scheduler(const SchedulerConfig& config, kv::Ledger& ledger);
  // Closes the sequences of all requests.
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Queues a request. Fails with kOverflow and both numbers when its prompt plus max_new_tokens can
  // never fit into all blocks. Fails with kInvalidArgument for a prompt without a token to compute,
  // a negative max_new_tokens or a known id.
  [[nodiscard]] Status submit(Request request);

  // Ends a request in any state and frees its blocks at once. Returns false if it is unknown.
  bool finish(RequestId id);

  // Returns the plan of the next step and changes nothing. The time is the ledger's. Rows go to
  // sequences that want one token, then to prompts in rank, up to max_batch_tokens and
  // max_gap_seconds. Blocks go to the first in rank: a prompt takes fewer rows when blocks are
  // short, and a sequence without a block preempts the last. Under kPriority a waiting request
  // that lacks blocks preempts those of a strictly lower effective priority. No request is admitted
  // in a step that preempts, or before blocks for all its known tokens exist. `memory` is an
  // earlier plan whose memory is used again. Cost: O(running), plus the prefix match of each
  // admitted request and of one more; under other policies than kFcfs see Ranking.
  [[nodiscard]] StepPlan plan(StepPlan memory = {}) const;

  // Carries the plan out. Fails with kInternal, changing nothing, for a plan made before the last
  // change of state. Fails too when blocks of a run cannot be had, which a fresh plan never causes;
  // earlier admissions and preemptions stay then. The runs are valid until the next call.
  [[nodiscard]] Result<std::span<const ScheduledRun>> commit(const StepPlan& plan);

  // Commits the step behind `runs`, the last committed runs, before they are completed (ADR 0022).
  // The step has the same runs one token further, as plan() would give them if no request ends. A
  // run computes the token that is still to be sampled. Returns false and changes nothing if a run
  // is not of one sampling token, or needs no KV of another token. Does so, too, if `runs` leaves a
  // running request out, or if blocks are short. The caller completes `runs` first, then `next`.
  // Cost: O(runs).
  [[nodiscard]] bool repeat(std::span<const ScheduledRun> runs, std::vector<ScheduledRun>& next);

  // Adds up to wanted[i] assumed rows to run i of a fresh plan (assumed.h). Returns how many rows
  // are left. Cost: O(running).
  [[nodiscard]] std::int64_t assume(StepPlan& plan, std::span<const std::int32_t> wanted) const;

  // Returns the seconds that a plan leaves over of the bound on a step. Infinite without a bound.
  [[nodiscard]] double seconds_left(const StepPlan& plan) const;

  // Books a run after the forward pass: its KV is stored, and `sampled` is appended if run.samples.
  // All but the last of these were assumed. Ignores a request that was finished since the commit.
  void complete(const ScheduledRun& run, std::span<const TokenId> sampled);
  void complete(const ScheduledRun& run, std::optional<TokenId> sampled) {
    complete(run, sampled ? std::span(&*sampled, 1) : std::span<const TokenId>());
  }

  // Returns the sequence of a request that was admitted once; else nullopt.
  [[nodiscard]] std::optional<SeqId> sequence(RequestId id) const;
  // Returns the counters of a request; zeros if it is unknown.
  [[nodiscard]] RequestProgress progress(RequestId id) const;
  [[nodiscard]] std::int32_t num_waiting() const;
  // Returns how many of these were never admitted, with their followers. Cost: O(waiting).
  [[nodiscard]] std::int32_t num_new() const;
  // Returns how many of those lack blocks or a place, rather than rows of the next step. Cost: as
  // plan().
  [[nodiscard]] std::int32_t num_without_room() const;
  // Returns the request that has waited longest, or nullopt when none waits. Cost: O(1).
  [[nodiscard]] std::optional<RequestId> first_waiting() const;
  [[nodiscard]] std::int32_t num_running() const;
  // Returns what a waiting request may take; nullopt for one that takes nothing, or does not wait.
  // Valid until the next change.
  [[nodiscard]] std::optional<Takes> takes(RequestId id) const;
  // Notes that the caller keeps the KV of a request's first `tokens` tokens; 0: of none. A plan
  // admits the request without a run then. Before the next plan the caller makes room, writes the
  // KV back and books it by complete(). No effect for an unknown request.
  void note_kept(RequestId id, std::int32_t tokens);
  // Returns what note_kept() has noted; 0 for an unknown request.
  [[nodiscard]] std::int32_t kept(RequestId id) const;
  // Notes that KV which was kept is behind the first `first` tokens of a running request now.
  // Before it is computed for the first time, these tokens count as cached.
  void note_brought(RequestId id, std::int32_t first);
  // Sets how long steps take, for max_gap_seconds.
  void set_pace(const StepPace& pace);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::sched
