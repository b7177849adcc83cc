#include "quire/kv/chunk_room.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/coalescing.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/registry_state.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::kv {
namespace {

using Order = std::vector<const Chunk*>;
using Victims = std::vector<std::pair<std::string, Removal>>;

// Returns the chunks of each tenant that may be evicted, the one to evict first in front.
std::map<std::string_view, Order> eviction_orders(const RegistryState& state, SparedChunks spared) {
  using Rank = std::tuple<std::int32_t, Standing, std::uint64_t>;
  std::vector<std::pair<Rank, const Chunk*>> ranks;
  for (const auto& [id, chunk] : state.chunks) {
    if (may_go(chunk) && std::ranges::find(spared, id) == spared.end()) {
      const bool unsaid = chunk.others || chunk.users.empty();
      const Standing standing =
          chunk.closed ? Standing()
                       : state.ledger.cache().standing(chunk.users, unsaid, chunk.used_at);
      ranks.emplace_back(Rank(chunk.priority, standing, chunk.use), &chunk);
    }
  }
  std::ranges::sort(ranks);
  std::map<std::string_view, Order> orders;
  for (const auto& [rank, chunk] : ranks) {
    orders[chunk->salt].push_back(chunk);
  }
  return orders;
}

// Makes the error of a lack of room. With `for_chunks` there are too many chunks, else too many
// blocks of chunks.
Error no_room(const RegistryState& state, const WantedRoom& wanted, bool for_chunks) {
  const auto known = state.tenants.find(wanted.salt);
  const std::int32_t own = known == state.tenants.end() ? 0 : known->second.chunks;
  const char* others = "; the others are pinned or in use: unpin or delete some";
  return Error{
      .code = ErrorCode::kOutOfBlocks,
      .message =
          for_chunks
              ? base::str_cat("no room for ", wanted.chunks, " more chunks: there are ", own,
                              " of ", state.config.max_chunks, others, ", or raise max_chunks")
              : base::str_cat("no room: chunks would need ", base::format_bytes(wanted.bytes),
                              " more, they hold ", base::format_bytes(state.bytes), " of ",
                              base::format_bytes(state.max_bytes()), others),
      .needed_bytes = wanted.bytes,
      .free_bytes = std::max<std::int64_t>(0, state.max_bytes() - state.bytes)};
}

// Says who gives way when the bytes of all tenants are too many. That is whoever holds most, what
// is wanted included. Nobody gives way for others who holds no more than an equal share.
class Yielding {
 public:
  Yielding(std::string_view wanting, std::int64_t limit) : wanting_(wanting), limit_(limit) {}

  void add(std::string_view salt, std::int64_t held) {
    if (held > 0) {
      held_[salt] += held;
    }
  }
  void take(std::string_view salt, std::int64_t bytes) { held_[salt] -= bytes; }

  // Returns the salt whose turn it is among those that `can` give something.
  [[nodiscard]] std::optional<std::string_view> next(
      const std::function<bool(std::string_view)>& can) const {
    const std::int64_t share = limit_ / std::max<std::int64_t>(1, std::ssize(held_));
    std::optional<std::string_view> most;
    for (const auto& [salt, held] : held_) {
      const bool own = salt == wanting_;
      const bool more = !most || held > held_.at(*most) || (own && held == held_.at(*most));
      if ((own || held > share) && more && can(salt)) {
        most = salt;
      }
    }
    return most;
  }

 private:
  std::string_view wanting_;
  std::int64_t limit_;
  std::map<std::string_view, std::int64_t> held_;
};

Result<Victims> victims_for(RegistryState& state, const WantedRoom& wanted) {
  const ChunkRoom room(state);
  QUIRE_TRY_STATUS(room.check_size(wanted.chunks, wanted.bytes));
  state.expire(wanted.spared);
  const std::int64_t beyond_limit = state.bytes + wanted.bytes - state.max_bytes();
  std::int64_t excess_bytes = beyond_limit;
  std::int64_t lacking = wanted.lacking;
  std::int64_t excess_chunks =
      std::int64_t{state.tenant(wanted.salt).chunks} + wanted.chunks - state.config.max_chunks;
  auto orders = eviction_orders(state, wanted.spared);
  Victims victims;
  Order& own = orders[wanted.salt];
  Yielding yielding(wanted.salt, state.max_bytes());
  for (const auto& [salt, each] : state.tenants) {
    yielding.add(salt, each.counts.bytes);
  }
  yielding.add(wanted.salt, std::max<std::int64_t>(wanted.bytes, 1));
  const auto evict = [&](Order& order, Order::iterator victim, Removal reason) {
    const std::int64_t held = state.bytes_of(**victim);
    victims.emplace_back((*victim)->id, reason);
    yielding.take((*victim)->salt, held);
    excess_bytes -= held;
    lacking -= state.freed_by(**victim);
    order.erase(victim);
  };
  for (; excess_chunks > 0 && !own.empty(); --excess_chunks) {
    evict(own, own.begin(), Removal::kEvictedForCount);
  }
  const auto with_blocks = [&](Order& order) {
    return std::ranges::find_if(order,
                                [&](const Chunk* chunk) { return state.bytes_of(*chunk) > 0; });
  };
  const auto can = [&](std::string_view salt) {
    const auto order = orders.find(salt);
    return order != orders.end() && with_blocks(order->second) != order->second.end();
  };
  while (std::max(excess_bytes, lacking) > 0) {
    const auto salt = yielding.next(can);
    if (!salt) {
      break;
    }
    Order& order = orders[*salt];
    evict(order, with_blocks(order), Removal::kEvictedForBlocks);
  }
  if (lacking > 0 && wanted.lacking > beyond_limit) {
    return room.pool_has_no_room(wanted.lacking);
  }
  const bool lacks_bytes = std::max(excess_bytes, lacking) > 0;
  if (lacks_bytes || excess_chunks > 0) {
    return no_room(state, wanted, !lacks_bytes);
  }
  return victims;
}

}  // namespace

