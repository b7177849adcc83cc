#include "quire/drafts/ngram.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/drafts/draft_source.h"
#include "quire/drafts/matches.h"
#include "quire/types.h"

namespace quire::drafts {
namespace {

struct Match {
  std::span<const TokenId> text;
  std::size_t end = 0;
  std::size_t length = 0;
};

void look_in(std::span<const TokenId> own, std::span<const TokenId> text, Match& best) {
  visit_matches(own, text, [&](std::size_t end, std::size_t length) {
    if (length > best.length) {
      best = {.text = text, .end = end, .length = length};
    }
    return best.length < kLongMatch;
  });
}

std::span<const TokenId> last_of(std::span<const TokenId> tokens, std::size_t count) {
  return tokens.last(std::min(tokens.size(), count));
}

// Appends what follows the match. Where the text ends, the guess itself goes on: what repeats is
// guessed to repeat again.
void follow(const Match& match, std::int32_t most, std::vector<TokenId>& draft) {
  for (std::size_t at = match.end; draft.size() < static_cast<std::size_t>(most); ++at) {
    draft.push_back(at < match.text.size() ? match.text[at] : draft[at - match.text.size()]);
  }
}

}  // namespace

void NgramSource::propose(std::span<const DraftQuery> queries) {
  for (const DraftQuery& query : queries) {
    const std::span<const TokenId> own = last_of(query.history.own, kMostSeen);
    if (own.empty()) {
      continue;
    }
    Match best;
    look_in(own, own, best);
    std::size_t left = kMostSeen - own.size();
    for (std::size_t i = query.history.prompt.size(); i > 0 && best.length < kLongMatch; --i) {
      const auto piece = last_of(query.history.prompt[i - 1], left);
      look_in(own, piece, best);
      left -= piece.size();
    }
    if (best.length >= static_cast<std::size_t>(min_match_)) {
      const bool repeats = best.text.data() == own.data();
      const auto rest = static_cast<std::int32_t>(best.text.size() - best.end);
      follow(best, repeats ? query.most : std::min(query.most, rest), query.draft->tokens);
    }
  }
}

}  // namespace quire::drafts
