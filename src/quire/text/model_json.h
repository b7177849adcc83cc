// Reads the "model" section of tokenizer.json in two steps. Its tokens come first, because added
// tokens get their ids after them. The model follows when all special tokens are known.
#pragma once

#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "quire/base/json.h"
#include "quire/result.h"
#include "quire/text/bpe_model.h"
#include "quire/text/model.h"
#include "quire/text/unigram_model.h"
#include "quire/text/vocabulary.h"
#include "quire/text/word_model.h"

namespace quire::text {

struct ModelSource {
  struct Bpe {
    BpeOptions options;
    std::vector<BpeMerge> merges;
  };
  struct Unigram {
    UnigramOptions options;
    std::vector<double> scores;  // by id
  };
  struct WordLevel {
    TokenId unk;
  };
  std::variant<Bpe, Unigram, WordPieceOptions, WordLevel> what;

  // Returns whether the model can take raw bytes and spell them in the byte alphabet itself.
  [[nodiscard]] bool takes_bytes() const;
};

// Adds the model's tokens to the empty `vocabulary`. kInvalidArgument for ids that are negative,
// taken twice or far above their number; kUnsupported for an unknown type or option.
[[nodiscard]] Result<ModelSource> read_model(base::JsonView model, Vocabulary& vocabulary);

struct BuiltModel {
  std::unique_ptr<const Model> model;
  std::optional<TokenId> unk;
  bool cuts_at_metaspace = false;
};

[[nodiscard]] Result<BuiltModel> build_model(ModelSource source, const Vocabulary& vocabulary,
                                             bool byte_level);

}  // namespace quire::text
