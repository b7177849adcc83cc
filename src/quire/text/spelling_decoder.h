// Spelling decoders: the steps that turn token spellings back into text. Semantics are those of
// Hugging Face `tokenizers` 0.23 (decoders/*.rs); a Sequence is the list of its members.
// decode_stream.h runs them.
//
// Thread rule: a SpellingDecoder is immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "quire/base/json.h"
#include "quire/result.h"
#include "quire/text/pattern.h"

namespace quire::text {

namespace decode {

struct JoinWithSpaces {};  // taken without a decoder
struct ByteLevel {};       // the byte alphabet; ill-formed UTF-8 becomes U+FFFD
struct Fuse {};            // all tokens become one
// Runs of <0xAB> tokens become their bytes; those outside characters become U+FFFD each. So a
// character is certain with its last byte, whatever follows.
struct ByteFallback {};
struct Metaspace {
  std::string replacement;  // becomes a space; dropped in the first token if `strip_first`
  bool strip_first = true;
};
// U+2581 becomes a space. One at the start of a token before any text is dropped (sentencepiece):
// never, in the first such token, or in each.
struct LeadingSpace {
  enum class Drop : std::uint8_t { kNever, kOnce, kEach };
  Drop drop = Drop::kOnce;
};
struct Strip {
  std::string content;    // one character
  std::size_t start = 0;  // at most so many are cut at the start of a token
  std::size_t stop = 0;   // and at its end
};
struct Replace {
  Pattern pattern;
  std::string content;
};
struct WordPiece {
  std::string prefix;
  bool cleanup = true;
};
struct Bpe {
  std::string suffix;
};
struct Ctc {
  std::string pad_token;
  std::string word_delimiter_token;
  bool cleanup = true;
};

using Step = std::variant<JoinWithSpaces, ByteLevel, Fuse, ByteFallback, Metaspace, LeadingSpace,
                          Strip, Replace, WordPiece, Bpe, Ctc>;

}  // namespace decode

using SpellingDecoder = std::vector<decode::Step>;

// Reads the "decoder" section of tokenizer.json; null gives JoinWithSpaces. Fails with kUnsupported
// that names an unknown type.
[[nodiscard]] Result<SpellingDecoder> spelling_decoder_from_json(base::JsonView section);

}  // namespace quire::text
