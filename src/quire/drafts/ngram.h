// Guesses what followed the last tokens when they came before, in the prompt or the output.
#pragma once

#include <cstdint>
#include <span>

#include "quire/drafts/draft_source.h"

namespace quire::drafts {

// Looks for the longest run of last tokens that stands somewhere else, too, and guesses that the
// same comes next. The latest of equal runs counts. Cost: O(tokens) for each query, of
// which it sees the last kMostSeen. Source of the idea: A. Saxena, Prompt Lookup Decoding, 2023.
class NgramSource final : public DraftSource {
 public:
  static constexpr std::size_t kMostSeen = 65'536;

  // Wants `min_match` tokens alike, 1 or more.
  explicit NgramSource(std::int32_t min_match) : min_match_(min_match) {}
  void propose(std::span<const DraftQuery> queries) override;

 private:
  std::int32_t min_match_;
};

}  // namespace quire::drafts
