// Runtime: an engine, and all that stands on it.
//
// Thread rule: any thread.
#pragma once

#include <memory>
#include <string>

#include "quire/chunks/chunk_service.h"
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/result.h"
#include "quire/sequences/saved_sequences.h"
#include "quire/sequences/sequence_service.h"
#include "quire/tiers/tier_service.h"

namespace quire::runtime {

class Runtime {
 public:
  // Opens the model, opens the store of chunks and starts the thread. In a forked child the last
  // reference leaks the runtime.
  [[nodiscard]] static Result<std::shared_ptr<Runtime>> start(const std::string& model,
                                                              const engine::EngineOptions& options);
  ~Runtime() { close(); }
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Ends all requests, and writes what is left to write. Every later call returns kClosed.
  void close();

  [[nodiscard]] engine::Engine& engine() { return *engine_; }
  [[nodiscard]] const engine::Engine& engine() const { return *engine_; }
  [[nodiscard]] tiers::TierService& tiers() { return tiers_; }
  [[nodiscard]] chunks::ChunkService& chunks() { return chunks_; }
  [[nodiscard]] sequences::SequenceService& sequences() { return sequences_; }
  [[nodiscard]] sequences::SavedSequences& saved_sequences() { return saved_sequences_; }

 private:
  explicit Runtime(std::unique_ptr<engine::Engine> engine);

  std::unique_ptr<engine::Engine> engine_;
  tiers::TierService tiers_;
  chunks::ChunkService chunks_;
  sequences::SequenceService sequences_;
  sequences::SavedSequences saved_sequences_;
};

// Returns the engine of a runtime, as an owner of both.
[[nodiscard]] std::shared_ptr<engine::Engine> engine_of(const std::shared_ptr<Runtime>& runtime);

}  // namespace quire::runtime
