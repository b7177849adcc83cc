// SequenceService: sequences as state. A caller holds a SequenceState, which never changes. Every
// operation makes the next one and leaves the old one as it is. So forks and marks are references,
// and an operation that fails has changed nothing.
//
// An operation that needs KV forks the state's sequence in the ledger and runs it as a request of
// the common batch. A fork shares full blocks, and copies a partly filled one when it is written.
//
// Thread rule: every public method may be called from any thread but the engine's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/base/ids.h"
#include "quire/chunk_types.h"
#include "quire/engine/active_request.h"
#include "quire/engine/channel.h"
#include "quire/interrupt.h"
#include "quire/kv/types.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequences/block_run.h"
#include "quire/sequences/block_runs.h"
#include "quire/sequences/known_states.h"
#include "quire/sequences/sequence_drafts.h"
#include "quire/sequences/sequence_state.h"
#include "quire/tiers/held_segment.h"
#include "quire/types.h"

namespace quire::chunks {
class ChunkService;
}  // namespace quire::chunks

namespace quire::engine {
class Engine;
}  // namespace quire::engine

namespace quire::tiers {
class TierService;
}  // namespace quire::tiers

namespace quire::sequences {

class SequenceService {
 public:
  // Borrows all three, which must outlive the service.
  SequenceService(engine::Engine& engine, chunks::ChunkService& chunks, tiers::TierService& tiers)
      : engine_(engine), chunks_(chunks), tiers_(tiers) {}

  // Computes what no cache holds, waiting for it. No tokens give an empty sequence. `options` say
  // whose request it is. A state that follows another has its salt. kInvalidArgument for another
  // salt, and for runs of states of several salts.
  [[nodiscard]] Result<StateRef> open(std::span<const TokenId> tokens, const Interrupt& interrupted,
                                      const RequestOptions& options = {});
  [[nodiscard]] Result<StateRef> open(const CompositionSpec& spec, const Interrupt& interrupted,
                                      const RequestOptions& options = {});
  // Opens a sequence of the runs, one after the other, and `tokens` behind them.
  // kInvalidComposition naming a run that has gone. `grade` is that of the runs together; one state
  // alone has its own.
  [[nodiscard]] Result<StateRef> open(std::span<const BlockRun> runs,
                                      std::span<const TokenId> tokens, const Interrupt& interrupted,
                                      ReuseGrade grade = ReuseGrade::kApproximate,
                                      const RequestOptions& options = {});

  [[nodiscard]] Result<StateRef> append(const StateRef& state, std::span<const TokenId> tokens,
                                        const Interrupt& interrupted,
                                        const RequestOptions& options = {});
  // Returns a state of the first `length` tokens. Computes nothing: where the KV or the state
  // behind some of them is not there, the next step owes these tokens. kInvalidArgument outside [0,
  // tokens].
  [[nodiscard]] Result<StateRef> cut(const StateRef& state, std::int64_t length);
  // Replaces tokens [start, stop) by `tokens`, and computes again what stands behind them. In
  // tokens of segments it computes all as a plain prompt.
  [[nodiscard]] Result<StateRef> replace(const StateRef& state, std::int64_t start,
                                         std::int64_t stop, std::span<const TokenId> tokens,
                                         const Interrupt& interrupted,
                                         const RequestOptions& options = {});

  // Replaces tokens without computing again those that stand behind. Their KV is copied as it is;
  // their keys are used as far away as they now stand. kApproximate. kIncompatible for a model with
  // a sliding window.
  [[nodiscard]] Result<StateRef> replace_only(const StateRef& state, std::int64_t start,
                                              std::int64_t stop, std::span<const TokenId> tokens,
                                              const Interrupt& interrupted,
                                              const RequestOptions& options = {});

