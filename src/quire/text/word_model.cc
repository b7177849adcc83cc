#include "quire/text/word_model.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/text/byte_trie.h"
#include "quire/text/model.h"
#include "quire/text/utf8.h"
#include "quire/text/vocabulary.h"
#include "quire/types.h"

namespace quire::text {
namespace {

// Returns a trie of ordinary tokens that start with `prefix`, without it.
ByteTrie trie_of(const Vocabulary& vocabulary, std::string_view prefix) {
  std::vector<std::pair<std::string, std::int32_t>> entries;
  for (TokenId id = 0; id < vocabulary.end_id(); ++id) {
    if (vocabulary.is_ordinary(id) && vocabulary.token(id).starts_with(prefix)) {
      entries.emplace_back(vocabulary.token(id).substr(prefix.size()), id);
    }
  }
  return ByteTrie(std::move(entries));
}

}  // namespace

WordPieceModel::WordPieceModel(const Vocabulary& vocabulary, const WordPieceOptions& options)
    : options_(options),
      first_(trie_of(vocabulary, "")),
      continuing_(trie_of(vocabulary, options.continuing_prefix)) {}

void WordPieceModel::tokenize(std::string_view piece, ModelScratch& scratch,
                              std::vector<TokenId>& out) const {
  const std::size_t start = out.size();
  if (count_code_points(piece) > options_.max_chars_per_word) {
    out.push_back(options_.unk);
    return;
  }
  for (std::string_view rest = piece; !rest.empty();) {
    const ByteTrie& trie = rest.size() == piece.size() ? first_ : continuing_;
    const std::size_t reach = std::min(rest.size(), trie.depth());
    if (!scratch.meter->step(static_cast<std::int64_t>(reach / 16) + 1)) {
      return;
    }
    const ByteTrie::Match match = trie.longest_prefix(rest);
    if (match.length == 0) {
      out.resize(start);
      out.push_back(options_.unk);
      return;
    }
    out.push_back(match.value);
    rest.remove_prefix(match.length);
  }
}

WordLevelModel::WordLevelModel(const Vocabulary& vocabulary, TokenId unk) : unk_(unk) {
  for (TokenId id = 0; id < vocabulary.end_id(); ++id) {
    if (vocabulary.is_ordinary(id)) {
      words_.insert(vocabulary.token(id), id);
    }
  }
}

void WordLevelModel::tokenize(std::string_view piece, ModelScratch& /*scratch*/,
                              std::vector<TokenId>& out) const {
  const TokenId id = words_.find(piece);
  out.push_back(id >= 0 ? id : unk_);
}

}  // namespace quire::text
