// MappedRun: the observer of a prefill whose KV is kept with its maps on states (docs/adr/0048),
// for runs that no chunk names.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "quire/base/ids.h"
#include "quire/engine/active_request.h"
#include "quire/model/state_maps.h"
#include "quire/result.h"
#include "quire/tiers/held_segment.h"
#include "quire/tiers/tier_service.h"

namespace quire::engine {
class Engine;
}  // namespace quire::engine

namespace quire::chunks {

class MappedRun : public engine::RequestObserver {
 public:
  // Makes the observer of a prefill of so many tokens, on any thread. Borrows its arguments. Fails
  // as make_maps() does. Precondition: the model's layers carry a state.
  [[nodiscard]] static Result<std::shared_ptr<MappedRun>> make(engine::Engine& engine,
                                                               tiers::TierService& tiers,
                                                               std::int64_t tokens);
  // Sets room for the maps aside in a sequence that has none. kOutOfBlocks. Engine thread.
  [[nodiscard]] Status hold_room(SeqId sequence) const;

  void computed(SeqId sequence) override;
  [[nodiscard]] model::StateMaps* maps() override { return &maps_; }

  // Returns what was kept. Call it when the request has ended without an error.
  [[nodiscard]] const Result<tiers::HeldRef>& kept() const { return kept_; }

 private:
  MappedRun(engine::Engine& engine, tiers::TierService& tiers, std::int64_t tokens,
            model::StateMaps maps)
      : engine_(engine), tiers_(tiers), tokens_(tokens), maps_(std::move(maps)) {}
  [[nodiscard]] Result<tiers::HeldRef> keep(SeqId sequence);

  engine::Engine& engine_;
  tiers::TierService& tiers_;
  const std::int64_t tokens_;
  model::StateMaps maps_;
  Result<tiers::HeldRef> kept_ = {ErrorCode::kCancelled, "the prefill was aborted"};
};

}  // namespace quire::chunks
