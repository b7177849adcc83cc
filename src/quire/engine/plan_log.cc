#include "quire/engine/plan_log.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "quire/sched/types.h"
#include "quire/stats.h"
#include "quire/types.h"

namespace quire::engine {

void PlanLog::note(const sched::StepPlan& plan) {
  next_.admitted.insert(next_.admitted.end(), plan.admit.begin(), plan.admit.end());
  for (const RequestId id : plan.preempt) {
    next_.preempted.emplace_back(id, Reason::kBlocks);
  }
  for (const RequestId id : plan.make_way) {
    next_.preempted.emplace_back(id, Reason::kPriority);
  }
}

void PlanLog::add(std::int64_t step, std::int64_t rows, double seconds) {
  next_.step = step;
  next_.rows = rows;
  next_.seconds = seconds;
  std::swap(entries_[added_ % kKept], next_);
  next_.admitted.clear();
  next_.preempted.clear();
  ++added_;
}

std::vector<PlanDecision> PlanLog::last(std::size_t count) const {
  constexpr double kMs = 1e3;
  const std::size_t given = std::min({count, added_, kKept});
  std::vector<PlanDecision> decisions;
  decisions.reserve(given);
  for (std::size_t i = added_ - given; i < added_; ++i) {
    const Entry& entry = entries_[i % kKept];
    PlanDecision& decision = decisions.emplace_back();
    decision.step = entry.step;
    decision.admitted = entry.admitted;
    for (const auto& [id, reason] : entry.preempted) {
      decision.preempted.push_back(
          {.request = id, .reason = reason == Reason::kBlocks ? "blocks" : "priority"});
    }
    decision.rows = entry.rows;
    decision.ms = entry.seconds * kMs;
  }
  return decisions;
}

}  // namespace quire::engine
