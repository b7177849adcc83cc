#include "quire/kv/restored_kv.h"

#include <cstdint>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/kv/ledger_state.h"

namespace quire::kv {

void RestoredKV::begin_behind_window(SeqId id, std::int32_t num_tokens) {
  state_->sequence(id).begin_behind_window(num_tokens);
}

void RestoredKV::advance_unpublished(SeqId id, std::int32_t count) {
  QUIRE_CHECK(state_->shared.config().window_tokens == 0,
              "a window would free blocks that are being written");
  state_->sequence(id).advance_unpublished(count);
}

void RestoredKV::publish(SeqId id) { state_->sequence(id).publish(); }

}  // namespace quire::kv
