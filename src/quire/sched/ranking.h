// Ranking: the requests of a scheduler in the order of its policy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/kv/ledger.h"
#include "quire/kv/sequences.h"
#include "quire/kv/types.h"
#include "quire/sched/policy.h"
#include "quire/sched/state.h"
#include "quire/types.h"

namespace quire::sched {

// Returns what a request's sequence does with KV behind the window, or would do.
[[nodiscard]] kv::BehindWindow behind_window_of(const QueuedRequest& queued,
                                                const kv::Sequences& sequences);

// Returns the tokens that a request has so far.
[[nodiscard]] std::span<const TokenId> known_tokens(const QueuedRequest& queued,
                                                    const kv::Sequences& sequences);
// Returns how many tokens' KV is wanted, computed or not.
[[nodiscard]] std::int32_t wanted_tokens(const QueuedRequest& queued,
                                         const kv::Sequences& sequences);
// Returns the cached prefix that the request would find. A composition holds its segments already.
[[nodiscard]] kv::PrefixMatch find_known_kv(const QueuedRequest& waiting, const kv::Ledger& ledger);

// Requests in rank. First come, first served costs nothing: the lines of the state are in rank.
// Other policies cost O(requests * log(requests)). Those that look at cached prefixes do so for the
// oldest kProbes waiting requests alone.
class Ranking {
 public:
  static constexpr std::size_t kProbes = 64;

  // Borrows `state`, which does not change meanwhile.
  explicit Ranking(const SchedulerState& state);
  Ranking(const Ranking&) = delete;
  Ranking& operator=(const Ranking&) = delete;

  [[nodiscard]] std::span<const QueuedRequest* const> running() const { return running_; }
  // Returns those that wait. None where none can be admitted, whatever the blocks are.
  [[nodiscard]] std::span<const QueuedRequest* const> waiting() const { return waiting_; }
  // Returns the place of the first running request behind the best waiting one in rank.
  [[nodiscard]] std::size_t first_outranked() const { return first_outranked_; }
  // Returns whether a running prompt, of which more than a token lacks KV, is among those.
  [[nodiscard]] bool outranked_prompts() const { return outranked_prompts_; }
  // Returns how many running requests, from the last one on, the best waiting one may preempt.
  [[nodiscard]] std::size_t outranked_running() const { return outranked_running_; }

 private:
  [[nodiscard]] RankedRequest seen(const QueuedRequest& queued, bool probes) const;
  void rank();

  const SchedulerState& state_;
  std::vector<const QueuedRequest*> ranked_running_;
  std::vector<const QueuedRequest*> ranked_waiting_;
  std::span<const QueuedRequest* const> running_;
  std::span<const QueuedRequest* const> waiting_;
  std::size_t first_outranked_ = 0;
  bool outranked_prompts_ = false;
  std::size_t outranked_running_ = 0;
};

}  // namespace quire::sched
