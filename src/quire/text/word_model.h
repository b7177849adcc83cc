// Models that look words up: WordPiece (longest match first, Wu et al., 2016) and WordLevel.
//
// Thread rule: see model.h.
#pragma once

#include <cstddef>
#include <string>

#include "quire/text/byte_trie.h"
#include "quire/text/model.h"
#include "quire/text/vocabulary.h"

namespace quire::text {

struct WordPieceOptions {
  TokenId unk = 0;  // for words that cannot be covered and words that are too long
  // Marks the tokens that continue a word; empty when tokens are the same everywhere.
  std::string continuing_prefix = "##";
  std::size_t max_chars_per_word = 100;
};

class WordPieceModel final : public Model {
 public:
  // Makes a model of a vocabulary. Special tokens are never matched in text.
  WordPieceModel(const Vocabulary& vocabulary, const WordPieceOptions& options);

  void tokenize(std::string_view piece, ModelScratch& scratch,
                std::vector<TokenId>& out) const override;

 private:
  WordPieceOptions options_;
  ByteTrie first_;
  ByteTrie continuing_;
};

class WordLevelModel final : public Model {
 public:
  WordLevelModel(const Vocabulary& vocabulary, TokenId unk);

  void tokenize(std::string_view piece, ModelScratch& scratch,
                std::vector<TokenId>& out) const override;

 private:
  StringTable words_;
  TokenId unk_;
};

}  // namespace quire::text
