// Policies: the order of each against an oracle, bounds on waiting under random loads, and what the
// scheduler makes of ranks.
#include "quire/sched/policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/sched/fake_engine.h"
#include "quire/sched/tenants.h"
#include "quire/sched/types.h"

namespace quire::sched {
namespace {

constexpr double kAging = 10, kMaxWait = 6;

struct PolicyScene {
  std::vector<RankedRequest> requests;
  std::vector<double> service;
  [[nodiscard]] PolicyView view() const {
    return {.requests = requests,
            .service = service,
            .aging_seconds = kAging,
            .max_wait_seconds = kMaxWait};
  }
  [[nodiscard]] std::vector<std::int32_t> rank(PolicyKind kind) const {
    std::vector<std::int32_t> order;
    policy_of(kind).rank(view(), order);
    return order;
  }
};

// Makes requests whose values often tie.
PolicyScene random_view(std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&random](std::uint32_t bound) {
    return static_cast<std::int32_t>(random() % bound);
  };
  PolicyScene view{.service = {double(below(9)), double(below(9)), double(below(9))}};
  double age = 60;
  for (std::int32_t left = below(12); left > 0; --left) {
    age -= below(6);
    view.requests.push_back({.priority = below(3),
                             .age_seconds = age,
                             .waited_seconds = std::min(age, double(below(20))),
                             .running = below(2) == 0,
                             .work_left = 1 + below(4),
                             .tenant = below(3),
                             .next_service = 1.0 + below(5),
                             .cached_share = below(3) / 2.0});
  }
  return view;
}

// Repeats: the best of those that are left goes next. `better(a, b)` says whether the request `a`
// goes before an older one `b`.
template <class Better>
std::vector<std::int32_t> select(const PolicyScene& view, const Better& better) {
  std::vector<std::int32_t> left(view.requests.size());
  std::iota(left.begin(), left.end(), 0);
  std::vector<std::int32_t> order;
  while (!left.empty()) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < left.size(); ++i) {
      best = better(view.requests[std::size_t(left[i])], view.requests[std::size_t(left[best])])
                 ? i
                 : best;
    }
    order.push_back(left[best]);
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(best));
  }
  return order;
}

TEST(Policy, FcfsServesTheOldestFirst) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const PolicyScene view = random_view(seed);
    EXPECT_EQ(view.rank(PolicyKind::kFcfs),
              select(view, [](const auto&, const auto&) { return false; }));
  }
}

TEST(Policy, PriorityServesTheHighestAgedPriorityFirst) {
  const auto aged = [](const RankedRequest& r) {
    return r.priority + std::floor(r.age_seconds / kAging);
  };
  for (std::uint32_t seed = 0; seed < 500; ++seed) {
    const PolicyScene view = random_view(seed);
    EXPECT_EQ(view.rank(PolicyKind::kPriority),
              select(view, [&](const auto& a, const auto& b) { return aged(a) > aged(b); }));
    for (const RankedRequest& a : view.requests) {
      for (const RankedRequest& b : view.requests) {
        EXPECT_EQ(policy_of(PolicyKind::kPriority).outranks(view.view(), a, b), aged(a) > aged(b));
        EXPECT_FALSE(policy_of(PolicyKind::kFair).outranks(view.view(), a, b));
      }
    }
  }
}

TEST(Policy, ShortestServesTheLeastWorkFirstAndBeforeThatWhoIsOverdue) {
  for (std::uint32_t seed = 0; seed < 500; ++seed) {
    const PolicyScene view = random_view(seed);
    EXPECT_EQ(view.rank(PolicyKind::kShortest), select(view, [](const auto& a, const auto& b) {
                const bool a_overdue = a.waited_seconds > kAging;
                const bool b_overdue = b.waited_seconds > kAging;
                return a_overdue != b_overdue ? a_overdue : !a_overdue && a.work_left < b.work_left;
              }));
  }
}

