// DecodeStream: token spellings to text, token by token. There is one implementation: decoding a
// list is streaming it, so both give the same text.
//
// Thread rule: each thread makes its own DecodeStream.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/work_meter.h"
#include "quire/text/spelling_decoder.h"

namespace quire::text {

class DecodeStage;

class DecodeStream {
 public:
  // Borrows both, which must outlive the object. The text is cut short when `meter` has failed.
  DecodeStream(const SpellingDecoder& decoder, base::WorkMeter& meter);
  ~DecodeStream();
  DecodeStream(DecodeStream&&) noexcept;
  DecodeStream& operator=(DecodeStream&&) noexcept;

  // Appends the text that became certain with `token`: whole characters only. Steps hold back what
  // a later token could still change. That is a part of a character, the end of a word before a Bpe
  // step, or trailing characters that a Strip step may cut. It is also the start of what a Replace
  // step behind a Fuse looks for. Everything is held back before another whole-text step that
  // follows a Fuse.
  void push(std::string_view token, std::string& out);
  // Appends what was held back and starts afresh.
  void flush(std::string& out);

 private:
  std::vector<std::unique_ptr<DecodeStage>> stages_;  // last to first: each knows its next
  std::unique_ptr<std::string> text_;                 // text that the last stage writes
};

}  // namespace quire::text
