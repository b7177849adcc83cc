// Policies: the order in which requests are served, decided from plain state.
//
// A policy ranks waiting and running requests together. Rows and blocks go to the first ones, and
// the last running one gives its blocks back when blocks are short. A policy knows no ledger and no
// clock: times are seconds that the planner has counted.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace quire::sched {

// Names a rule of ranking.
enum class PolicyKind : std::uint8_t {
  kFcfs,      // oldest first
  kPriority,  // highest effective priority, then oldest
  kShortest,  // longest overdue, else least work left, then oldest
  kFair,      // tenant with the least service, then oldest
  kAdaptive   // largest cached share, but oldest first once the oldest has waited too long
};

// Returns "fcfs", "priority", "shortest", "fair" or "adaptive". Static memory.
[[nodiscard]] const char* policy_name(PolicyKind kind);

// A request as a policy sees it.
struct RankedRequest {
  std::int32_t priority = 0;
  double age_seconds = 0;  // since submission
  // Seconds between submission and now, or the last admission where it runs.
  double waited_seconds = 0;
  bool running = false;
  std::int64_t work_left = 0;  // tokens without KV of the prompt, and tokens still to be generated
  std::int32_t tenant = 0;     // index into PolicyView::service
  double next_service = 0;     // service that its tenant gets when the request is planned next
  double cached_share = 0;     // share of its known tokens that have KV. 1 where it runs
};

// All that a policy decides from. Borrowed.
struct PolicyView {
  std::span<const RankedRequest> requests;  // by arrival: the index breaks ties
  std::span<const double> service;          // [tenants]
  double aging_seconds = 30;
  double max_wait_seconds = 5;
};

class Policy {
 public:
  Policy() = default;
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;
  virtual ~Policy() = default;

  // Replaces `order` by the indices of all requests, the first to be served first. Pure.
  virtual void rank(const PolicyView& view, std::vector<std::int32_t>& order) const = 0;
  // Returns whether a waiting request that lacks blocks may take those of a running one.
  [[nodiscard]] virtual bool outranks(const PolicyView& /*view*/, const RankedRequest& /*waiting*/,
                                      const RankedRequest& /*running*/) const {
    return false;
  }
};

// Returns the policy of a kind. It has no state; static memory.
[[nodiscard]] const Policy& policy_of(PolicyKind kind);

// Returns the priority that a request has at its age: one more for each `aging_seconds`.
[[nodiscard]] std::int64_t effective_priority(const RankedRequest& request, double aging_seconds);

}  // namespace quire::sched
