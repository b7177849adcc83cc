// Plain structs that the scheduler takes and returns.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/states.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/sched/policy.h"
#include "quire/types.h"

namespace quire::sched {

// Limits of a step.
struct SchedulerConfig {
  std::int32_t max_batch_tokens = 2048;  // rows of one step; long prompts are cut to fit
  std::int32_t max_running = 256;        // sequences of one step; also at most max_batch_tokens
  std::int64_t block_bytes = 0;          // bytes of one KV block, for errors in bytes; 0: not known
  PolicyKind policy = PolicyKind::kFcfs;
  double aging_seconds = 30;    // raise a priority by one, and make a request overdue (kShortest)
  double decode_weight = 2;     // service of a generated token; a prompt token's is 1 (kFair)
  double max_wait_seconds = 5;  // after which the oldest goes first (kAdaptive)
  // Seconds within which a step shall end while it generates tokens. 0: no bound.
  double max_gap_seconds = 0;
  // Returns kInvalidArgument that names the first bad field.
  [[nodiscard]] Status validate() const;
};

// A request as the scheduler sees it. Only finish() ends it.
struct Request {
  RequestId id;
  std::vector<TokenId> prompt;      // prompt; empty only with `sequence`
  std::optional<SeqId> sequence;    // instead of a prompt: a composition or a fork with at least
                                    // one own token without KV. The caller opens it, the scheduler
                                    // closes it once it is accepted. Preempted, it keeps segments
  std::int32_t max_new_tokens = 0;  // KV of the last sampled token is never needed
  bool reuse = true;                // attach cached prefixes
  kv::SessionRef session;           // passed to the ledger
  std::string salt;  // salt of the prompt: the tenant whose cached prefixes it shares
  // Requests of the same prompt that come once this one has begun. They count where room is
  // counted.
  std::int32_t followers = 0;
  std::int32_t priority = 0;
  std::string tenant;                     // shares service with other requests of this name (kFair)
  kv::TimePoint submitted;                // the default: the present moment of the ledger
  std::vector<kv::PointMark> marks = {};  // lengths of the prompt where it wants restore points
  kv::BehindWindow behind_window = kv::BehindWindow::kFrees;  // of the prompt's sequence
};

// The work of one sequence in one step: the KV of `count` tokens from `first` on.
struct PlannedRun {
  RequestId request;
  std::int32_t first = 0;  // index into the sequence's own tokens; equals num_computed
  std::int32_t count = 0;
  bool samples = false;  // the run reaches the last known token, whose logits give the next one.
                         // Never for max_new_tokens == 0
  std::int32_t assumed = 0;  // rows at the end whose tokens are drafts (Scheduler::assume)
};

// The work of the next step, in order: preempt, admit, run.
struct StepPlan {
  std::vector<RequestId> preempt;   // lowest rank first; each loses its KV and waits again
  std::vector<RequestId> make_way;  // the same, for a waiting request that outranks them. The plan
                                    // admits none then
  std::vector<RequestId> admit;     // requests of the waiting queue, in order
  std::vector<PlannedRun> runs;
  std::vector<RequestId> drop;     // waiting requests that lose the KV that they brought along,
                                   // because no request can run. The plan has nothing else then
  std::optional<RequestId> stuck;  // names the first request in rank when no request fits, even
                                   // after all others were preempted: blocks are held outside of
                                   // the scheduler. `runs` is empty then
  bool slowed = false;             // a request that has room waits, as blocks are short (slows())
  std::uint64_t version = 0;       // version of the state that the plan was made from
  // Returns whether it takes the KV of running requests away.
  [[nodiscard]] bool preempts() const { return !preempt.empty() || !make_way.empty(); }
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
  std::int32_t assumed = 0;
};

// Counters of one request.
struct RequestProgress {
  std::int32_t cached_tokens = 0;  // prompt tokens with KV at first admission: from the prefix
                                   // cache, brought along by a sequence, or kept
  std::int32_t kept_tokens = 0;    // those of them that came from elsewhere (note_kept)
  std::int32_t preemptions = 0;
};

}  // namespace quire::sched
