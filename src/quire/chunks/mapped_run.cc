#include "quire/chunks/mapped_run.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/base/no_memory.h"
#include "quire/chunks/chunk_maps.h"
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/kv/ledger.h"
#include "quire/kv/segments.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/tiers/held_segment.h"
#include "quire/tiers/tier_service.h"

namespace quire::chunks {

Result<std::shared_ptr<MappedRun>> MappedRun::make(engine::Engine& engine,
                                                   tiers::TierService& tiers, std::int64_t tokens) {
  QUIRE_TRY(auto maps, make_maps(engine, tokens));
  QUIRE_CHECK(maps.has_value(), "maps belong to models whose layers carry a state");
  return std::shared_ptr<MappedRun>(new MappedRun(engine, tiers, tokens, *std::move(maps)));
}

Status MappedRun::hold_room(SeqId sequence) const {
  return engine_.core().ledger.segments().hold_maps(sequence, most_map_blocks(engine_, tokens_));
}

void MappedRun::computed(SeqId sequence) {
  kept_ = base::no_memory("the KV of an item");  // until it is sealed
  kept_ = keep(sequence);
}

Result<tiers::HeldRef> MappedRun::keep(SeqId sequence) {
  QUIRE_TRY_STATUS(store_maps(engine_.core(), sequence, maps_));
  QUIRE_TRY(const kv::SegmentId id, engine_.core().ledger.segments().seal(sequence));
  return tiers_.keep(id);
}

}  // namespace quire::chunks
