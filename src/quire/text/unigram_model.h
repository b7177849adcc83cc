// Unigram: the segmentation of the highest total score (Kudo, 2018), by Viterbi over a trie.
//
// Thread rule: see model.h.
#pragma once

#include <optional>
#include <vector>

#include "quire/text/byte_trie.h"
#include "quire/text/model.h"
#include "quire/text/vocabulary.h"

namespace quire::text {

struct UnigramOptions {
  TokenId unk = 0;             // for characters that no piece covers
  bool byte_fallback = false;  // unknown stretches become <0xAB> tokens if all of them exist
};

class UnigramModel final : public Model {
 public:
  // Makes a model. `scores` has one per token id; minus infinity, like being special, keeps a token
  // from being matched in text. `min_score` is the lowest score that counts for the penalty of
  // unknown characters.
  UnigramModel(const Vocabulary& vocabulary, std::vector<double> scores, double min_score,
               const UnigramOptions& options);

  void tokenize(std::string_view piece, ModelScratch& scratch,
                std::vector<TokenId>& out) const override;

 private:
  // Finds the best path through a piece. Returns false when the meter has failed.
  bool find_best_path(std::string_view piece, ModelScratch& scratch) const;
  void emit_unknown(std::string_view stretch, std::vector<TokenId>& out) const;

  UnigramOptions options_;
  std::vector<double> scores_;
  double unk_score_;
  ByteTrie trie_;
  ByteTokens byte_tokens_;
};

}  // namespace quire::text