TEST(Policy, FairServesTheTenantWithTheLeastServiceFirst) {
  for (std::uint32_t seed = 0; seed < 500; ++seed) {
    const PolicyScene view = random_view(seed);
    std::vector<double> service = view.service;
    std::vector<bool> taken(view.requests.size());
    std::vector<std::int32_t> expected;
    while (expected.size() < view.requests.size()) {
      std::size_t best = view.requests.size();
      std::vector<bool> seen(service.size());  // only a tenant's oldest may go
      for (std::size_t i = 0; i < view.requests.size(); ++i) {
        const auto tenant = std::size_t(view.requests[i].tenant);
        if (taken[i] || seen[tenant]) {
          continue;
        }
        seen[tenant] = true;
        if (best == view.requests.size() ||
            service[tenant] < service[std::size_t(view.requests[best].tenant)]) {
          best = i;
        }
      }
      taken[best] = true;
      service[std::size_t(view.requests[best].tenant)] += view.requests[best].next_service;
      expected.push_back(static_cast<std::int32_t>(best));
    }
    EXPECT_EQ(view.rank(PolicyKind::kFair), expected) << seed;
  }
}

TEST(Policy, AdaptiveServesTheLongestCachedShareFirstUntilTheOldestHasWaitedTooLong) {
  int fcfs = 0;
  for (std::uint32_t seed = 0; seed < 500; ++seed) {
    const PolicyScene view = random_view(seed);
    const bool too_long = std::ranges::any_of(view.requests, [](const RankedRequest& r) {
      return !r.running && r.waited_seconds > kMaxWait;
    });
    fcfs += too_long ? 1 : 0;
    EXPECT_EQ(view.rank(PolicyKind::kAdaptive), select(view, [&](const auto& a, const auto& b) {
                return !too_long && a.cached_share > b.cached_share;
              }));
  }
  EXPECT_GT(fcfs, 50);
  EXPECT_LT(fcfs, 450);
}

TEST(Tenants, OneThatComesBackStartsAtTheLeastServiceOfThoseWithWork) {
  Tenants tenants;
  const std::int32_t a = tenants.enter("a");
  const std::int32_t b = tenants.enter("b");
  tenants.charge(a, 10);
  tenants.charge(b, 7);
  const std::int32_t c = tenants.enter("c");
  EXPECT_EQ(tenants.service()[std::size_t(c)], 7);
  tenants.leave(c);
  tenants.charge(b, 5);
  EXPECT_EQ(tenants.enter("c"), c);
  EXPECT_EQ(tenants.service()[std::size_t(c)], 10);
  tenants.leave(a);
  tenants.charge(c, 1);
  EXPECT_EQ(tenants.enter("a"), a) << "it had more than the least: it keeps it";
  EXPECT_EQ(tenants.service()[std::size_t(a)], 11 - 0 - 0) << "the least is c's 11";
}

// Oracle: the virtual token counter of Sheng et al. (OSDI 2024), by hand.
TEST(Tenants, KeepWhatTheyOweWhileNobodyHasWork) {
  Tenants tenants;
  const std::int32_t a = tenants.enter("a");
  const std::int32_t b = tenants.enter("b");
  tenants.charge(a, 10);
  tenants.charge(b, 7);
  tenants.leave(a);
  tenants.leave(b);  // nobody has work, and b left last
  EXPECT_EQ(tenants.enter("a"), a);
  EXPECT_EQ(tenants.service()[std::size_t(a)], 10) << "it has had more";
  EXPECT_EQ(tenants.enter("b"), b);
  EXPECT_EQ(tenants.service()[std::size_t(b)], 10) << "idle time is no credit";
  tenants.charge(b, 2);
  tenants.leave(a);
  tenants.leave(b);
  const std::int32_t fresh = tenants.enter("new");
  EXPECT_EQ(tenants.service()[std::size_t(fresh)], 12) << "nor is a new name";
}

