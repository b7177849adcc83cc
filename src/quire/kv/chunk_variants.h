// ChunkVariants: the KV of chunks, from the moment it begins to be computed. A view:
// ChunkRegistry::variants() lends it.
//
// The KV of a chunk exists in variants, one for each thing that stood before the chunk when it was
// computed. That is nothing, a BOS token or a system chunk. Variants belong to the chunk and go
// with it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "quire/kv/chunk_types.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::kv {

struct RegistryState;

class ChunkVariants {
 public:
  // Borrows `state`.
  explicit ChunkVariants(RegistryState& state) : state_(&state) {}

  // Begins variants of one tenant's known chunks, each named once: all of them or none. Fails as
  // ChunkRoom::make_room does. `lacking` is that of WantedRoom.
  [[nodiscard]] Status begin(std::span<const VariantName> variants, std::int64_t lacking = 0);
  // Ends a computation. The registry owns `segment` from now on; nullopt: it gave no KV. Drops the
  // segment and fails with kNotFound if the chunk was deleted meanwhile, with kOutOfBlocks without
  // memory.
  Status end(std::string_view id, const VariantKey& key, std::optional<SegmentId> segment) noexcept;
  // Drops the KV of one variant; the chunk stays. No effect without such KV.
  void drop(const VariantName& variant);

  // Returns true if the segment is the KV of a chunk.
  [[nodiscard]] bool owns(SegmentId segment) const;
  // Returns true if KV of some chunk of the tenant is computed, or being computed, behind `before`
  // (VariantKey::before).
  [[nodiscard]] bool stands_behind(std::string_view before, std::string_view salt) const;

 private:
  RegistryState* state_;
};

}  // namespace quire::kv
