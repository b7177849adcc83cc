// SequenceDrafts: sequences of the ledger on their way to become states.
//
// Thread rule: the engine thread, but for check(): any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/base/ids.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sequences/block_run.h"
#include "quire/sequences/block_runs.h"
#include "quire/sequences/known_states.h"
#include "quire/sequences/sequence_state.h"
#include "quire/types.h"

namespace quire::engine {
class Engine;
}  // namespace quire::engine

namespace quire::sequences {

struct SequenceDraft {
  SeqId sequence;
  std::optional<TokenId> last = {};  // goes behind what is computed
  std::int32_t sampled = 0;
  ReuseGrade grade = ReuseGrade::kExact;
  std::string salt = {};
  std::int64_t computed_tokens = 0;  // once the state is there
};

class SequenceDrafts {
 public:
  // Borrows all three.
  SequenceDrafts(engine::Engine& engine, BlockRuns& runs, KnownStates& states)
      : engine_(engine), runs_(runs), states_(states) {}

  // Returns the error of `tokens` that are to stand behind `before` others.
  [[nodiscard]] Status check(std::int64_t before, std::span<const TokenId> tokens) const;

  // Returns the sequence of a plain prompt, with what the prefix cache has of it.
  [[nodiscard]] SequenceDraft plain(std::span<const TokenId> tokens,
                                    const RequestOptions& options = {},
                                    kv::BehindWindow past = kv::BehindWindow::kFrees);
  // Returns a state of the same tokens that has KV of all layers for all of them; null where a
  // window has freed some.
  [[nodiscard]] StateRef whole(const StateRef& state);
  // Returns the state's tokens and `tokens`, of which there is at least one. Takes from the prefix
  // cache what that has beyond the state's own KV.
  [[nodiscard]] SequenceDraft next(const SequenceState& state, std::span<const TokenId> tokens,
                                   const RequestOptions& options);
  // Returns a sequence of the state's tokens, to go on from: one that owes no more than the state.
  // KV and states that the prefix cache has beyond the state's own are taken from there.
  [[nodiscard]] SeqId resume(const SequenceState& state);
  // Returns the state's first `length` tokens, of which there is at least one. Maps on states lead
  // through whole segments alone. So where layers carry a state, a segment that is cut is computed
  // again, behind those before it. kIncompatible where it stood elsewhere.
  [[nodiscard]] Result<SequenceDraft> cut(const StateRef& from, std::int64_t length);
  // Returns a sequence behind the KV of the runs. Its own tokens are those of `tail`, of which
  // there is at least one.
  [[nodiscard]] Result<SequenceDraft> behind(std::span<const BlockRun> runs,
                                             std::vector<TokenId> tail);
  // Returns how many of a sequence's own tokens have KV, there or in host memory.
  [[nodiscard]] std::int32_t at_hand(SeqId sequence) const;
  // Makes a state of the sequence, which is closed where memory is refused.
  [[nodiscard]] StateRef keep(const SequenceDraft& draft);

 private:
  // Checks that the sequence fits the context. `end` is the position behind the last token.
  [[nodiscard]] Status check_end(std::int64_t end) const;
  // Drafts a sequence of `tail` behind the runs. States are named as segments for it, which go to
  // `named`.
  [[nodiscard]] Result<SequenceDraft> behind(std::span<const BlockRun> runs,
                                             std::vector<TokenId> tail, SegmentUses& named);
  [[nodiscard]] Result<SequenceDraft> cut_segments(const StateRef& from, std::int64_t length);
  // Returns the tokens of the segments that end before token `length` of the state.
  [[nodiscard]] Result<std::int64_t> whole_segments(const StateRef& from,
                                                    std::int64_t length) const;
  [[nodiscard]] Result<SegmentUses> place(const BlockRun& run, std::int64_t position,
                                          SegmentUses& named) const;
  [[nodiscard]] StateRef make_state(const SequenceDraft& draft);

  engine::Engine& engine_;
  BlockRuns& runs_;
  KnownStates& states_;
};

}  // namespace quire::sequences
