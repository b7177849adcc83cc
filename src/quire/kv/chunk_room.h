// ChunkRoom: who gives way to a new chunk. A view: ChunkRegistry::room() lends it.
//
// `max_chunks` holds for each tenant and evicts that tenant's chunks alone. `max_blocks` holds for
// all tenants together: beyond it the tenant that holds most gives way. A tenant with at most an
// equal share never gives way.
//
// Order of eviction: lower priority first, then by the hints of the sessions that composed the
// chunk (eviction_order.h). Without sessions the least recently used chunk goes first. Registering
// and composing are uses, reading is not. A chunk that is held, pinned or being computed is never
// evicted.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/kv/chunk_types.h"
#include "quire/result.h"

namespace quire::kv {

struct RegistryState;

class ChunkRoom {
 public:
  // Borrows `state`.
  explicit ChunkRoom(RegistryState& state) : state_(&state) {}

  [[nodiscard]] std::int32_t max_blocks() const;
  [[nodiscard]] std::int32_t blocks_for(std::size_t tokens) const;
  // Returns the blocks of a chunk's variants and those set aside for it.
  [[nodiscard]] std::int32_t blocks_of(const Chunk& chunk) const;

  // Returns kOverflow if so many chunks, or chunks with so many blocks, can never fit.
  [[nodiscard]] Status check_size(std::int64_t chunks, std::int64_t blocks) const;
  // Returns what make_room() would return, and evicts nothing.
  [[nodiscard]] Status check_room(const WantedRoom& wanted);
  // Evicts chunks until the wanted room exists. Fails with kOverflow if it can never exist, and
  // with kOutOfBlocks if evictable chunks do not suffice; evicts nothing then.
  [[nodiscard]] Status make_room(const WantedRoom& wanted);
  // Returns kOutOfBlocks: the pool lacks so many blocks, and no chunk can go for them.
  [[nodiscard]] Error pool_has_no_room(std::int64_t lacking) const;

 private:
  RegistryState* state_;
};

}  // namespace quire::kv