std::int64_t ChunkRoom::max_bytes() const { return state_->max_bytes(); }

std::int64_t ChunkRoom::bytes_for(const NewChunk& chunk) const { return state_->bytes_for(chunk); }

std::int64_t ChunkRoom::bytes_of(const Chunk& chunk) const { return state_->bytes_of(chunk); }

Status ChunkRoom::check_size(std::int64_t chunks, std::int64_t bytes) const {
  if (chunks > state_->config.max_chunks) {
    return {ErrorCode::kOverflow,
            base::str_cat("there would be ", chunks, " chunks at a time, there may be ",
                          state_->config.max_chunks, "; raise max_chunks")};
  }
  if (bytes <= state_->max_bytes()) {
    return {};
  }
  return Error{.code = ErrorCode::kOverflow,
               .message = base::str_cat("chunks would need ", base::format_bytes(bytes),
                                        ", all chunks together may hold ",
                                        base::format_bytes(state_->max_bytes()),
                                        "; raise kv_budget or chunk_memory_ratio"),
               .needed_bytes = bytes,
               .free_bytes = state_->max_bytes()};
}

Error ChunkRoom::pool_has_no_room(std::int64_t lacking) const {
  const LedgerConfig& pool = state_->ledger.config();
  const std::int64_t free = state_->ledger.blocks_available() * pool.block_bytes(kOwnFormat);
  const std::int64_t needed = free + lacking;
  return {.code = ErrorCode::kOutOfBlocks,
          .message = base::str_cat("no room: ", base::format_bytes(needed), " are needed, ",
                                   base::format_bytes(free), " of ",
                                   base::format_bytes(pool.budget_bytes()),
                                   " can be had, and chunks that are neither pinned nor in use do "
                                   "not hold the rest; unpin or delete something, or raise "
                                   "kv_budget"),
          .needed_bytes = needed,
          .free_bytes = free};
}

Status ChunkRoom::check_room(const WantedRoom& wanted) {
  WantedRoom within = wanted;
  within.lacking = 0;
  const Result<Victims> victims = victims_for(*state_, within);
  return victims.ok() ? Status() : victims.error();
}

Status ChunkRoom::make_room(const WantedRoom& wanted) {
  QUIRE_TRY(const Victims victims, victims_for(*state_, wanted));
  for (const auto& [id, reason] : victims) {
    ++state_->tenant(state_->lookup(id)->salt).counts.evictions;
    state_->remove(id, reason);
  }
  return {};
}

std::int32_t ChunkRoom::coalesce(std::int32_t most_moves) {
  std::vector<SegmentId> segments;
  for (const auto& [id, chunk] : state_->chunks) {
    for (const auto& [key, segment] : chunk.variants) {
      segments.push_back(segment);
    }
  }
  Coalescing& coalescing = state_->ledger.coalescing();
  return coalescing.apply(coalescing.plan(segments, most_moves));
}

void ChunkRoom::forget_moved() {
  std::vector<std::string> lost;
  for (const SegmentId moved : state_->ledger.coalescing().last_moved()) {
    for (const auto& [id, chunk] : state_->chunks) {
      if (std::ranges::any_of(chunk.variants,
                              [&](const auto& variant) { return variant.second == moved; })) {
        lost.push_back(id);
      }
    }
  }
  for (const std::string& id : lost) {
    state_->remove(id, Removal::kEvictedForBlocks);
  }
}

}  // namespace quire::kv
