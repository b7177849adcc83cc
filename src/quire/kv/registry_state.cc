#include "quire/kv/registry_state.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/kv/chunk_types.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"

namespace quire::kv {
namespace {

constexpr std::size_t kRememberedChunks = 4096;  // chunks that have gone

bool has(std::span<const std::string_view> ids, std::string_view id) {
  return std::ranges::find(ids, id) != ids.end();
}

}  // namespace

double seconds_between(WallClock::time_point from, WallClock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

RegistryState::RegistryState(RegistryConfig config, Ledger& ledger)
    : config(std::move(config)), ledger(ledger) {}

RegistryState::~RegistryState() {
  for (const auto& [id, chunk] : chunks) {
    for (const auto& [key, segment] : chunk.variants) {
      ledger.segments().drop(segment);
    }
  }
}

Chunk* RegistryState::lookup(std::string_view id) {
  const auto found = chunks.find(id);
  return found == chunks.end() ? nullptr : &found->second;
}

RegistryState::Tenant& RegistryState::tenant(std::string_view salt) {
  const auto known = tenants.find(salt);
  return known != tenants.end() ? known->second : tenants[std::string(salt)];
}

void RegistryState::add_bytes(std::string_view salt, std::int64_t count) {
  tenant(salt).counts.bytes += count;
  bytes += count;
}

std::int64_t RegistryState::max_bytes() const {
  return config.max_blocks * ledger.config().block_bytes(kOwnFormat);
}

std::int64_t RegistryState::bytes_for(const NewChunk& chunk) const {
  const LedgerConfig& blocks = ledger.config();
  BlockCounts all = blocks.blocks_for(std::ssize(*chunk.tokens), chunk.format);
  all[kOwnFormat] += config.blocks_beside ? config.blocks_beside(std::ssize(*chunk.tokens)) : 0;
  return blocks.bytes_of(all);
}

std::int64_t RegistryState::bytes_of(const Chunk& chunk) const {
  std::int64_t held = 0;
  for (const auto& [key, segment] : chunk.variants) {
    held += ledger.segments().num_bytes(segment);
  }
  for (const auto& [key, aside] : chunk.pending) {
    held += aside;
  }
  return held;
}

std::int64_t RegistryState::freed_by(const Chunk& chunk) const {
  std::int64_t freed = bytes_of(chunk);
  for (const auto& [key, segment] : chunk.variants) {
    freed -= ledger.coalescing().shared_bytes(segment);
  }
  return freed;
}

void RegistryState::touch(Chunk& chunk) {
  chunk.accessed = config.now();
  chunk.use = ++last_use;
  chunk.used_at = ledger.cache().now();
  chunk.closed = false;
  ++chunk.accesses;
}

bool may_go(const Chunk& chunk) {
  return chunk.listed && !chunk.pinned && chunk.holders == 0 && chunk.pending.empty();
}

bool RegistryState::expired(const Chunk& chunk, WallClock::time_point now) const {
  return chunk.ttl_seconds && may_go(chunk) &&
         seconds_between(chunk.accessed, now) > *chunk.ttl_seconds;
}

void RegistryState::expire(SparedChunks spared) {
  const auto now = config.now();
  remove_all(Removal::kExpired,
             [&](const Chunk& chunk) { return expired(chunk, now) && !has(spared, chunk.id); });
}

bool RegistryState::remove(std::string_view id, Removal reason) {
  Chunk* chunk = lookup(id);
  if (chunk == nullptr || !chunk->listed) {
    return false;
  }
  add_bytes(chunk->salt, -bytes_of(*chunk));
  const bool evicted = reason == Removal::kEvictedForCount || reason == Removal::kEvictedForBlocks;
  for (const auto& [key, segment] : chunk->variants) {
    evicted ? ledger.segments().drop(segment) : ledger.segments().forget(segment);
  }
  remember_gone(*chunk, reason);
  forget(*chunk);
  return true;
}

// Removes chunks in the order of registration, since that decides what stays in the prefix cache.
std::int64_t RegistryState::remove_all(Removal reason,
                                       const std::function<bool(const Chunk&)>& goes) {
  std::vector<const Chunk*> going;
  for (const auto& [id, chunk] : chunks) {
    if (goes(chunk)) {
      going.push_back(&chunk);
    }
  }
  std::ranges::sort(going, {}, &Chunk::registration);
  for (const Chunk* const chunk : going) {
    remove(chunk->id, reason);
  }
  return std::ssize(going);
}

void RegistryState::forget(const Chunk& chunk) {
  const auto text = by_text.find(chunk.text_id);
  if (text != by_text.end() && text->second == chunk.id) {
    by_text.erase(text);
  }
  Tenant& tenant = this->tenant(chunk.salt);
  std::erase(tenant.systems, &chunk);
  --tenant.chunks;
  chunks.erase(chunks.find(chunk.id));
}

// Notes why a chunk has gone. Without memory for the note, nobody will know it.
void RegistryState::remember_gone(const Chunk& chunk, Removal reason) {
  std::deque<Gone>& gone = tenant(chunk.salt).gone;
  try {
    gone.push_back({.id = chunk.id, .reason = reason, .when = config.now()});
  } catch (const std::bad_alloc&) {
    return;
  }
  if (gone.size() > kRememberedChunks) {
    gone.pop_front();
  }
}

}  // namespace quire::kv
