// ChunkPrefills: prefills of chunks that are under way, and the KV of BOS tokens that chunks stand
// behind.
//
// Thread rule: the engine thread, but for wait().
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "quire/base/ids.h"
#include "quire/chunk_types.h"
#include "quire/chunks/chunk_core.h"
#include "quire/engine/active_request.h"
#include "quire/engine/channel.h"
#include "quire/interrupt.h"
#include "quire/kernels/kv_codes.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/format.h"
#include "quire/kv/types.h"
#include "quire/model/state_maps.h"
#include "quire/result.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/types.h"

namespace quire::chunks {

// A prefill in flight: how it ends, and its request, to abort when nobody wants it.
struct PendingPrefill {
  std::shared_future<Status> done;
  std::shared_ptr<engine::Channel> channel;
  std::shared_ptr<int> waiters;  // calls that want it; engine thread
};
// Prefills that one call has started.
using StartedPrefills = std::map<kv::VariantName, PendingPrefill>;

// Returns how far stored KV is from what was computed; nothing where nothing was measured.
[[nodiscard]] std::optional<KVError> kv_error_of(const kernels::KVErrorSums& sums,
                                                 const tensor::KVGeometry& geometry);

// A place of a prefill: the KV before it, and the position of its first token.
struct PrefillPlace {
  std::vector<kv::SegmentUse> before;
  std::int32_t position = 0;
};

class ChunkPrefills {
 public:
  // Borrows `core`.
  explicit ChunkPrefills(ChunkCore& core) : core_(core) {}

  // Names the KV of a BOS token, of which each tenant has its own. No chunk has this name.
  [[nodiscard]] static kv::VariantName bos_name(const std::string& salt);

  // Starts the prefill of a chunk for which room was set aside. Gives the room back where it cannot
  // start. With `counted` it counts as a miss once it is done. The key says what it stands behind,
  // or `place` where it names a chain.
  [[nodiscard]] Result<PendingPrefill> start_prefill(const kv::Chunk& chunk,
                                                     const kv::VariantKey& key, bool counted,
                                                     const PrefillPlace* place = nullptr);
  // Starts computing the KV of a tenant's BOS token.
  [[nodiscard]] Result<PendingPrefill> start_bos(const std::string& salt, TokenId bos);

  // Computes the hidden states that a chunk keeps (NewChunk::keep_hidden) of this KV, which is
  // there. Does nothing where they are there, or the chunk keeps none. Nor does it while the KV is
  // still being read from a file: the first blend that wants them waits for that, and computes
  // them.
  [[nodiscard]] Status keep_hidden(const kv::Chunk& chunk, const kv::VariantKey& key);

  // Returns the chunk of an anchor that comes first among those without KV; null where all have
  // some. Each stands with the KV that it was registered with. kNotFound where one is gone.
  [[nodiscard]] Result<const kv::Chunk*> first_without_kv(std::string_view anchor,
                                                          const std::string& salt) const;

  [[nodiscard]] bool is_under_way(const kv::VariantName& name) const {
    return pending_.contains(name);
  }
  // Returns a prefill that is at work already, for one more call to wait for.
  [[nodiscard]] std::optional<PendingPrefill> join(const kv::VariantName& name);
  // Counts one call less for each, and aborts those that no call waits for any more.
  void leave(std::span<const PendingPrefill> pending);
  // Blocks until all have ended or the call is interrupted. Returns the first failure. Any thread.
  [[nodiscard]] static Status wait(std::span<const PendingPrefill> pending,
                                   const Interrupt& interrupted);

  [[nodiscard]] bool has_bos(const std::string& salt) const { return bos_.contains(salt); }
  // Returns whether the segment is the KV of a BOS token.
  [[nodiscard]] bool owns(kv::SegmentId segment) const;
  // Drops the KV of a BOS token that no KV of the tenant's chunks stands behind.
  void drop_unused_bos(const std::string& salt);
  void drop_unused_bos();

 private:
  class Prefill;
  [[nodiscard]] bool is_being_read(kv::SegmentId segment) const;
  using BosSegments = std::map<std::string, kv::SegmentId>;  // by salt
  // Gets the KV of a prefill, or none, and what storing it has changed. Returns an error where
  // nobody has it from now on.
  using KeepKv = std::function<Status(std::optional<kv::SegmentId>, const kernels::KVErrorSums&)>;

  [[nodiscard]] Result<PendingPrefill> start(engine::NewRequest request, kv::VariantName name,
                                             KeepKv store,
                                             std::optional<model::StateMaps> maps = std::nullopt);
  // Returns what a variant stands behind, if anything.
  [[nodiscard]] Result<PrefillPlace> place_of(const kv::Chunk& chunk,
                                              const kv::VariantKey& key) const;
  // Returns a sequence of a chunk's tokens there. Its run has this format, and where the model has
  // layers with a state it has room for maps.
  [[nodiscard]] Result<SeqId> compose_at(std::span<const TokenId> tokens, kv::FormatId format,
                                         const PrefillPlace& place);

  ChunkCore& core_;
  StartedPrefills pending_;
  BosSegments bos_;  // KV of a BOS token alone, once wanted
};

}  // namespace quire::chunks