TEST(Tenants, AreForgottenWhenThereAreVeryMany) {
  Tenants tenants;
  const std::int32_t stays = tenants.enter("stays");
  for (int i = 0; i < 20000; ++i) {
    const std::int32_t index = tenants.enter(base::str_cat("tenant ", i));
    tenants.charge(index, i % 7);
    tenants.charge(stays, 0.5);
    tenants.leave(index);
  }
  EXPECT_LT(tenants.service().size(), 8200U);
  EXPECT_EQ(tenants.service()[std::size_t(stays)], 10000);
}

// A load over time: one request after the other, of random sizes, priorities and tenants.
class PolicyLoad {
 public:
  PolicyLoad(PolicyKind policy, std::uint32_t seed, std::int32_t places, std::int32_t blocks = 4096)
      : engine({.num_blocks = blocks, .block_tokens = 2}, {.max_batch_tokens = 16,
                                                           .max_running = places,
                                                           .policy = policy,
                                                           .aging_seconds = kAging,
                                                           .max_wait_seconds = kMaxWait}),
        random_(seed) {}

  struct Known {
    Whose whose;
    double submitted = 0;
    double cost = 0;
    bool admitted = false;
  };

  std::int32_t below(std::uint32_t bound) { return static_cast<std::int32_t>(random_() % bound); }

  void submit(const Whose& whose) {
    const std::int32_t new_tokens = 1 + below(6);
    Tokens prompt(std::size_t(1 + below(24)), below(3));
    const double cost = double(prompt.size()) + 2.0 * new_tokens;
    ASSERT_TRUE(engine.submit(++last_, std::move(prompt), new_tokens, true, whose).ok());
    known[last_] = {.whose = whose, .submitted = now, .cost = cost};
  }

  // Runs a step. Calls `admits(id)` for each request that it admits for the first time, before
  // others are noted.
  template <class Admits>
  void step(const Admits& admits) {
    const Result<StepPlan> plan = engine.step();
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    for (const RequestId id : plan->admit) {
      if (!known.at(id.value).admitted) {
        admits(id.value);
        known.at(id.value).admitted = true;
      }
    }
    engine.wait(1);
    now += 1;
  }

  FakeEngine engine;
  std::map<std::uint64_t, Known> known;
  double now = 0;

 private:
  std::mt19937 random_;
  std::uint64_t last_ = 0;
};

// Runs random loads of 300 steps in which more comes than can run. `allowed(waiting, younger, now)`
// says whether a younger request may be admitted before one that waits.
template <class Allowed>
void expect_bound(PolicyKind policy, const Allowed& allowed) {
  int overtaken = 0;
  for (std::uint32_t seed = 1; seed <= 12; ++seed) {
    PolicyLoad load(policy, seed, 1 + std::int32_t(seed % 4));
    const auto admits = [&](std::uint64_t id) {
      for (const auto& [other, request] : load.known) {
        if (other < id && !request.admitted) {
          EXPECT_TRUE(allowed(request, load.known.at(id), load.now))
              << policy_name(policy) << ": " << id << " went before " << other;
          ++overtaken;
        }
      }
    };
    for (int i = 0; i < 300 || !load.engine.running.empty(); ++i) {
      if (i < 300 && load.below(2) == 0) {
        load.submit({.priority = load.below(4), .tenant = load.below(3) == 0 ? "a" : "b"});
      }
      load.step(admits);
      ASSERT_FALSE(testing::Test::HasFatalFailure());
    }
  }
  EXPECT_EQ(overtaken > 0, policy != PolicyKind::kFcfs);
}

TEST(PolicyBound, FcfsAdmitsInOrderOfArrival) {
  expect_bound(PolicyKind::kFcfs, [](const auto&, const auto&, double) { return false; });
}

TEST(PolicyBound, PriorityIsOvertakenOnlyByOnesThatCameWhileItsAgeDidNotOutweighThem) {
  expect_bound(PolicyKind::kPriority, [](const PolicyLoad::Known& waiting,
                                         const PolicyLoad::Known& younger, double /*now*/) {
    const std::int32_t higher = younger.whose.priority - waiting.whose.priority;
    return higher > 0 && younger.submitted - waiting.submitted < (higher + 1) * kAging;
  });
}

