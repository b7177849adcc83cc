// BandStates: the state behind the rows that passes through some layers have run, in models with
// layers that carry one. Does nothing for other models.
//
// Thread rule: the engine thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/chunks/blend.h"
#include "quire/kv/states.h"
#include "quire/model/forward_batch.h"
#include "quire/model/state_maps.h"
#include "quire/result.h"

namespace quire::chunks {

class BandStates {
 public:
  // Takes a state, behind the segments with these maps. Borrows `context`. Fails with kOutOfBlocks.
  [[nodiscard]] static Result<BandStates> behind(const BlendContext& context,
                                                 std::span<const std::span<const BlockId>> maps);

  // Tells a batch of one run's rows where the state is, for one pass. `maps`, if given, grow by the
  // rows, the first of which is token `first_token` of its chunk. The batch borrows from this.
  void add_to(model::ForwardBatch& batch, model::StateMaps* maps, std::int32_t first_token);
  // Returns the bytes of the state. Precondition: the model has states.
  [[nodiscard]] std::span<const std::byte> bytes() const;

 private:
  explicit BandStates(const BlendContext& context) : context_(&context) {}

  const BlendContext* context_;
  kv::HeldState state_;
  bool is_there_ = false;  // false: of no token
  model::StateRun run_;
};

// Reads the packed maps in these blocks.
[[nodiscard]] Result<std::vector<std::byte>> read_maps(const BlendContext& context,
                                                       std::span<const BlockId> blocks);

}  // namespace quire::chunks
