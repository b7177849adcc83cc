#include "quire/engine/step_recovery.h"

#include <new>
#include <utility>

#include "quire/base/no_memory.h"
#include "quire/engine/step.h"
#include "quire/engine/step_run.h"
#include "quire/engine/step_state.h"
#include "quire/result.h"

namespace quire::engine {

// Computes the next step, or fails its requests. Wherever the step was, what its requests had
// computed and booked is right.
void compute_next_or_fail(Step& step) {
  Status done;
  try {
    done = compute_next(step);
  } catch (const std::bad_alloc&) {
    done = base::no_memory("a step: its activations, or what its requests have got so far");
  }
  if (done.ok()) {
    return;
  }
  step.touched.clear();
  step.finished.clear();
  drop_steps(step);
  step.requests.fail_all(done.error());
  if (std::exchange(step.copies_lost, false)) {
    // Some of it was to be moved, and requests may have found it.
    (void)step.core.ledger.cache().clear();
    step.hooks->holders->copies_failed();
    step.stats.refresh(step.core, step.requests.waiting_since());
  }
}

}  // namespace quire::engine
