#include "quire/engine/step_loads.h"

#include <span>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/engine/hooks.h"
#include "quire/engine/step_state.h"
#include "quire/kv/block_parts.h"
#include "quire/kv/lost_bytes.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/sched/types.h"

namespace quire::engine {

Status copy_blocks(Step& step) {
  Status status;
  step.copies_lost = true;  // until all are done
  for (const kv::BlockCopy& copy : step.core.ledger.take_copies()) {
    if (!step.hooks->kv_gate->idle()) {
      step.hooks->kv_gate->before_copy(copy);
    }
    if (const Status copied = step.core.paged_pool.copy(copy); !copied.ok()) {
      status = copied;
    }
  }
  step.copies_lost = !status.ok();
  kv::LostBytes& lost = step.core.ledger.lost();
  const kv::LostBytes::Blocks blocks = lost.take();
  step.core.paged_pool.give_back(blocks.windows, kv::BlockCopy::Parts::kWindow,
                                 [&](BlockId id) { return !lost.has_window_part(id); });
  step.core.paged_pool.give_back(blocks.all, kv::BlockCopy::Parts::kFull,
                                 [&](BlockId id) { return lost.is_free(id); });
  return status;
}

Status copy_blocks_now(Step& step) {
  Status status = copy_blocks(step);
  if (std::exchange(step.copies_lost, false)) {
    (void)step.core.ledger.cache().clear();
    step.hooks->holders->copies_failed();
  }
  return status;
}

std::vector<KvGate::LoadRef> awaited_loads(const Step& step,
                                           std::span<const sched::ScheduledRun> runs) {
  std::vector<KvGate::LoadRef> awaited;
  if (step.hooks->kv_gate->idle()) {
    return awaited;
  }
  for (const sched::ScheduledRun& run : runs) {
    for (const kv::RunView& view : step.core.ledger.sequences().runs(run.sequence)) {
      for (const kv::BlockPart& part : kv::parts_of(view)) {
        step.hooks->kv_gate->append_loads(part.blocks, part.format, awaited);
      }
    }
  }
  return awaited;
}

Status check_loaded(const Step& step, const sched::ScheduledRun& run) {
  if (step.hooks->kv_gate->idle()) {
    return {};
  }
  for (const kv::RunView& view : step.core.ledger.sequences().runs(run.sequence)) {
    for (const kv::BlockPart& part : kv::parts_of(view)) {
      QUIRE_TRY_STATUS(step.hooks->kv_gate->outcome(part.blocks, part.format));
    }
  }
  return {};
}

}  // namespace quire::engine
