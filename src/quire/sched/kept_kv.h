// KV of waiting requests that the caller keeps outside the pool, and brings back as they are
// admitted.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "quire/kv/ledger.h"
#include "quire/sched/state.h"
#include "quire/types.h"

namespace quire::sched {

// The prompt of a waiting request that may take the KV of others.
struct Takes {
  std::span<const TokenId> tokens;  // all that it knows
  std::string_view salt;
  std::int32_t at_hand = 0;  // tokens whose KV it has, finds, or was noted to be kept
};

// Returns what a request may take; nullopt for one that takes nothing, or does not wait. Valid
// until the next change of either.
[[nodiscard]] std::optional<Takes> takes_of(const QueuedRequest& queued, const kv::Ledger& ledger);

// Notes that KV which was kept is behind the first `first` tokens of a running request now. Before
// it is computed for the first time, these tokens count as cached.
void note_brought(QueuedRequest& queued, const kv::Ledger& ledger, std::int32_t first);

}  // namespace quire::sched
