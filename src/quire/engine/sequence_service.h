// SequenceService: sequences as state. A caller holds a SequenceState, which never changes; every
// operation makes the next one and leaves the old one as it is, so forks and marks are references,
// and an operation that fails has changed nothing.
//
// An operation that needs KV forks the state's sequence in the ledger (full blocks are shared, a
// partly filled one is copied when it is written) and runs it as a request of the common batch.
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
#include "quire/chunks.h"
#include "quire/engine/active_request.h"
#include "quire/engine/block_run.h"
#include "quire/engine/channel.h"
#include "quire/engine/letters.h"
#include "quire/kv/chunk_registry.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/types.h"

namespace quire::engine {

class Engine;

// What a sequence is at one moment: its tokens, and the KV of all but the last (computing that one
// gives the logits of the next token). Its blocks return with its last owner.
struct SequenceState {
  SequenceState() = default;
  ~SequenceState();
  SequenceState(const SequenceState&) = delete;
  SequenceState& operator=(const SequenceState&) = delete;

  std::vector<TokenId> tokens;
  std::int64_t segment_tokens = 0;   // the first so many are of segments that it was composed of
  std::int32_t sampled = 0;          // the last so many were sampled in one go
  std::int64_t computed_tokens = 0;  // whose KV was not there when the state was asked for
  ReuseGrade grade = ReuseGrade::kExact;
  std::string salt;                  // whose cached prefixes it shares
  bool same_bits = true;             // of the engine's arithmetic, see graded()
  SeqId sequence;                    // in the ledger of
  std::weak_ptr<Engine> engine;      // that
  std::vector<std::int32_t> blocks;  // ids, in order, of the tokens with KV
  Letters letter{1};                 // that gives the sequence up
};
using StateRef = std::shared_ptr<const SequenceState>;

class SequenceService {
 public:
  // `engine` is borrowed and owns the service.
  explicit SequenceService(Engine& engine) : engine_(engine) {}

  // `options`: whose request it is. What follows a state has the state's salt; kInvalidArgument
  // for another one, and for runs of states of several salts.
  // Computes what no cache holds, waiting for it. No tokens: an empty sequence.
  [[nodiscard]] Result<StateRef> open(std::span<const TokenId> tokens, const Interrupt& interrupted,
                                      const RequestOptions& options = {});
  [[nodiscard]] Result<StateRef> open(const CompositionSpec& spec, const Interrupt& interrupted,
                                      const RequestOptions& options = {});
  // Behind the runs, one after the other, and `tokens` behind them. kInvalidComposition naming a
  // run that has gone. `grade`: of what the runs are together; that of one state is its own.
  [[nodiscard]] Result<StateRef> open(std::span<const BlockRun> runs,
                                      std::span<const TokenId> tokens, const Interrupt& interrupted,
                                      ReuseGrade grade = ReuseGrade::kApproximate,
                                      const RequestOptions& options = {});

  [[nodiscard]] Result<StateRef> append(const StateRef& state, std::span<const TokenId> tokens,
                                        const Interrupt& interrupted,
                                        const RequestOptions& options = {});
  // The first `length` tokens. Computes nothing. kInvalidArgument outside [0, tokens].
  [[nodiscard]] Result<StateRef> cut(const StateRef& state, std::int64_t length);
  // Tokens [start, stop) become `tokens`; what stands behind them is computed again. In tokens of
  // segments: as a plain prompt.
  [[nodiscard]] Result<StateRef> replace(const StateRef& state, std::int64_t start,
                                         std::int64_t stop, std::span<const TokenId> tokens,
                                         const Interrupt& interrupted,
                                         const RequestOptions& options = {});

  // The same without computing again what stands behind: its KV is copied as it is, its keys used
  // as far away as they now stand. kApproximate. kIncompatible for a model with a sliding window.
  [[nodiscard]] Result<StateRef> replace_only(const StateRef& state, std::int64_t start,
                                              std::int64_t stop, std::span<const TokenId> tokens,
                                              const Interrupt& interrupted,
                                              const RequestOptions& options = {});