TEST(PolicyBound, ShortestIsNotOvertakenOnceItHasWaitedForTheAgingTime) {
  expect_bound(PolicyKind::kShortest, [](const PolicyLoad::Known& waiting, const auto&,
                                         double now) { return now - waiting.submitted <= kAging; });
}

TEST(PolicyBound, AdaptiveIsNotOvertakenOnceItHasWaitedTooLong) {
  expect_bound(PolicyKind::kAdaptive,
               [](const PolicyLoad::Known& waiting, const auto&, double now) {
                 return now - waiting.submitted <= kMaxWait;
               });
}

// Returns by how much the service of two tenants with work was apart at most, in costs of the
// largest request. One tenant asks for more, the other for longer prompts.
double furthest_apart(std::uint32_t seed, std::int32_t places) {
  PolicyLoad load(PolicyKind::kFair, seed, places);
  std::map<std::string, double> service;
  double largest = 0, apart = 0;
  for (int i = 0; i < 60; ++i) {
    load.submit({.tenant = i % 3 == 0 ? "a" : "b"});
  }
  std::map<std::uint64_t, std::size_t> prompts;
  for (const auto& [id, active] : load.engine.running) {
    prompts[id] = active.prompt.size();
  }
  std::map<std::string, double> done;
  const auto waits = [&](const std::string& tenant) {
    return std::ranges::any_of(load.known, [&](const auto& entry) {
      return entry.second.whose.tenant == tenant && !entry.second.admitted;
    });
  };
  for (const auto& [id, request] : load.known) {
    largest = std::max(largest, request.cost);
  }
  while (waits("a") && waits("b")) {
    const StepPlan plan = load.engine.scheduler.plan();
    for (const PlannedRun& run : plan.runs) {
      const auto prompt = static_cast<std::int32_t>(prompts.at(run.request.value));
      const std::int32_t rows = std::max(std::min(run.first + run.count, prompt) - run.first, 0);
      done[load.known.at(run.request.value).whose.tenant] += rows + (run.samples ? 2.0 : 0.0);
    }
    load.step([](std::uint64_t) {});
    apart = std::max(apart, std::abs(done["a"] - done["b"]));
  }
  return apart / largest;
}

TEST(PolicyBound, FairTenantsAreNeverApartByMoreThanOneRequestForEachPlace) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    for (const std::int32_t places : {1, 2, 5}) {
      EXPECT_LE(furthest_apart(seed, places), places) << seed << " " << places;
    }
  }
}

// Counts the service of tenants from plans alone. A tenant that gets work begins at the least
// service of those that have some, if that is more.
class ServiceOracle {
 public:
  explicit ServiceOracle(const PolicyLoad& load) : load_(load) {}

  void submits(const std::string& tenant) {
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [id, active] : load_.engine.running) {
      least = std::min(least, service[load_.known.at(id).whose.tenant]);
    }
    if (load_.engine.running.empty()) {
      service.clear();
    } else if (!has_request(tenant)) {
      service[tenant] = std::max(service[tenant], least);
    }
  }

  void plans(const StepPlan& plan) {
    for (const PlannedRun& run : plan.runs) {
      std::int32_t& counted = counted_[run.request.value];
      const auto& active = load_.engine.running.at(run.request.value);
      const std::int32_t end = run.first + run.count;
      const auto prompt = static_cast<std::int32_t>(active.prompt.size());
      service[load_.known.at(run.request.value).whose.tenant] +=
          std::max(std::min(end, prompt) - std::max(run.first, counted), 0) +
          (run.samples && end > counted ? 2.0 : 0.0);
      counted = std::max(counted, end);
    }
  }

  std::map<std::string, double> service;

 private:
  [[nodiscard]] bool has_request(const std::string& tenant) const {
    return std::ranges::any_of(load_.engine.running, [&](const auto& entry) {
      return load_.known.at(entry.first).whose.tenant == tenant;
    });
  }

  const PolicyLoad& load_;
  std::map<std::uint64_t, std::int32_t> counted_;  // end of what was computed, by request
};

