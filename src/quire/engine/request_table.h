// RequestTable: the requests that were accepted and have not ended.
//
// Thread rule: the engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "quire/engine/active_request.h"
#include "quire/engine/channel.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/session_service.h"
#include "quire/engine/stats_snapshot.h"
#include "quire/options.h"
#include "quire/result.h"
#include "quire/sched/types.h"
#include "quire/types.h"

namespace quire::engine {

class RequestTable {
 public:
  // Borrows all but `same_bits`, which says that a request's bits do not depend on its batch (see
  // graded()).
  RequestTable(EngineCore& core, SessionService& sessions, StatsSnapshot& stats,
               const EngineOptions& options, bool same_bits)
      : core_(core), sessions_(sessions), stats_(stats), options_(options), same_bits_(same_bits) {}

  // Starts all requests or none, and appends a channel for each.
  [[nodiscard]] Status enqueue(std::vector<NewRequest> requests,
                               std::vector<std::shared_ptr<Channel>>& channels);
  // Ends the request as cancelled. Returns false when it is not running.
  bool abort(RequestId id);
  // Ends the request, which is there, with an error.
  void fail(RequestId id, Error error);
  void fail_all(const Error& error);
  // Ends a request whose output is complete.
  void finish(ActiveRequest& active);

  // Returns a request whose deadline has passed, or nullopt. Cost: O(1).
  [[nodiscard]] std::optional<RequestId> overdue(Clock::time_point now) const;
  // Ends an overdue request.
  void expire(RequestId id);

  // Returns what becomes ready when the next request ends, however it ends. By then its blocks are
  // free.
  [[nodiscard]] std::shared_future<void> next_end();

  // Returns the time at which the oldest of the waiting requests was submitted; nullopt when none
  // waits.
  [[nodiscard]] std::optional<Clock::time_point> waiting_since() const;

  // Sets who hears that a request has ended, however it did.
  void on_end(std::function<void(RequestId)> hears) { hears_end_ = std::move(hears); }

  [[nodiscard]] bool empty() const { return active_.empty(); }
  // Notes that the request is computed for the first time, and what its prompt was found to be.
  // Returns how many tokens of it need no computing.
  [[nodiscard]] std::int64_t admit(ActiveRequest& active);
  // Tells the log what becomes of the request.
  void tell(LogLevel level, RequestId id, std::string_view what) const;

  // Returns a request. Precondition: the request has not ended.
  [[nodiscard]] ActiveRequest& at(RequestId id) { return active_.at(id.value); }

  // Returns the number of the next request: a mark for fail_since().
  [[nodiscard]] std::uint64_t next() const { return next_request_; }
  // Ends requests that a task began which got no further than half of its work.
  void fail_since(std::uint64_t first);

 private:
  // Tells that a request is over, before stats() shows it.
  void tell_end(RequestId id) const;
  void refresh_stats() {
    stats_.refresh(core_, waiting_since());
    stats_.measure(core_.counters);
  }
  void erase(std::uint64_t id);
  [[nodiscard]] std::uint64_t seed_of(const SamplingParams& params, RequestKind kind);
  void note_end();
  void withdraw(std::uint64_t first, std::span<const NewRequest> refused);

  EngineCore& core_;
  SessionService& sessions_;
  StatsSnapshot& stats_;
  const EngineOptions& options_;
  const bool same_bits_;
  std::unordered_map<std::uint64_t, ActiveRequest> active_;
  std::set<std::pair<Clock::time_point, std::uint64_t>> deadlines_;  // of those that have one
  std::function<void(RequestId)> hears_end_;                         // perhaps twice for one
  std::optional<std::promise<void>> end_;  // absent: nobody waits for an end
  std::shared_future<void> next_end_;      // end that end_ makes ready
  std::uint64_t next_request_ = 1;
  std::uint64_t next_draw_ = 1;  // number of the next seed for a request that brings none
};

}  // namespace quire::engine
