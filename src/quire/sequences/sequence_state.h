// SequenceState: what a sequence is at one moment.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "quire/base/ids.h"
#include "quire/engine/tasks.h"
#include "quire/output.h"
#include "quire/types.h"

namespace quire::engine {
class Engine;
}  // namespace quire::engine

namespace quire::sequences {

// A sequence at one moment: its tokens, and the KV of all but the last, whose computing gives the
// logits of the next token. Its blocks return with its last owner.
struct SequenceState {
  SequenceState() = default;
  ~SequenceState();
  SequenceState(const SequenceState&) = delete;
  SequenceState& operator=(const SequenceState&) = delete;

  std::vector<TokenId> tokens;
  std::int64_t segment_tokens = 0;   // the first so many are of segments that it was composed of
  std::int32_t sampled = 0;          // the last so many were sampled in one go
  std::int64_t computed_tokens = 0;  // tokens whose KV was not there when the state was asked for
  std::int64_t owed_tokens = 0;      // those before the last one whose KV is to be computed yet
  ReuseGrade grade = ReuseGrade::kExact;
  std::string salt;                      // salt whose cached prefixes it shares
  bool same_bits = true;                 // property of the engine's arithmetic, see graded()
  SeqId sequence;                        // in the ledger of
  std::weak_ptr<engine::Engine> engine;  // that
  std::vector<std::int32_t> blocks;      // ids, in order, of the tokens with KV
  engine::Tasks task{1};                 // task that gives the sequence up
};
using StateRef = std::shared_ptr<const SequenceState>;

}  // namespace quire::sequences
