#include "quire/drafts/custom.h"

#include <cstdint>
#include <new>
#include <span>
#include <vector>

#include "quire/drafts/draft_source.h"
#include "quire/drafts/guess.h"
#include "quire/types.h"

namespace quire::drafts {

std::vector<TokenId> all_tokens(const DraftHistory& history) {
  if (history.prompt.empty()) {
    return {history.own.begin(), history.own.end()};
  }
  std::vector<TokenId> tokens;
  for (const std::span<const TokenId> piece : history.prompt) {
    tokens.insert(tokens.end(), piece.begin(), piece.end());
  }
  tokens.insert(tokens.end(), history.output.begin(), history.output.end());
  return tokens;
}

std::int64_t num_tokens(const DraftHistory& history) {
  if (history.prompt.empty()) {
    return std::ssize(history.own);
  }
  std::int64_t tokens = std::ssize(history.output);
  for (const std::span<const TokenId> piece : history.prompt) {
    tokens += std::ssize(piece);
  }
  return tokens;
}

void CustomSource::propose(std::span<const DraftQuery> queries) {
  for (const DraftQuery& query : queries) {
    const std::vector<TokenId> tokens = all_tokens(query.history);
    try {
      *query.draft = drafter_->propose_tree(tokens, query.most, query.most_in_tree);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (...) {
      clear(*query.draft);
    }
  }
}

}  // namespace quire::drafts
