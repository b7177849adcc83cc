// Post-processing: special tokens around the ids of a text. Semantics are those of Hugging Face
// `tokenizers` 0.23 for one text. The sections "truncation" and "padding", which training scripts
// leave in files, are not read. transformers sets them aside, too, and a prompt is never cut
// silently.
//
// Thread rule: immutable.
#pragma once

#include <optional>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/work_meter.h"
#include "quire/result.h"
#include "quire/text/vocabulary.h"
#include "quire/types.h"

namespace quire::text {

// Output of a template: ids, and nullopt for the ids that it was given.
using PostTemplate = std::vector<std::optional<TokenId>>;

class PostProcessor {
 public:
  // Reads the section "post_processor" of a tokenizer.json; null gives none. kInvalidArgument for
  // ids outside `vocabulary`; kUnsupported naming an unknown type.
  [[nodiscard]] static Result<PostProcessor> from_json(base::JsonView section,
                                                       const Vocabulary& vocabulary);
  PostProcessor() = default;
  explicit PostProcessor(PostTemplate around) { templates_.push_back(std::move(around)); }

  // Returns `ids` with special tokens around them; unfinished when `meter` has failed.
  [[nodiscard]] std::vector<TokenId> apply(std::vector<TokenId> ids, base::WorkMeter& meter) const;

 private:
  std::vector<PostTemplate> templates_;  // applied one after the other
};

}  // namespace quire::text