  // Gets the next state, or nullptr when there is none because the request failed or was aborted.
  // Runs on the engine thread, before the request's caller sees its end.
  using Done = std::function<void(StateRef)>;
  struct Generate {
    const SamplingParams* params = nullptr;
    bool streaming = false;
    // True: sampling goes on where the state's last tokens were sampled; false: anew.
    bool sampler_goes_on = true;
    RequestOptions options = {};
    const char* source = "sequence";     // name of the source, as the reuse is reported
    std::optional<std::int64_t> cached;  // tokens that were reused; not given: all but the last
    // Submission of what the caller waits for.
    engine::Clock::time_point submitted = engine::Clock::now();
  };
  // Goes on from the state. On an error `done` may have been called or not.
  [[nodiscard]] Result<std::shared_ptr<engine::Channel>> generate(const StateRef& state,
                                                                  const Generate& how, Done done);
  // Computes the logits of the next token. The state stays.
  [[nodiscard]] Result<std::shared_ptr<engine::Channel>> logits(const StateRef& state);

  // Finds the meaning of handles of blocks.
  [[nodiscard]] BlockRuns& runs() { return runs_; }
  // Holds the KV of `tokens` behind the runs, each of which is held or a chunk's whole KV where the
  // model's layers carry a state. There its maps on states are kept too. Errors of open().
  [[nodiscard]] Result<tiers::HeldRef> hold(std::span<const BlockRun> runs,
                                            std::span<const TokenId> tokens,
                                            const Interrupt& interrupted,
                                            const RequestOptions& options);
  // Holds the KV of all that the state has of its own. Computes that of the last token.
  // kIncompatible where the model's layers carry a state.
  [[nodiscard]] Result<tiers::HeldRef> hold(const StateRef& state, const Interrupt& interrupted);
  // Returns a state of the same tokens that owes none. Computes those that are owed.
  [[nodiscard]] Result<StateRef> pay(const StateRef& state, const Interrupt& interrupted);
  // Returns a state of the same tokens that keeps KV of all layers for all of them. Computes what a
  // window of some layers has freed, with the same bits.
  [[nodiscard]] Result<StateRef> whole(const StateRef& owing, const Interrupt& interrupted);
  // Returns a state of the same tokens whose KV the prefix cache has or is computed, all but that
  // of the last. `past`: what it does with KV behind a window of some layers.
  [[nodiscard]] Result<StateRef> compute_again(const StateRef& state, kv::BehindWindow past,
                                               const Interrupt& interrupted);
  // Takes over a sequence of the ledger whose last token alone has no KV. Engine thread.
  [[nodiscard]] StateRef adopt(SeqId sequence, std::int32_t sampled, ReuseGrade grade,
                               const std::string& salt) {
    return drafts_.keep({.sequence = sequence, .sampled = sampled, .grade = grade, .salt = salt});
  }

 private:
  class Next;

  [[nodiscard]] Result<StateRef> open_marked(const CompositionInfo& info,
                                             const Interrupt& interrupted,
                                             const RequestOptions& options);

  // Makes a draft on the engine thread and computes what it lacks.
  [[nodiscard]] Result<StateRef> compute(const std::function<Result<SequenceDraft>()>& make,
                                         const Interrupt& interrupted,
                                         const RequestOptions& options = {});

  // Copies the KV of the state's tokens [first, last), one copy for each run that holds some of
  // them. The keys stay rotated as they are. kOutOfBlocks.
  [[nodiscard]] Result<std::vector<tiers::HeldRef>> copy_out(const StateRef& whose,
                                                             std::int64_t first, std::int64_t last);

  // Makes a request of a kind behind a state. Engine thread, as for the next functions.
  [[nodiscard]] engine::NewRequest request_for(engine::RequestKind kind, const StateRef& state);
  [[nodiscard]] Result<std::shared_ptr<engine::Channel>> start(engine::NewRequest request);

  engine::Engine& engine_;
  chunks::ChunkService& chunks_;
  tiers::TierService& tiers_;
  KnownStates states_;
  BlockRuns runs_{engine_, chunks_, states_};
  SequenceDrafts drafts_{engine_, runs_, states_};
};

}  // namespace quire::sequences
