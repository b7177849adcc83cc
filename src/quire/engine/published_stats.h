// PublishedStats: the counters of the engine as callers of any thread see them.
#pragma once

#include <cstdint>
#include <mutex>

#include "quire/engine/engine_core.h"

namespace quire::engine {

class PublishedStats {
 public:
  // Shows the counters of this moment. Engine thread.
  void publish(EngineCore& core);
  // Returns what was published last. Any thread.
  [[nodiscard]] EngineStats get() const;

  // Tasks that were posted, and that the counters show. Any thread.
  [[nodiscard]] bool shows(std::uint64_t posted_tasks) const;
  void note_shown(std::uint64_t posted_tasks);

 private:
  mutable std::mutex mutex_;  // guards what follows
  EngineStats stats_;
  std::uint64_t shown_tasks_ = 0;
};

}  // namespace quire::engine
