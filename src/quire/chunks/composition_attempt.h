// One call that composes: what keeps its chunks, and how far it has come.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "quire/chunk_types.h"
#include "quire/chunks/chunk_core.h"
#include "quire/chunks/chunk_library.h"
#include "quire/chunks/chunk_prefills.h"
#include "quire/chunks/composition_planner.h"
#include "quire/chunks/part_reuse.h"
#include "quire/engine/active_request.h"
#include "quire/engine/channel.h"
#include "quire/kv/chunk_registry.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/segments.h"
#include "quire/kv/types.h"
#include "quire/output.h"
#include "quire/tiers/background_loads.h"
#include "quire/types.h"

namespace quire::chunks {

// Keeps chunks from being evicted; destroyed on the engine thread unless it forgets them.
class ChunkUse : public engine::RequestObserver {
 public:
  // Holds the chunks of `spec`. With `forgetful`, its prefix cache keeps nothing of what a plain
  // request computes, unless a window of all layers has freed a part of it.
  ChunkUse(kv::ChunkRegistry& registry, const CompositionSpec& spec,
           std::shared_ptr<engine::RequestObserver> next = nullptr,
           kv::Segments* forgetful = nullptr)
      : ChunkUse(registry, std::move(next), forgetful) {  // its destructor ends what this begins
    const std::vector<std::string> ids = CompositionPlanner::chunk_ids(spec);
    holds_.reserve(ids.size());
    for (const std::string& id : ids) {
      holds_.push_back(registry_.usage().hold(id));
    }
  }
  ~ChunkUse() override {
    for (const kv::ChunkHold& hold : holds_) {
      registry_.usage().release(hold);
    }
    if (own_) {
      forgetful_->forget(*own_);
    }
  }

  void computed(SeqId sequence) override {
    if (forgetful_ != nullptr) {
      const auto own = forgetful_->seal_to_forget(sequence);
      own_ = own.ok() ? std::optional(*own) : std::nullopt;
    }
    if (next_ != nullptr) {
      next_->computed(sequence);
    }
  }

  // Releases nothing any more: for a thread that may not touch the registry.
  void forget() {
    holds_.clear();
    own_.reset();
  }

 private:
  ChunkUse(kv::ChunkRegistry& registry, std::shared_ptr<engine::RequestObserver> next,
           kv::Segments* forgetful)
      : registry_(registry), next_(std::move(next)), forgetful_(forgetful) {}

  kv::ChunkRegistry& registry_;
  std::shared_ptr<engine::RequestObserver> next_;
  kv::Segments* forgetful_;
  std::vector<kv::ChunkHold> holds_;
  std::optional<kv::SegmentId> own_;
};

using ChunkUses = std::vector<std::shared_ptr<ChunkUse>>;

struct CompositionAttempt {
  using ReuseByPart = std::vector<PartReuse>;
  bool counted = true;                       // true: all its runs are counted
  StartedPrefills started;                   // prefills of this call
  ChunkUses in_use;                          // holds, so that nothing is evicted between two visits
  std::vector<PendingPrefill> pending;       // prefills that it has waited for
  std::optional<ChunkCore::RequestEnd> end;  // end of a request, before which nothing is begun
  bool reads_behind = true;                  // true until something damaged was read
  std::vector<tiers::BackgroundLoads::LoadRef> loads;  // loads of KV that is still being read
  Compositions compositions;       // compositions of this visit; their chunks are in use
  std::vector<ReuseByPart> parts;  // reuse of the parts of the runs
  std::vector<std::vector<ReusePart>> explained;  // parts of the runs, before anything was computed
  std::vector<std::shared_ptr<engine::Channel>> channels;
};

}  // namespace quire::chunks
