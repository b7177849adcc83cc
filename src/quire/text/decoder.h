// Decoders: token spellings back to text, token by token. Semantics are those of Hugging Face
// `tokenizers` 0.23 (decoders/*.rs); a Sequence is the list of its members. There is one
// implementation, a stream: decoding a list is streaming it, so both give the same text.
//
// Thread rule: a Decoder is immutable; each thread makes its own DecodeStream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/work_meter.h"
#include "quire/result.h"
#include "quire/text/pattern.h"

namespace quire::text {

namespace decode {

struct JoinWithSpaces {};  // what happens without a decoder
struct ByteLevel {};       // the byte alphabet; ill-formed UTF-8 becomes U+FFFD
struct Fuse {};            // all tokens become one
// Runs of <0xAB> tokens become their bytes; those outside characters become U+FFFD each. So a
// character is certain with its last byte, whatever follows.
struct ByteFallback {};
struct Metaspace {
  std::string replacement;  // becomes a space; dropped in the first token if `strip_first`
  bool strip_first = true;
};
// U+2581 becomes a space. As long as no text has come, one at the start of a token is dropped
// (sentencepiece): never, in the first such token, or in each.
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

using Decoder = std::vector<decode::Step>;

// The "decoder" section of tokenizer.json; null gives JoinWithSpaces. kUnsupported naming an
// unknown type.
[[nodiscard]] Result<Decoder> decoder_from_json(base::JsonView section);

class DecodeStage;

class DecodeStream {
 public:
  // Both are borrowed and must outlive the object. The text is cut short when `meter` has failed.
  DecodeStream(const Decoder& decoder, base::WorkMeter& meter);
  ~DecodeStream();
  DecodeStream(DecodeStream&&) noexcept;
  DecodeStream& operator=(DecodeStream&&) noexcept;

  // Appends the text that became certain with `token`: whole characters only. Steps hold back what
  // a later token could still change: a character that is not whole, the end of a word before a Bpe
  // step, trailing characters that a Strip step may cut, the start of what a Replace step behind a
  // Fuse looks for, and everything before another whole-text step that follows a Fuse.
  void push(std::string_view token, std::string& out);
  // Appends what was held back and starts afresh.
  void flush(std::string& out);

 private:
  std::vector<std::unique_ptr<DecodeStage>> stages_;  // last to first: each knows its next
  std::unique_ptr<std::string> text_;                 // where the last stage writes
};

}  // namespace quire::text