  // Gets the next state, or nullptr when there is none because the request failed or was aborted;
  // on the engine thread, before the request's caller sees its end.
  using Done = std::function<void(StateRef)>;
  struct Generate {
    const SamplingParams* params = nullptr;
    bool streaming = false;
    bool sampler_goes_on = true;  // where the state's last tokens were sampled; false: anew
    RequestOptions options = {};
    const char* source = "sequence";     // of the reuse, as it is reported
    std::optional<std::int64_t> cached;  // tokens that were reused; not given: all but the last
    Clock::time_point submitted = Clock::now();  // of what the caller waits for
  };
  // Goes on from the state. On an error `done` may have been called or not.
  [[nodiscard]] Result<std::shared_ptr<Channel>> generate(const StateRef& state,
                                                          const Generate& how, Done done);
  // Logits of the next token; the state stays.
  [[nodiscard]] Result<std::shared_ptr<Channel>> logits(const StateRef& state);

  // The KV of a tenant's chunk; no key: that which it was registered with. kNotFound,
  // kInvalidComposition for one without.
  [[nodiscard]] Result<BlockRun> chunk_run(const std::string& chunk_id, const std::string& salt,
                                           const std::optional<kv::VariantKey>& key = {});
  // Finds what plain block ids mean: the chunks and states of the tenant that consist of exactly
  // these blocks and `tokens` tokens. kInvalidComposition when there is none, whoever else has
  // them, or when it could mean several things.
  [[nodiscard]] Result<std::vector<BlockRun>> find_runs(std::span<const std::int32_t> blocks,
                                                        std::int64_t tokens,
                                                        const std::string& salt);
  // Takes over a sequence of the ledger whose last token alone has no KV. Engine thread.
  [[nodiscard]] StateRef adopt(SeqId sequence, std::int32_t sampled, ReuseGrade grade,
                               const std::string& salt) {
    return keep({.sequence = sequence, .sampled = sampled, .grade = grade, .salt = salt});
  }
  // All tokens of a state.
  [[nodiscard]] static BlockRun run_of(const StateRef& state);

 private:
  // A sequence of the ledger on its way to become a state.
  struct Draft {
    SeqId sequence;
    std::optional<TokenId> last;  // goes behind what is computed
    std::int32_t sampled = 0;
    ReuseGrade grade = ReuseGrade::kExact;
    std::string salt = {};
    std::int64_t computed_tokens = 0;  // once the state is there
  };
  class Next;
  using Segments = std::vector<kv::SegmentUse>;

  // Makes a draft on the engine thread and computes what it lacks.
  [[nodiscard]] Result<StateRef> compute(const std::function<Result<Draft>()>& make,
                                         const Interrupt& interrupted,
                                         const RequestOptions& options = {});

  // Engine thread.
  [[nodiscard]] Status check(std::int64_t first_position, std::span<const TokenId> tokens) const;
  [[nodiscard]] std::vector<BlockRun> known_runs(const std::string& salt) const;
  [[nodiscard]] Status check_end(std::int64_t end) const;
  [[nodiscard]] Draft draft_plain(std::span<const TokenId> tokens,
                                  const RequestOptions& options = {});
  [[nodiscard]] Draft draft_next(const SequenceState& state, std::span<const TokenId> tokens,
                                 const RequestOptions& options);
  [[nodiscard]] Result<Draft> draft_cut(const StateRef& from, std::int64_t length);
  [[nodiscard]] Result<Draft> draft_behind(std::span<const BlockRun> runs,
                                           std::vector<TokenId> tail);
  [[nodiscard]] Result<Draft> draft_behind(std::span<const BlockRun> runs,
                                           std::vector<TokenId> tail, Segments& named);
  [[nodiscard]] Result<Segments> place(const BlockRun& run, std::int64_t position,
                                       Segments& named) const;
  [[nodiscard]] Result<std::vector<TokenId>> tokens_of(const BlockRun& run) const;
  [[nodiscard]] Result<Segments> segments_of(const BlockRun& run, Segments& named) const;
  [[nodiscard]] StateRef keep(const Draft& draft);
  [[nodiscard]] StateRef make_state(const Draft& draft);
  [[nodiscard]] NewRequest request_for(RequestKind kind, const StateRef& state) const;
  [[nodiscard]] Result<std::shared_ptr<Channel>> start(NewRequest request);
  [[nodiscard]] kv::Ledger& ledger() const;

  Engine& engine_;
  static constexpr std::size_t kFirstSweep = 64;
  // Engine thread. For find_runs; those that have gone are swept when there are twice as many.
  std::vector<std::weak_ptr<const SequenceState>> states_;
  std::size_t next_sweep_ = kFirstSweep;
};

}  // namespace quire::engine
