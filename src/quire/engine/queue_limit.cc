#include "quire/engine/queue_limit.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "quire/base/str.h"
#include "quire/engine/active_request.h"
#include "quire/engine/engine_core.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::engine {

std::int64_t kv_bytes(const EngineCore& core, const NewRequest& request) {
  const std::int64_t known =
      request.composed ? std::ssize(core.ledger.sequences().tokens(request.composed->sequence))
                       : std::ssize(request.prompt);
  const std::int64_t tokens = known + std::max(request.params.max_tokens, 1) - 1;
  const kv::BehindWindow past = request.composed
                                    ? core.ledger.sequences().use(request.composed->sequence).past
                                    : request.behind_window;
  return core.ledger.min_blocks(tokens, past) * core.counters.block_bytes;
}

Status check_queue(const EngineCore& core, std::int32_t max_waiting, std::int64_t added,
                   std::int64_t bytes) {
  if (core.scheduler.num_new() <= max_waiting) {
    return {};
  }
  const std::int32_t waiting = core.scheduler.num_without_room();
  if (waiting <= max_waiting) {
    return {};
  }
  return Error{
      .code = ErrorCode::kQueueFull,
      .message = base::str_cat("the queue is full: with ", added,
                               added == 1 ? " more request" : " more requests", " (KV of ",
                               base::format_bytes(bytes), "), ", waiting,
                               " would wait for blocks or a place, and max_waiting is ",
                               max_waiting, "; ask again later, or raise max_waiting or kv_budget"),
      .needed_bytes = bytes,
      .free_bytes = core.ledger.blocks_available() * core.counters.block_bytes,
      .requests = added};
}

}  // namespace quire::engine
