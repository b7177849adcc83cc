// The plain state of a scheduler, from which plans are made.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/sched/step_pace.h"
#include "quire/sched/tenants.h"
#include "quire/sched/types.h"

namespace quire::sched {

struct QueuedRequest {
  Request request;            // the prompt moves to the ledger at first admission
  std::uint64_t arrival = 0;  // place among all requests
  bool running = false;       // its KV is in blocks; otherwise it waits
  std::int32_t prompt_tokens = 0;
  std::int32_t total_tokens = 0;  // most tokens whose KV it can need: prompt + max_new_tokens - 1
  std::optional<SeqId> sequence;  // set from first admission on; of a composition from the start
  kv::TimePoint admitted;         // at the last admission
  std::int32_t tenant = -1;       // index into Tenants::service(); -1: the policy knows no tenants
  std::int32_t charged = 0;       // tokens that its tenant was charged for, from the first on
  std::int32_t kept = 0;          // tokens whose KV the caller keeps elsewhere while it waits
  RequestProgress progress;

  // Returns the sequence of a running request. Precondition: the request is running.
  [[nodiscard]] SeqId running_sequence() const {
    QUIRE_CHECK(sequence.has_value(), "a running request without a sequence");
    return *sequence;
  }
};

using RequestLine = std::vector<QueuedRequest*>;

// Moves a request from one line to the other. Both have memory for all requests.
inline void move_between(RequestLine& from, RequestLine& to, QueuedRequest& queued) {
  const auto place = std::ranges::lower_bound(from, queued.arrival, {}, &QueuedRequest::arrival);
  from.erase(place);
  to.insert(std::ranges::lower_bound(to, queued.arrival, {}, &QueuedRequest::arrival), &queued);
}

struct SchedulerState {
  SchedulerConfig config;
  kv::Ledger* ledger = nullptr;
  RequestLine running;  // by arrival
  RequestLine waiting;  // by arrival
  Tenants tenants;
  StepPace pace;
  std::uint64_t version = 0;  // grows with every change
};

}  // namespace quire::sched
