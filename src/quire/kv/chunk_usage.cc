#include "quire/kv/chunk_usage.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "quire/base/check.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/registry_state.h"
#include "quire/kv/types.h"

namespace quire::kv {

ChunkHold ChunkUsage::hold(std::string_view id) {
  Chunk* chunk = state_->lookup(id);
  QUIRE_CHECK(chunk != nullptr, "held a chunk that is not there");
  ChunkHold hold{.id = chunk->id, .registration = chunk->registration};
  ++chunk->holders;
  return hold;
}

void ChunkUsage::release(const ChunkHold& hold) {
  Chunk* chunk = state_->lookup(hold.id);
  if (chunk != nullptr && chunk->registration == hold.registration) {  // not deleted meanwhile
    --chunk->holders;
  }
}

void ChunkUsage::use(std::string_view id, SessionRef session) {
  Chunk* chunk = state_->lookup(id);
  QUIRE_CHECK(chunk != nullptr, "used a chunk that is not there");
  chunk->temporary = false;
  state_->touch(*chunk);
  if (session == SessionRef()) {
    chunk->others = true;
  } else if (std::ranges::find(chunk->users, session) == chunk->users.end()) {
    chunk->users.push_back(session);
  }
}

void ChunkUsage::count(std::string_view salt, std::int64_t hits, std::int64_t misses) {
  RegistryCounts& counts = state_->tenant(salt).counts;
  counts.hits += hits;
  counts.misses += misses;
}

void ChunkUsage::close_session(SessionRef session) {
  for (auto& [id, chunk] : state_->chunks) {
    const bool used = std::erase(chunk.users, session) > 0;
    chunk.closed = chunk.closed || (used && chunk.users.empty() && !chunk.others);
  }
}

void ChunkUsage::forget_session(SessionRef session) {
  for (auto& [id, chunk] : state_->chunks) {
    chunk.others = std::erase(chunk.users, session) > 0 || chunk.others;
  }
}

}  // namespace quire::kv