// Returns by how much the service of two waiting tenants was apart at most, in costs of the largest
// request. Requests of four tenants come and go.
double furthest_apart_over_time(PolicyLoad& load) {
  ServiceOracle oracle(load);
  double largest = 1, apart = 0;
  for (int i = 0; i < 400; ++i) {
    for (const char* const tenant : {"a", "b", "b", "c", "d"}) {
      if (load.below(4) == 0 && load.below(100) < 25 + i % 100) {
        oracle.submits(tenant);
        load.submit({.tenant = tenant});
        largest = std::max(largest, load.known.rbegin()->second.cost);
      }
    }
    oracle.plans(load.engine.scheduler.plan());
    load.step([](std::uint64_t) {});
    std::map<std::string, double> waiting;
    for (const auto& [id, request] : load.known) {
      if (!request.admitted) {
        waiting[request.whose.tenant] = oracle.service[request.whose.tenant];
      }
    }
    for (const auto& [tenant, service] : waiting) {
      for (const auto& [other, less] : waiting) {
        apart = std::max(apart, service - less);
      }
    }
  }
  return apart / largest;
}

TEST(PolicyBound, FairTenantsThatComeAndGoAreNeverApartByMoreThanOneRequestForEachPlace) {
  double most = 0;
  std::int64_t preempted = 0;
  for (std::uint32_t seed = 1; seed <= 12; ++seed) {
    for (const std::int32_t places : {1, 2, 3, 5}) {
      for (const std::int32_t blocks : {4096, 30}) {  // the latter preempt
        PolicyLoad load(PolicyKind::kFair, seed, places, blocks);
        const double apart = furthest_apart_over_time(load);
        EXPECT_LE(apart, places) << seed << " " << places << " " << blocks;
        most = std::max(most, places == 1 ? apart : 0);
        for (const auto& [id, active] : load.engine.running) {
          preempted += load.engine.scheduler.progress({id}).preemptions;
        }
      }
    }
  }
  EXPECT_GT(most, 0.5) << "the bound is nearly reached";
  EXPECT_GT(preempted, 0);
}

// All places are a's when b gets work. Whoever leaves no place idle has given them to a, as nobody
// else had work. Whoever preempts for want of blocks alone takes none of them away. So no order of
// requests, and no way to count what is owed, keeps a from getting what its requests cost.
TEST(PolicyBound, WhoTakesNoPlaceAwayLetsATenantFallBehindByOneRequestForEachPlace) {
  for (const std::int32_t places : {1, 2, 5}) {
    FakeEngine engine({.num_blocks = 400, .block_tokens = 2},
                      {.max_running = places, .policy = PolicyKind::kFair});
    constexpr std::int32_t kTokens = 40;
    std::map<std::uint64_t, std::string> tenants;
    const auto submit = [&](const std::string& tenant) {
      for (std::int32_t i = 0; i <= places; ++i) {  // one more than can run
        const std::uint64_t id = tenants.size() + 1;
        ASSERT_TRUE(engine.submit(id, {TokenId(id)}, kTokens, true, {.tenant = tenant}).ok());
        tenants[id] = tenant;
      }
    };
    submit("a");
    ASSERT_TRUE(engine.step().ok());
    submit("b");
    std::map<std::string, double> service;  // since both have work
    double apart = 0;
    while (engine.scheduler.num_waiting() > 0) {
      for (const PlannedRun& run : engine.scheduler.plan().runs) {
        service[tenants.at(run.request.value)] += run.samples ? 2.0 : 0.0;
      }
      apart = std::max(apart, std::abs(service["a"] - service["b"]) / (2.0 * kTokens));
      ASSERT_TRUE(engine.step().ok());
    }
    EXPECT_GT(apart, 0.95 * places);
    EXPECT_LE(apart, places);
  }
}

}  // namespace
}  // namespace quire::sched
