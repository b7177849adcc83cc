// Composer: starts compositions. A composition is a request whose sequence stands behind the
// segments of its chunks. It runs in the same batch as plain prompts.
//
// Thread rule: submit() may be called from any thread but the engine's.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quire/base/ids.h"
#include "quire/chunk_types.h"
#include "quire/chunks/chunk_core.h"
#include "quire/chunks/chunk_library.h"
#include "quire/chunks/chunk_prefills.h"
#include "quire/chunks/composition_attempt.h"
#include "quire/chunks/composition_planner.h"
#include "quire/chunks/composition_preview.h"
#include "quire/chunks/part_reuse.h"
#include "quire/engine/active_request.h"
#include "quire/engine/channel.h"
#include "quire/interrupt.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/composition.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/tiers/background_loads.h"

namespace quire::chunks {

class Composer {
 public:
  // Borrows all five.
  Composer(ChunkCore& core, ChunkPrefills& prefills, ChunkLibrary& library,
           CompositionPlanner& planner, CompositionPreview& preview)
      : core_(core), prefills_(prefills), library_(library), planner_(planner), preview_(preview) {}

  // Computes the KV that is missing, waiting for it, then starts all runs together or none.
  // `computed`, where given, gets the names of that KV.
  [[nodiscard]] Result<std::vector<std::shared_ptr<engine::Channel>>> submit(
      std::span<const ComposedRun> runs, const Interrupt& interrupted,
      std::vector<kv::VariantName>* computed = nullptr);

 private:
  using ReuseByPart = CompositionAttempt::ReuseByPart;

  // Submits the runs as one attempt. Callers' threads, as for the next functions.
  [[nodiscard]] Result<std::vector<std::shared_ptr<engine::Channel>>> submit(
      std::span<const ComposedRun> runs, const Interrupt& interrupted,
      std::vector<kv::VariantName>* computed, CompositionAttempt& attempt);
  [[nodiscard]] Status await_missing(CompositionAttempt& attempt, const Interrupt& interrupted);
  // Returns whether what the started runs read was right.
  [[nodiscard]] Result<bool> await_read(std::span<const ComposedRun> runs,
                                        CompositionAttempt& attempt, const Interrupt& interrupted);
  void give_up(CompositionAttempt attempt);

  // Returns whether the runs have started; else there is KV to wait for. Engine thread, as for the
  // next functions.
  [[nodiscard]] Result<bool> advance(std::span<const ComposedRun> runs,
                                     CompositionAttempt& attempt);
  // Notes what the runs that explain would have been told, once.
  void explain(std::span<const ComposedRun> runs, CompositionAttempt& attempt);
  void withdraw_runs(CompositionAttempt& attempt);
  void take_back(CompositionAttempt& attempt);
  // Fills `uses`, which keep the chunks from being evicted.
  [[nodiscard]] Result<Compositions> resolve(std::span<const ComposedRun> runs, ChunkUses& uses,
                                             ReadBehind* behind);
  [[nodiscard]] Status adopt_all(const ComposedRun& run, ReadBehind* behind);
  // Returns whether nothing was missing.
  [[nodiscard]] Result<bool> waits_for_anchor(const kv::Part& part) const;
  [[nodiscard]] Result<bool> start_missing(const Compositions& compositions,
                                           CompositionAttempt& attempt);
  [[nodiscard]] Status start_bos(const std::string& salt, CompositionAttempt& attempt);
  [[nodiscard]] Status check_variants(
      const std::map<std::string, std::vector<kv::VariantName>>& by_salt);
  // Places of prefills that are a part of a chain.
  using PrefillPlaces = std::map<kv::VariantName, PrefillPlace>;
  [[nodiscard]] Status start_variants(std::span<const kv::VariantName> variants,
                                      const PrefillPlaces& chains, CompositionAttempt& attempt);
  void drop_chains(const Compositions& compositions);
  [[nodiscard]] Status start_runs(std::span<const ComposedRun> runs, CompositionAttempt& attempt);
  // Returns the loads of KV that the compositions stand on.
  [[nodiscard]] std::vector<tiers::BackgroundLoads::LoadRef> loads_of(
      const Compositions& compositions) const;
  [[nodiscard]] static ReuseByPart reuse_by_part(const kv::ResolvedComposition& composition,
                                                 StartedPrefills& fresh);
  [[nodiscard]] Result<engine::NewRequest> request_for(const ComposedRun& run,
                                                       const kv::ResolvedComposition& composition,
                                                       ReuseByPart parts);
  [[nodiscard]] Status complete_hidden(const Blend& how,
                                       const kv::ResolvedComposition& composition);
  [[nodiscard]] Result<SeqId> compose(const CompositionSpec& spec,
                                      const kv::ResolvedComposition& composition,
                                      ReuseByPart& parts, ReuseReport& reuse);
  void count_use(const ComposedRun& run, std::span<const PartReuse> parts);
  void count_uses(std::span<const ComposedRun> runs, CompositionAttempt& attempt);

  ChunkCore& core_;
  ChunkPrefills& prefills_;
  ChunkLibrary& library_;
  CompositionPlanner& planner_;
  CompositionPreview& preview_;
};

}  // namespace quire::chunks
