#include "quire/kv/prefix_cache.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/kv/behind_window.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger_state.h"
#include "quire/kv/types.h"
#include "quire/types.h"

namespace quire::kv {

std::int32_t PrefixCache::match(std::span<const TokenId> tokens, std::string_view salt) const {
  return probe(tokens, salt).tokens;
}

PrefixMatch PrefixCache::probe(std::span<const TokenId> tokens, std::string_view salt,
                               BehindWindow past) const {
  const LedgerState::Prefix prefix = state_->cached_prefix(tokens, salt, past);
  const std::vector<BlockRef>& path = prefix.blocks;
  const LedgerConfig& config = state_->shared.config();
  PrefixMatch result{.tokens = prefix.tokens, .known_tokens = prefix.known_tokens};
  if (prefix.state.index >= 0) {
    result.idle_states = state_->states.num_users(prefix.state) == 0 ? 1 : 0;
  }
  const bool frees = past == BehindWindow::kFrees;
  const auto behind =
      static_cast<std::size_t>(frees ? blocks_to_give_up(config, result.tokens) : 0);
  const std::int32_t passed = frees ? parts_behind_window(config, result.tokens) : 0;
  std::int64_t idle_bytes = 0, held_bytes = 0;
  for (std::size_t i = behind; i < path.size(); ++i) {
    const bool unused = state_->shared.index().is_unused(path[i]);
    (unused ? idle_bytes : held_bytes) += config.full_bytes();
    if (std::cmp_greater_equal(i, passed)) {
      const bool idle = state_->shared.parts().holders(path[i].id) == 0;
      (idle ? idle_bytes : held_bytes) += config.window_group.block_bytes;
    }
  }
  // Rounded so that blocks less evictable ones are never too many.
  const std::int64_t block_bytes = config.block_bytes(kOwnFormat);
  result.evictable_blocks = static_cast<std::int32_t>((idle_bytes + block_bytes - 1) / block_bytes);
  result.blocks = result.evictable_blocks + static_cast<std::int32_t>(held_bytes / block_bytes);
  return result;
}

std::vector<std::int32_t> PrefixCache::match_each_salt(std::span<const TokenId> tokens) const {
  const LedgerConfig& config = state_->shared.config();
  if (!config.prefix_cache || tokens.empty()) {
    return {};
  }
  std::vector<std::int32_t> lengths =
      state_->shared.index().match_each_salt(tokens.first(tokens.size() - 1));
  for (std::int32_t& length : lengths) {
    length *= config.block_tokens;
  }
  std::ranges::sort(lengths, std::greater());
  return lengths;
}

PrefixMiss PrefixCache::explain(std::span<const TokenId> tokens, std::string_view salt,
                                std::int32_t elsewhere) const {
  if (!state_->shared.config().prefix_cache) {
    return {.why = PrefixMiss::Why::kCacheOff};
  }
  LedgerState::Prefix prefix = state_->cached_prefix(tokens, salt, BehindWindow::kFrees);
  prefix.tokens = std::max(prefix.tokens, elsewhere);
  const std::int32_t foreign = state_->states.other_form(tokens, salt);
  if (foreign > std::max(prefix.known_tokens, prefix.tokens)) {
    return {.why = PrefixMiss::Why::kOtherForm, .token = foreign};
  }
  if (prefix.known_tokens > prefix.tokens && !state_->states.exist()) {
    return {.why = PrefixMiss::Why::kWindowFreed, .token = prefix.known_tokens};
  }
  if (prefix.known_tokens > prefix.tokens) {
    const auto known = tokens.first(static_cast<std::size_t>(prefix.known_tokens));
    return {.why = state_->states.lost_point(known, salt) > prefix.tokens
                       ? PrefixMiss::Why::kPointEvicted
                       : PrefixMiss::Why::kNoPoint,
            .token = prefix.known_tokens};
  }
  return state_->shared.index().explain(tokens.first(tokens.empty() ? 0 : tokens.size() - 1), salt);
}

std::string to_text(const PrefixMiss& miss) {
  const auto ago = [&] {
    return base::str_cat(" ", static_cast<std::int64_t>(miss.seconds), " s ago");
  };
  switch (miss.why) {
    case PrefixMiss::Why::kCacheOff:
      return "the prefix cache is off";
    case PrefixMiss::Why::kNeverSeen:
      return "never seen";
    case PrefixMiss::Why::kDiffers:
      return base::str_cat("differs from what is cached at token ", miss.token);
    case PrefixMiss::Why::kEvicted:
      return base::str_cat("evicted to make room", ago());
    case PrefixMiss::Why::kClosed:
      return base::str_cat("evicted to make room", ago(), ": its session was closed");
    case PrefixMiss::Why::kExpired:
      return base::str_cat("evicted to make room", ago(), ": its session's ttl was over");
    case PrefixMiss::Why::kReturnsLater:
      return base::str_cat("evicted to make room", ago(),
                           ": its session was expected back later than others");
    case PrefixMiss::Why::kCleared:
      return base::str_cat("the cache was cleared", ago());
    case PrefixMiss::Why::kNoPoint:
      return base::str_cat("known up to token ", miss.token,
                           ", and no restore point is kept behind it");
    case PrefixMiss::Why::kPointEvicted:
      return base::str_cat("known up to token ", miss.token,
                           ", and the state behind it was evicted to make room");
    case PrefixMiss::Why::kOtherForm:
      return base::str_cat("known up to token ", miss.token,
                           ", and the state behind it is of another form: other arithmetic has "
                           "computed it");
    case PrefixMiss::Why::kWindowFreed:
      return base::str_cat("known up to token ", miss.token,
                           ", and the window freed the KV before it that some layers read");
    case PrefixMiss::Why::kTail:
      return "less than a block is left, and the last token is always computed";
  }
  return "";
}

void PrefixCache::note_other_form(std::span<const TokenId> tokens, std::string_view salt) {
  state_->states.note_other_form(tokens, salt);
}

std::int32_t PrefixCache::clear() {
  state_->losing.forget();
  state_->states.clear_points();
  return state_->shared.clear_cache();
}

void PrefixCache::set_time(TimePoint now) { state_->shared.order().set_time(now); }

TimePoint PrefixCache::now() const { return state_->shared.order().now(); }

SessionRef PrefixCache::open_session() { return state_->shared.order().open_session(); }

Retention PrefixCache::retention(SessionRef session) const {
  return state_->shared.order().retention(session);
}

void PrefixCache::set_retention(SessionRef session, const Retention& retention) {
  state_->shared.order().set_retention(session, retention);
}

void PrefixCache::close_session(SessionRef session) {
  state_->shared.order().close_session(session);
}

void PrefixCache::forget_session(SessionRef session) {
  state_->shared.order().forget_session(session);
}

void PrefixCache::assign(SeqId id, SessionRef session) { state_->assign(id, session); }

Standing PrefixCache::standing(std::span<const SessionRef> users, bool others,
                               TimePoint last_use) const {
  return state_->shared.order().standing(users, others, last_use);
}

}  // namespace quire::kv
