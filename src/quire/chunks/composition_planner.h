// CompositionPlanner: what a composition is, and whether it can be computed. Changes nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quire/chunk_types.h"
#include "quire/chunks/chunk_core.h"
#include "quire/chunks/chunk_library.h"
#include "quire/engine/active_request.h"
#include "quire/kv/composition.h"
#include "quire/options.h"
#include "quire/result.h"
#include "quire/sampling.h"

namespace quire::chunks {

// One composition and what is to be done with it.
struct ComposedRun {
  const CompositionSpec* spec = nullptr;
  engine::RequestKind kind = engine::RequestKind::kGenerate;
  const SamplingParams* params = nullptr;  // parameters of kGenerate
  bool streaming = false;
  bool counted = true;  // true: counts as uses and hits of its chunks
  RequestOptions options = {};
  std::shared_ptr<engine::RequestObserver> observer = nullptr;
  // Submission of what the caller waits for.
  engine::Clock::time_point submitted = engine::Clock::now();
  // The next two have the meaning that they have in engine::NewRequest.
  std::int32_t followers = 0;
  bool follows = false;
};

class CompositionPlanner {
 public:
  // Borrows `core`.
  explicit CompositionPlanner(ChunkCore& core) : core_(core) {}

  // Returns the ids of a composition's chunks. Any thread, as for the next functions.
  [[nodiscard]] static std::vector<std::string> chunk_ids(const CompositionSpec& spec);
  // Returns the tenant whose chunks a run composes. kInvalidArgument where it names two.
  [[nodiscard]] Result<std::string> salt_of(const ComposedRun& run) const;
  // Returns the tenant of a run that salt_of() accepts, which is a precondition.
  [[nodiscard]] const std::string& whose(const ComposedRun& run) const;
  // Returns kOverflow for more positions than the model's context has.
  [[nodiscard]] Status check_positions(const kv::ResolvedComposition& composition) const;
  // Checks Blend::layers. Fails with kInvalidArgument for layers that the model has not, and with
  // kIncompatible for a chunk without hidden states of the first of them. Fails with kUnsupported
  // where no pass runs some layers alone. Engine thread.
  [[nodiscard]] Status check_layers(const CompositionSpec& spec,
                                    const kv::ResolvedComposition& composition) const;
  [[nodiscard]] std::int32_t max_new_tokens(const ComposedRun& run,
                                            const kv::ResolvedComposition& composition) const;

  // Returns what the scheduler would refuse, before chunks are computed and others evicted. Engine
  // thread, as for resolve().
  [[nodiscard]] Status check_fits(const ComposedRun& run,
                                  const kv::ResolvedComposition& composition) const;
  // Returns the runs' chunks and places, of chunks that are in the registry.
  [[nodiscard]] Result<Compositions> resolve(std::span<const ComposedRun> runs);

 private:
  ChunkCore& core_;
};

}  // namespace quire::chunks
