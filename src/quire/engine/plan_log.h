// PlanLog: the last decisions of the scheduler, step by step.
//
// Thread rule: the engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "quire/sched/types.h"
#include "quire/stats.h"
#include "quire/types.h"

namespace quire::engine {

class PlanLog {
 public:
  static constexpr std::size_t kKept = 4096;

  PlanLog() : entries_(kKept) {}

  // Notes a plan that was committed: its admissions and preemptions belong to the next step.
  void note(const sched::StepPlan& plan);
  // Ends a decision: the step with this number. Allocates nothing where nothing was admitted or
  // preempted.
  void add(std::int64_t step, std::int64_t rows, double seconds);
  // Returns the last `count` decisions that are kept, the oldest first.
  [[nodiscard]] std::vector<PlanDecision> last(std::size_t count) const;

 private:
  enum class Reason : std::uint8_t { kBlocks, kPriority };
  struct Entry {
    std::int64_t step = 0;
    std::int64_t rows = 0;
    double seconds = 0;
    std::vector<RequestId> admitted;
    std::vector<std::pair<RequestId, Reason>> preempted;
  };

  std::vector<Entry> entries_;  // a ring; its entries keep their memory
  Entry next_;
  std::size_t added_ = 0;
};

}  // namespace quire::engine
