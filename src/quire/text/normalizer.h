// Normalizers: rewriting a stretch of text before it is cut into pieces. Semantics are those of
// Hugging Face `tokenizers` 0.23 (normalizers/*.rs); a Sequence is the list of its members.
//
// Thread rule: immutable.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "quire/base/json.h"
#include "quire/result.h"
#include "quire/text/charsmap.h"
#include "quire/text/normal_text.h"
#include "quire/text/pattern.h"

namespace quire::text {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Leaves the text unfinished when its meter fails.
  virtual void apply(NormalText& text) const = 0;
};

using Normalizers = std::vector<std::unique_ptr<const Normalizer>>;

// Reads the "normalizer" section of tokenizer.json; null gives none. kUnsupported naming an unknown
// type.
[[nodiscard]] Result<Normalizers> normalizers_from_json(base::JsonView section);

[[nodiscard]] std::unique_ptr<const Normalizer> make_prepend(std::string prefix);
[[nodiscard]] std::unique_ptr<const Normalizer> make_replace(Pattern pattern, std::string content);

struct BertNormalization {
  bool clean_text = true;
  bool keep_control_spaces = false;  // clean_text: white space that is a control character, such as
                                     // U+0085, is a space (llama.cpp), not dropped (Hugging Face)
  bool handle_chinese_chars = true;
  bool strip_accents = true;
  bool lowercase = true;
};
[[nodiscard]] std::unique_ptr<const Normalizer> make_bert_normalizer(
    const BertNormalization& options);

// Work of sentencepiece before segmenting: longest matches of the character map, then spaces.
struct SentencePieceNormalization {
  std::optional<Charsmap> charsmap;
  std::vector<std::string> kept;  // spellings that the character map leaves alone
  bool add_space_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;  // write spaces as U+2581
};
[[nodiscard]] std::unique_ptr<const Normalizer> make_sentencepiece_normalizer(
    SentencePieceNormalization options);

}  // namespace quire::text
