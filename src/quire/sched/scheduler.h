// Continuous batching. plan() decides from plain state and changes nothing. commit() alone admits,
// allocates, evicts and preempts.
//
// First come, first served. Requests stand in one line in order of arrival; its first num_running()
// are running, the others wait. So admission takes from the front of the waiting, preemption takes
// the youngest running one and puts it back to the front of the waiting, and the oldest request
// always runs: nobody starves.
//
// Thread rule: one thread (the engine's) owns it.
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

struct SchedulerConfig {
  std::int32_t max_batch_tokens = 2048;  // rows of one step; long prompts are cut to fit
  std::int32_t max_running = 256;        // sequences of one step; also at most max_batch_tokens
  std::int64_t block_bytes = 0;          // of one KV block, for errors in bytes; 0: not known
  [[nodiscard]] Status validate() const;
};

// A request as the scheduler sees it. It ends when finish() is called, and only then.
struct Request {
  RequestId id;
  std::vector<TokenId> prompt;      // not empty; empty with `sequence`
  std::optional<SeqId> sequence;    // instead: a composition or a fork with at least one token of
                                    // its own without KV: opened by the caller, closed by the
                                    // scheduler once it is accepted. Preempted, it keeps segments
  std::int32_t max_new_tokens = 0;  // KV of the last sampled token is never needed
  bool reuse = true;                // attach cached prefixes
  kv::SessionRef session;           // whose request it is; carried for the ledger
  std::string salt;                 // of a prompt: whose cached prefixes it shares
};

// Work of one sequence in one step: KV of `count` tokens from `first` on is computed.
struct PlannedRun {
  RequestId request;
  std::int32_t first = 0;  // index into the sequence's own tokens; equals num_computed
  std::int32_t count = 0;
  bool samples = false;  // reaches the last known token: its logits give the next one. Never for
                         // max_new_tokens == 0
};

// What to do in the next step, in order: preempt, admit, run.
struct StepPlan {
  std::vector<RequestId> preempt;  // youngest first: they lose their KV and wait at the front
  std::vector<RequestId> admit;    // from the waiting queue, in order
  std::vector<PlannedRun> runs;
  std::vector<RequestId> drop;     // waiting, lose the KV that they brought along, because nothing
                                   // else can run: then there is nothing else in the plan
  std::optional<RequestId> stuck;  // nothing can run, not even this one, the oldest that wants to,
                                   // though everybody else gave up his KV: blocks are held outside
                                   // of the scheduler. The plan is empty then
  std::uint64_t version = 0;       // of the state that it was made from
  [[nodiscard]] bool empty() const { return runs.empty(); }
  void clear();  // keeps its memory
};

// A committed run: the ledger has room for it.
struct ScheduledRun {
  RequestId request;
  SeqId sequence;
  std::int32_t first = 0;
  std::int32_t count = 0;
  bool samples = false;
};

struct RequestProgress {
  std::int32_t cached_tokens = 0;  // prompt tokens with KV at first admission: from the prefix
                                   // cache, or what a sequence brought along
  std::int32_t preemptions = 0;
};

class Scheduler {
 public:
  // `ledger` is borrowed and must outlive the scheduler. Precondition: config.validate().ok().
  Scheduler(const SchedulerConfig& config, kv::Ledger& ledger);
  // Closes the sequences of all requests.
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Queues a request (first come, first served). kOverflow with both numbers when its prompt plus
  // max_new_tokens can never fit into all blocks; kInvalidArgument for a prompt without a token to
  // compute, a negative max_new_tokens or a known id.
  [[nodiscard]] Status submit(Request request);

  // Ends a request in any state and frees its blocks at once; false when unknown.
  bool finish(RequestId id);

  // Rows: sequences that want one token first, then prompts, oldest first, as far as
  // max_batch_tokens goes. Blocks: oldest first; a prompt takes fewer rows when blocks are short,
  // and when there is none for a sequence the youngest is preempted. Nobody is admitted in a step
  // that preempts, or before blocks for all his known tokens are there. Cost: O(running)
  // plus the prefix match of what is admitted and of one more. `memory`: of an earlier plan, to be
  // used again; what it holds does not matter.
  [[nodiscard]] StepPlan plan(StepPlan memory = {}) const;

  // Carries the plan out. A plan made before the last change of state is kInternal and changes
  // nothing. Runs whose blocks could not be had (never for a fresh plan) are an error too; what was
  // admitted and preempted before stays so. The runs are valid until the next call.
  [[nodiscard]] Result<std::span<const ScheduledRun>> commit(const StepPlan& plan);

  // Commits the step behind `runs`, the last committed ones, before they are completed: the same
  // runs one token further, which plan() would give if each had got its token and none had ended.
  // The token that such a run computes is the one that is still to be sampled. False, and nothing
  // has changed, when a run is not of one token that samples, or needs no KV of another one; when
  // somebody runs who is not among them; when blocks are short. `runs` are completed first, then
  // `next`. O(runs).
  [[nodiscard]] bool repeat(std::span<const ScheduledRun> runs, std::vector<ScheduledRun>& next);

  // After the forward pass: the KV of the run is stored; `sampled` is appended where run.samples.
  // A request that was finished since the commit is ignored.
  void complete(const ScheduledRun& run, std::optional<TokenId> sampled);

  // The sequence of a request that was admitted once.
  [[nodiscard]] std::optional<SeqId> sequence(RequestId id) const;
  // Of an unknown request: nothing.
  [[nodiscard]] RequestProgress progress(RequestId id) const;
  [[nodiscard]] std::int32_t num_waiting() const;
  [[nodiscard]] std::int32_t num_running() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::sched
