// Continuous batching. plan() decides from plain state and changes nothing. commit() alone admits,
// allocates, evicts and preempts.
//
// First come, first served. Requests stand in one line in order of arrival. The first num_running()
// run and the others wait. Admission takes the first waiting request. Preemption takes the youngest
// running one and puts it back to the front of the waiting. So the oldest request always runs, and
// no request starves.
//
// Thread rule: one thread, the engine's, owns it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::sched {

// Limits of a step.
struct SchedulerConfig {
  std::int32_t max_batch_tokens = 2048;  // rows of one step; long prompts are cut to fit
  std::int32_t max_running = 256;        // sequences of one step; also at most max_batch_tokens
  std::int64_t block_bytes = 0;          // of one KV block, for errors in bytes; 0: not known
  // Returns kInvalidArgument that names the first bad field.
  [[nodiscard]] Status validate() const;
};

// A request as the scheduler sees it. Only finish() ends it.
struct Request {
  RequestId id;
  std::vector<TokenId> prompt;      // not empty; empty with `sequence`
  std::optional<SeqId> sequence;    // instead of a prompt: a composition or a fork with at least
                                    // one own token without KV. The caller opens it, the scheduler
                                    // closes it once it is accepted. Preempted, it keeps segments
  std::int32_t max_new_tokens = 0;  // KV of the last sampled token is never needed
  bool reuse = true;                // attach cached prefixes
  kv::SessionRef session;           // passed to the ledger
  std::string salt;                 // of a prompt: the tenant whose cached prefixes it shares
};

// The work of one sequence in one step: the KV of `count` tokens from `first` on.
struct PlannedRun {
  RequestId request;
  std::int32_t first = 0;  // index into the sequence's own tokens; equals num_computed
  std::int32_t count = 0;
  bool samples = false;  // the run reaches the last known token, whose logits give the next one.
                         // Never for max_new_tokens == 0
};

// The work of the next step, in order: preempt, admit, run.
struct StepPlan {
  std::vector<RequestId> preempt;  // youngest first; each loses its KV and waits at the front
  std::vector<RequestId> admit;    // from the waiting queue, in order
  std::vector<PlannedRun> runs;
  std::vector<RequestId> drop;     // waiting requests that lose the KV that they brought along,
                                   // because no request can run. The plan has nothing else then
  std::optional<RequestId> stuck;  // names the oldest request when no request fits, even after all
                                   // others were preempted: blocks are held outside of the
                                   // scheduler. `runs` is empty then
  std::uint64_t version = 0;       // of the state that the plan was made from
  [[nodiscard]] bool empty() const { return runs.empty(); }
  // Empties the plan and keeps its memory.
  void clear();
};

// A committed run: the ledger has room for it.
struct ScheduledRun {
  RequestId request;
  SeqId sequence;
  std::int32_t first = 0;
  std::int32_t count = 0;
  bool samples = false;
};

// Counters of one request.
struct RequestProgress {
  std::int32_t cached_tokens = 0;  // prompt tokens with KV at first admission: from the prefix
                                   // cache, or brought along by a sequence
  std::int32_t preemptions = 0;
};

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

  // Returns the plan of the next step and changes nothing. Rows go to sequences that want one
  // token, then to prompts, oldest first, up to max_batch_tokens. Blocks go to the oldest first: a
  // prompt takes fewer rows when blocks are short, and a sequence without a block preempts the
  // youngest. No request is admitted in a step that preempts, or before blocks for all its known
  // tokens exist. `memory` is an earlier plan whose memory is used again. Cost: O(running), plus
  // the prefix match of each admitted request and of one more.
  [[nodiscard]] StepPlan plan(StepPlan memory = {}) const;

  // Carries the plan out. Fails with kInternal, changing nothing, for a plan made before the last
  // change of state. Fails too when blocks of a run cannot be had, which a fresh plan never causes;
  // earlier admissions and preemptions stay then. The runs are valid until the next call.
  [[nodiscard]] Result<std::span<const ScheduledRun>> commit(const StepPlan& plan);

  // Commits the step behind `runs`, the last committed runs, before they are completed (ADR 0022).
  // The step has the same runs one token further, as plan() would give them if no request ends. A
  // run computes the token that is still to be sampled. Returns false and changes nothing if a run
  // is not of one sampling token, needs no KV of another token, or leaves a running request out, or
  // if blocks are short. The caller completes `runs` first, then `next`. Cost: O(runs).
  [[nodiscard]] bool repeat(std::span<const ScheduledRun> runs, std::vector<ScheduledRun>& next);

  // Books a run after the forward pass: its KV is stored, and `sampled` is appended if run.samples.
  // Ignores a request that was finished since the commit.
  void complete(const ScheduledRun& run, std::optional<TokenId> sampled);

  // Returns the sequence of a request that was admitted once; else nullopt.
  [[nodiscard]] std::optional<SeqId> sequence(RequestId id) const;
  // Returns the counters of a request; zeros if it is unknown.
  [[nodiscard]] RequestProgress progress(RequestId id) const;
  [[nodiscard]] std::int32_t num_waiting() const;
  // Returns the request that has waited longest, or nullopt when none waits. Cost: O(1).
  [[nodiscard]] std::optional<RequestId> first_waiting() const;
  [[nodiscard]] std::int32_t num_running() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::sched
