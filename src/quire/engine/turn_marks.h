// TurnMarks: where the last turn of a chat stands in its ids.
//
// A chat comes again with its last user message edited, or to get another answer. Its answers come
// again without their thoughts. So restore points before the last user message and before the
// answer's opening are worth having.
//
// Thread rule: immutable; any thread.
#pragma once

#include <span>
#include <vector>

#include "quire/engine/model_bundle.h"
#include "quire/kv/states.h"
#include "quire/types.h"

namespace quire::engine {

class TurnMarks {
 public:
  // Knows no turns.
  TurnMarks() = default;
  // Learns from a chat template what stands before a user message and before an answer. Knows no
  // turns where there is no template or it cannot be rendered for these. Cost: a few renderings.
  explicit TurnMarks(const TextBundle& text);

  // Returns the lengths of `ids` before the last user message and before the opening of the answer
  // behind it, those that are found. O(ids).
  [[nodiscard]] std::vector<kv::PointMark> marks(std::span<const TokenId> ids) const;

 private:
  std::vector<TokenId> user_;    // ids that begin a user's turn
  std::vector<TokenId> answer_;  // ids that begin an answer, whatever the template's variables are
};

}  // namespace quire::engine
