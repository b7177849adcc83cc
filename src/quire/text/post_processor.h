// Post-processing: special tokens around the ids of a text, and the truncation and padding that a
// tokenizer.json may ask for. Semantics are those of Hugging Face `tokenizers` 0.23 for one text.
//
// Thread rule: immutable.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstddef>
#include <optional>
#include <vector>

#include "quire/result.h"
#include "quire/text/vocabulary.h"
#include "quire/types.h"

namespace quire::text {

// What a template writes: ids, and nullopt for the ids that it was given.
using PostTemplate = std::vector<std::optional<TokenId>>;

struct Truncation {
  std::size_t max_length = 0;  // special tokens included
  bool from_left = false;      // drop the first ids, not the last
};

struct Padding {
  std::size_t fixed_length = 0;  // 0: as long as the text
  std::size_t multiple_of = 0;   // 0: any length
  bool on_left = false;
  TokenId pad = 0;
};

class PostProcessor {
 public:
  // The sections "post_processor", "truncation" and "padding" of `root`, a whole tokenizer.json.
  // kInvalidArgument for ids outside `vocabulary`; kUnsupported naming an unknown type.
  [[nodiscard]] static Result<PostProcessor> from_json(const boost::json::object& root,
                                                       const Vocabulary& vocabulary);
  PostProcessor() = default;
  explicit PostProcessor(PostTemplate around) { templates_.push_back(std::move(around)); }

  [[nodiscard]] std::vector<TokenId> apply(std::vector<TokenId> ids, bool add_special_tokens) const;

 private:
  void truncate(std::vector<TokenId>& ids, bool add_special_tokens) const;
  void pad(std::vector<TokenId>& ids) const;

  std::vector<PostTemplate> templates_;  // applied one after the other
  std::optional<Truncation> truncation_;
  std::optional<Padding> padding_;
};

}  // namespace quire::text
