// The pure half of the scheduler: plain state in, plan out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/kv/ledger.h"
#include "quire/sched/types.h"

namespace quire::sched {

struct QueuedRequest {
  Request request;                // the prompt moves to the ledger at first admission
  std::uint64_t arrival = 0;      // place in the line
  std::int32_t total_tokens = 0;  // most tokens whose KV it can need: prompt + max_new_tokens - 1
  std::optional<SeqId> sequence;  // set from first admission on; of a composition from the start
  RequestProgress progress;

  // Returns the sequence of a running request. Precondition: the request is running.
  [[nodiscard]] SeqId running_sequence() const {
    QUIRE_CHECK(sequence.has_value(), "a running request without a sequence");
    return *sequence;
  }
};

struct SchedulerState {
  SchedulerConfig config;
  kv::Ledger* ledger = nullptr;
  // By arrival; the first num_running are running.
  std::vector<std::unique_ptr<QueuedRequest>> line;
  std::int32_t num_running = 0;
  std::uint64_t version = 0;  // grows with every change
};

// Makes the plan of Scheduler::plan; replaces what `plan` holds.
void make_plan(const SchedulerState& state, StepPlan& plan);

}  // namespace quire::sched
