// Runtime: an engine, and all that stands on it.
//
// Thread rule: any thread.
#pragma once

#include <memory>
#include <string>

#include "quire/engine/chunk_service.h"
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/saved_sequences.h"
#include "quire/engine/sequence_service.h"
#include "quire/engine/tier_service.h"
#include "quire/result.h"

namespace quire::engine {

class Runtime {
 public:
  // Loads the model, opens the store of chunks and starts the thread. In a forked child the last
  // reference leaks the runtime.
  [[nodiscard]] static Result<std::shared_ptr<Runtime>> start(const std::string& model,
                                                              const EngineOptions& options);
  ~Runtime() { close(); }
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Ends all requests, and writes what is left to write. Every later call returns kClosed.
  void close();

  [[nodiscard]] Engine& engine() { return *engine_; }
  [[nodiscard]] const Engine& engine() const { return *engine_; }
  [[nodiscard]] TierService& tiers() { return tiers_; }
  [[nodiscard]] ChunkService& chunks() { return chunks_; }
  [[nodiscard]] SequenceService& sequences() { return sequences_; }
  [[nodiscard]] SavedSequences& saved_sequences() { return saved_sequences_; }

 private:
  explicit Runtime(std::unique_ptr<Engine> engine);

  std::unique_ptr<Engine> engine_;
  TierService tiers_;
  ChunkService chunks_;
  SequenceService sequences_;
  SavedSequences saved_sequences_;
};

// Returns the engine of a runtime, as an owner of both.
[[nodiscard]] std::shared_ptr<Engine> engine_of(const std::shared_ptr<Runtime>& runtime);

}  // namespace quire::engine
