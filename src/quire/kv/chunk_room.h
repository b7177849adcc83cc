// ChunkRoom: who gives way to a new chunk, or shares blocks before. A view: ChunkRegistry::room()
// lends it.
//
// `max_chunks` holds for each tenant and evicts that tenant's chunks alone. The bytes of
// `max_blocks` blocks hold for all tenants together, whatever the formats of their chunks. Beyond
// them the tenant with the most bytes gives way. A tenant with at most an equal share never gives
// way.
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

  [[nodiscard]] std::int64_t max_bytes() const;
  // Returns the bytes of the blocks of one variant of a chunk, in the chunk's format.
  [[nodiscard]] std::int64_t bytes_for(const NewChunk& chunk) const;
  // Returns the bytes of a chunk's variants and those set aside for it.
  [[nodiscard]] std::int64_t bytes_of(const Chunk& chunk) const;

  // Returns kOverflow if so many chunks, or chunks with so many bytes, can never fit.
  [[nodiscard]] Status check_size(std::int64_t chunks, std::int64_t bytes) const;
  // Returns what make_room() would return, and evicts nothing.
  [[nodiscard]] Status check_room(const WantedRoom& wanted);
  // Evicts chunks until the wanted room exists. Fails with kOverflow if it can never exist, and
  // with kOutOfBlocks if evictable chunks do not suffice; evicts nothing then.
  [[nodiscard]] Status make_room(const WantedRoom& wanted);
  // Lets the last tokens of chunks that nobody uses share blocks, in at most so many moves, and
  // orders copies. Returns the number of blocks that become free.
  std::int32_t coalesce(std::int32_t most_moves);
  // Removes the chunks whose tails were to be moved by the copies taken last, one of which has
  // failed.
  void forget_moved();
  // Returns kOutOfBlocks: the pool lacks so many bytes, and no chunk can go for them.
  [[nodiscard]] Error pool_has_no_room(std::int64_t lacking) const;

 private:
  RegistryState* state_;
};

}  // namespace quire::kv
