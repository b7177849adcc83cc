#include "quire/sched/kept_kv.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "quire/base/ids.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/sequences.h"
#include "quire/kv/types.h"
#include "quire/sched/ranking.h"
#include "quire/sched/state.h"

namespace quire::sched {

std::optional<Takes> takes_of(const QueuedRequest& queued, const kv::Ledger& ledger) {
  if (queued.running || !queued.request.reuse) {
    return std::nullopt;
  }
  const kv::Sequences& sequences = ledger.sequences();
  const std::optional<SeqId> sequence = queued.sequence;
  if (sequence && (!sequences.is_plain(*sequence) || !sequences.use(*sequence).adopts ||
                   sequences.format(*sequence) != kv::kOwnFormat)) {
    return std::nullopt;
  }
  const std::int32_t own = sequence ? sequences.num_computed(*sequence) : 0;
  const std::int32_t found = own > 0 ? own : find_known_kv(queued, ledger).tokens;
  return Takes{.tokens = known_tokens(queued, sequences),
               .salt = sequence ? sequences.use(*sequence).salt : queued.request.salt,
               .at_hand = std::max(found, queued.kept)};
}

void note_brought(QueuedRequest& queued, const kv::Ledger& ledger, std::int32_t first) {
  if (queued.progress.preemptions > 0) {
    return;
  }
  const std::int32_t brought = ledger.sequences().num_computed(queued.running_sequence()) - first;
  queued.progress.kept_tokens += brought;
  queued.progress.cached_tokens += brought;
}

}  // namespace quire::sched
