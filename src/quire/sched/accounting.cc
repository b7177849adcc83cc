#include "quire/sched/accounting.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "quire/base/str.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/sched/state.h"
#include "quire/sched/types.h"

namespace quire::sched {
namespace {

constexpr std::int64_t kMaxTokens = std::int64_t{1}
                                    << 30;  // most tokens of one sequence, window or not

std::string in_bytes(std::int64_t bytes) {
  return bytes == 0 ? "" : base::str_cat(" (", base::format_bytes(bytes), ")");
}

}  // namespace

Status check_fits(const SchedulerState& state, const Request& request, std::int64_t tokens) {
  const kv::Ledger& ledger = *state.ledger;
  const kv::BehindWindow past =
      request.sequence ? ledger.sequences().use(*request.sequence).past : request.behind_window;
  const std::int64_t needed =
      ledger.min_blocks(tokens, past) +
      (request.sequence ? ledger.segments().blocks_before(*request.sequence) : 0);
  const std::int64_t all = ledger.blocks_at_most();
  if (needed <= all && tokens <= kMaxTokens) {
    return {};
  }
  const std::int64_t block_bytes = state.config.block_bytes;
  return Error{
      .code = ErrorCode::kOverflow,
      .message = base::str_cat("request ", request.id.value, " needs ", needed, " blocks for ",
                               tokens, " tokens", in_bytes(needed * block_bytes), ", the pool has ",
                               all, in_bytes(all * block_bytes),
                               "; shorten the prompt, lower max_tokens or raise kv_budget"),
      .needed_bytes = needed * block_bytes,
      .free_bytes = all * block_bytes};
}

void charge(SchedulerState& state, QueuedRequest& queued, const PlannedRun& run) {
  if (queued.tenant < 0) {
    return;
  }
  const std::int32_t end = run.first + run.count - run.assumed;
  const std::int32_t prompt = std::min(end, queued.prompt_tokens) -
                              std::max(run.first, std::min(queued.charged, queued.prompt_tokens));
  const bool new_token = run.samples && end > queued.charged;
  state.tenants.charge(queued.tenant,
                       std::max(prompt, 0) + (new_token ? state.config.decode_weight : 0.0));
  queued.charged = std::max(queued.charged, end);
}

}  // namespace quire::sched
