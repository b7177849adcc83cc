#include "quire/sched/policy.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

namespace quire::sched {
namespace {

// Replaces `order` by the indices sorted by `key`, and by arrival among equals.
template <class Key>
void sort_by(const PolicyView& view, std::vector<std::int32_t>& order, const Key& key) {
  order.resize(view.requests.size());
  std::iota(order.begin(), order.end(), 0);
  const auto at = [&](std::int32_t index) {
    return key(view.requests[static_cast<std::size_t>(index)]);
  };
  std::ranges::sort(order, [&](std::int32_t a, std::int32_t b) {
    return std::make_pair(at(a), a) < std::make_pair(at(b), b);
  });
}

class Fcfs final : public Policy {
 public:
  void rank(const PolicyView& view, std::vector<std::int32_t>& order) const override {
    order.resize(view.requests.size());
    std::iota(order.begin(), order.end(), 0);
  }
};

// Both of two requests age alike, so that the higher one of them never changes. So no two requests
// take each other's blocks in turns.
class ByPriority final : public Policy {
 public:
  void rank(const PolicyView& view, std::vector<std::int32_t>& order) const override {
    sort_by(view, order, [&view](const RankedRequest& request) {
      return -effective_priority(request, view.aging_seconds);
    });
  }
  [[nodiscard]] bool outranks(const PolicyView& view, const RankedRequest& waiting,
                              const RankedRequest& running) const override {
    return effective_priority(waiting, view.aging_seconds) >
           effective_priority(running, view.aging_seconds);
  }
};

class Shortest final : public Policy {
 public:
  void rank(const PolicyView& view, std::vector<std::int32_t>& order) const override {
    sort_by(view, order, [&view](const RankedRequest& request) {
      const bool overdue = request.waited_seconds > view.aging_seconds;
      return overdue ? std::make_pair(0, std::int64_t{0}) : std::make_pair(1, request.work_left);
    });
  }
};

// Takes the oldest request of the tenant with the least service, adds the service that this request
// will have, and goes on. So a plan that admits several takes tenants in turns.
class Fair final : public Policy {
 public:
  void rank(const PolicyView& view, std::vector<std::int32_t>& order) const override {
    order.clear();
    std::vector<std::vector<std::int32_t>> lines(view.service.size());
    for (std::size_t i = 0; i < view.requests.size(); ++i) {
      lines[static_cast<std::size_t>(view.requests[i].tenant)].push_back(
          static_cast<std::int32_t>(i));
    }
    // Service, oldest request, tenant: the least first.
    using Turn = std::tuple<double, std::int32_t, std::size_t>;
    std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns;
    for (std::size_t tenant = 0; tenant < lines.size(); ++tenant) {
      if (!lines[tenant].empty()) {
        turns.emplace(view.service[tenant], lines[tenant].front(), tenant);
      }
    }
    std::vector<std::size_t> taken(lines.size(), 0);
    while (!turns.empty()) {
      const auto [service, index, tenant] = turns.top();
      turns.pop();
      order.push_back(index);
      if (++taken[tenant] < lines[tenant].size()) {
        turns.emplace(service + view.requests[static_cast<std::size_t>(index)].next_service,
                      lines[tenant][taken[tenant]], tenant);
      }
    }
  }
};

class Adaptive final : public Policy {
 public:
  void rank(const PolicyView& view, std::vector<std::int32_t>& order) const override {
    const bool waits_too_long = std::ranges::any_of(view.requests, [&](const auto& request) {
      return !request.running && request.waited_seconds > view.max_wait_seconds;
    });
    sort_by(view, order, [waits_too_long](const RankedRequest& request) {
      return waits_too_long ? 0.0 : -request.cached_share;
    });
  }
};

}  // namespace

const char* policy_name(PolicyKind kind) {
  constexpr const char* kNames[] = {"fcfs", "priority", "shortest", "fair", "adaptive"};
  return kNames[static_cast<std::size_t>(kind)];
}

const Policy& policy_of(PolicyKind kind) {
  static const Fcfs fcfs;
  static const ByPriority by_priority;
  static const Shortest shortest;
  static const Fair fair;
  static const Adaptive adaptive;
  const Policy* const policies[] = {&fcfs, &by_priority, &shortest, &fair, &adaptive};
  return *policies[static_cast<std::size_t>(kind)];
}

std::int64_t effective_priority(const RankedRequest& request, double aging_seconds) {
  constexpr double kMost = 1e15;  // an age that no clock reaches
  return request.priority +
         static_cast<std::int64_t>(std::clamp(request.age_seconds / aging_seconds, 0.0, kMost));
}

}  // namespace quire::sched
