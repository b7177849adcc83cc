#include "quire/sched/ranking.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/kv/ledger.h"
#include "quire/kv/segments.h"
#include "quire/kv/sequences.h"
#include "quire/kv/types.h"
#include "quire/sched/policy.h"
#include "quire/sched/state.h"
#include "quire/sched/types.h"
#include "quire/types.h"

namespace quire::sched {

std::span<const TokenId> known_tokens(const QueuedRequest& queued, const kv::Sequences& sequences) {
  return queued.sequence ? sequences.tokens(*queued.sequence)
                         : std::span<const TokenId>(queued.request.prompt);
}

std::int32_t wanted_tokens(const QueuedRequest& queued, const kv::Sequences& sequences) {
  return std::min(static_cast<std::int32_t>(known_tokens(queued, sequences).size()),
                  queued.total_tokens);
}

kv::BehindWindow behind_window_of(const QueuedRequest& queued, const kv::Sequences& sequences) {
  return queued.sequence ? sequences.use(*queued.sequence).past : queued.request.behind_window;
}

kv::PrefixMatch find_known_kv(const QueuedRequest& waiting, const kv::Ledger& ledger) {
  const kv::Sequences& sequences = ledger.sequences();
  const bool plain = !waiting.sequence || sequences.is_plain(*waiting.sequence);
  if (!plain || !waiting.request.reuse) {
    return {};
  }
  const std::string& salt =
      waiting.sequence ? sequences.use(*waiting.sequence).salt : waiting.request.salt;
  return ledger.cache().probe(known_tokens(waiting, sequences), salt,
                              behind_window_of(waiting, sequences));
}

Ranking::Ranking(const SchedulerState& state)
    : state_(state), running_(state.running), waiting_(state.waiting) {
  first_outranked_ = running_.size();
  if (state.config.policy != PolicyKind::kFcfs) {
    rank();
  }
}

RankedRequest Ranking::seen(const QueuedRequest& queued, bool probes) const {
  const kv::Ledger& ledger = *state_.ledger;
  const kv::TimePoint now = ledger.cache().now();
  const auto seconds = [&](kv::TimePoint until) {
    return std::chrono::duration<double>(until - queued.request.submitted).count();
  };
  const std::int32_t computed =
      queued.sequence ? ledger.sequences().num_computed(*queued.sequence) : 0;
  const std::int32_t found = probes ? find_known_kv(queued, ledger).tokens : 0;
  const std::int32_t known = wanted_tokens(queued, ledger.sequences());
  const std::int32_t with_kv = std::max({computed, found, queued.kept});
  const std::int32_t charged = std::min(queued.charged, known);
  // Tokens of segments before a sequence's own, all of which have KV.
  const std::int32_t before =
      queued.sequence ? ledger.segments().tokens_before(*queued.sequence) : 0;
  const bool generates = queued.running && known - computed <= 1 && known > queued.prompt_tokens;
  return {.priority = queued.request.priority,
          .age_seconds = seconds(now),
          .waited_seconds = seconds(queued.running ? queued.admitted : now),
          .running = queued.running,
          .work_left = std::int64_t{queued.total_tokens} + 1 - with_kv,
          .tenant = std::max(queued.tenant, 0),
          .next_service = generates ? state_.config.decode_weight
                                    : static_cast<double>(known - std::max(charged, with_kv)) +
                                          state_.config.decode_weight,
          .cached_share =
              queued.running ? 1.0
                             : static_cast<double>(before + with_kv) / std::max(before + known, 1)};
}

void Ranking::rank() {
  const SchedulerConfig& config = state_.config;
  const Policy& policy = policy_of(config.policy);
  const bool full = std::cmp_greater_equal(state_.running.size(),
                                           std::min(config.max_running, config.max_batch_tokens));
  const std::span<QueuedRequest* const> candidates =
      full ? std::span<QueuedRequest* const>() : std::span(state_.waiting);
  const bool by_cache =
      config.policy == PolicyKind::kAdaptive || config.policy == PolicyKind::kShortest;
  // By arrival, so that the index breaks ties.
  RequestLine all(state_.running.size() + candidates.size());
  std::ranges::merge(state_.running, candidates, all.begin(), {}, &QueuedRequest::arrival,
                     &QueuedRequest::arrival);
  std::vector<RankedRequest> requests;
  requests.reserve(all.size());
  std::size_t probed = 0;
  for (const QueuedRequest* queued : all) {
    const bool probes = by_cache && !queued->running && probed < kProbes;
    probed += probes ? 1 : 0;
    requests.push_back(seen(*queued, probes));
  }
  const std::vector<double> nobody(1);
  const std::span<const double> service = state_.tenants.service();
  const PolicyView view{.requests = requests,
                        .service = service.empty() ? std::span<const double>(nobody) : service,
                        .aging_seconds = config.aging_seconds,
                        .max_wait_seconds = config.max_wait_seconds};
  std::vector<std::int32_t> order;
  policy.rank(view, order);
  const RankedRequest* best = nullptr;  // the first waiting one
  first_outranked_ = 0;
  for (const std::int32_t index : order) {
    const auto at = static_cast<std::size_t>(index);
    if (!requests[at].running) {
      best = best == nullptr ? &requests[at] : best;
      ranked_waiting_.push_back(all[at]);
      continue;
    }
    ranked_running_.push_back(all[at]);
    if (best == nullptr) {
      first_outranked_ = ranked_running_.size();
      continue;
    }
    const kv::Sequences& sequences = state_.ledger->sequences();
    outranked_prompts_ =
        outranked_prompts_ ||
        wanted_tokens(*all[at], sequences) - sequences.num_computed(all[at]->running_sequence()) >
            1;
    outranked_running_ += policy.outranks(view, *best, requests[at]) ? 1 : 0;
  }
  first_outranked_ = best == nullptr ? ranked_running_.size() : first_outranked_;
  running_ = ranked_running_;
  waiting_ = ranked_waiting_;
}

}  // namespace quire::sched
