// ChunkUsage: who uses chunks, which decides who goes (chunk_room.h). A view:
// ChunkRegistry::usage() lends it.
#pragma once

#include <cstdint>
#include <string_view>

#include "quire/kv/chunk_types.h"
#include "quire/kv/types.h"

namespace quire::kv {

struct RegistryState;

class ChunkUsage {
 public:
  // Borrows `state`.
  explicit ChunkUsage(RegistryState& state) : state_(&state) {}

  // Keeps a chunk from eviction until the hold is given to release(), once. Precondition: the chunk
  // is known or begun.
  [[nodiscard]] ChunkHold hold(std::string_view id);
  void release(const ChunkHold& hold);

  // Counts a use by composing, of `session` or of none. Precondition: the chunk is known.
  void use(std::string_view id, SessionRef session = {});
  // Closes a session: chunks that it alone has composed are evicted first. A forgotten one counts
  // as requests without a session.
  void close_session(SessionRef session);
  void forget_session(SessionRef session);
  // Counts a tenant's prefills avoided and done. ChunkRegistry::merge counts those that it avoids
  // itself.
  void count(std::string_view salt, std::int64_t hits, std::int64_t misses);

 private:
  RegistryState* state_;
};

}  // namespace quire::kv
