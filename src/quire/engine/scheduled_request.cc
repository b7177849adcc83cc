#include "quire/engine/scheduled_request.h"

#include <optional>
#include <vector>

#include "quire/base/ids.h"
#include "quire/engine/active_request.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/session_service.h"
#include "quire/kv/ledger.h"
#include "quire/kv/states.h"
#include "quire/kv/types.h"
#include "quire/sched/types.h"
#include "quire/types.h"

namespace quire::engine {

sched::Request scheduled_request(EngineCore& core, SessionService& sessions,
                                 const EngineOptions& options, const NewRequest& request,
                                 RequestId id) {
  const std::optional<SeqId> sequence =
      request.composed ? std::optional(request.composed->sequence) : std::nullopt;
  const kv::SessionRef session = sessions.named(request.session, request.salt);
  if (sequence) {
    core.ledger.cache().assign(*sequence, session);
  }
  sched::Request scheduled{.id = id,
                           .prompt = request.prompt,
                           .sequence = sequence,
                           .max_new_tokens = request.params.max_tokens,
                           .reuse = request.reuse,
                           .session = session,
                           .salt = options.salt_of(request.salt),
                           .followers = request.followers,
                           .priority = request.urgency.priority,
                           .tenant = request.urgency.tenant.empty() ? options.salt_of(request.salt)
                                                                    : request.urgency.tenant,
                           .submitted = request.submitted,
                           .marks = request.marks,
                           .behind_window = request.behind_window};
  const std::vector<kv::PointMark> turns = core.turns.marks(request.prompt);
  scheduled.marks.insert(scheduled.marks.end(), turns.begin(), turns.end());
  return scheduled;
}

}  // namespace quire::engine
