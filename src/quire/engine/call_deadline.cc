#include "quire/engine/call_deadline.h"

#include <span>
#include <string_view>

#include "quire/base/str.h"
#include "quire/engine/active_request.h"
#include "quire/interrupt.h"
#include "quire/options.h"
#include "quire/result.h"

namespace quire::engine {

Error passed_deadline(double seconds, std::string_view state) {
  return {.code = ErrorCode::kCancelled,
          .message = base::str_cat("the deadline of ", seconds, " s has passed while the request ",
                                   state, "; raise deadline_seconds, or ask when less is running")};
}

CallDeadline::CallDeadline(std::span<const RequestOptions> options, const Interrupt& interrupted)
    : interrupt_(interrupted) {
  for (const RequestOptions& each : options) {
    const double seconds = each.deadline_seconds.value_or(0);
    if (!(seconds > 0)) {
      continue;  // none, or one that whoever checks the options refuses
    }
    const Urgency urgency = urgency_of(each);
    if (!end_ || urgency.deadline < end_) {
      end_ = urgency.deadline;
      seconds_ = seconds;
    }
  }
  if (end_) {
    interrupt_ = [this, interrupted] { return has_passed() || (interrupted && interrupted()); };
  }
}

}  // namespace quire::engine
