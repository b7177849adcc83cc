// AnswerStream: splits an answer of token ids and text, as an engine gives both.
//
// Thread rule: one thread per object; the tokenizer is borrowed and must outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "quire/chat.h"
#include "quire/result.h"
#include "quire/text/answer/parts.h"
#include "quire/text/answer/splitter.h"
#include "quire/text/answer/style.h"
#include "quire/text/answer/tool_schemas.h"
#include "quire/text/detokenizer.h"
#include "quire/text/tokenizer.h"
#include "quire/types.h"

namespace quire::text::answer {

// The text of an answer lacks special tokens, which may be marks, and ends before a stop string.
// The ids have all tokens. So the stream decodes the ids, which tells where special tokens stand.
// It takes of each token only as much text as the answer has.
class AnswerStream {
 public:
  // Takes a style that find_style() gave for the same tokenizer.
  AnswerStream(const Tokenizer& tokenizer, const Style& style, std::span<const TokenId> prompt_ids,
               ToolSchemas schemas);
  AnswerStream(const AnswerStream&) = delete;
  AnswerStream& operator=(const AnswerStream&) = delete;

  // Takes a piece of the answer, the last one if `finished`. Returns what became certain.
  // Errors: those of Detokenizer::status().
  [[nodiscard]] Result<AnswerParts> take(std::string_view text, std::span<const TokenId> ids,
                                         bool finished);

 private:
  // Text of one token, and the special token behind it, if it is one.
  struct Piece {
    std::size_t text_bytes = 0;
    std::string special;
    std::int64_t tokens = 0;
  };
  void queue(TokenId id);
  // Gives the splitter the pieces whose text has come.
  void drain();

  const Tokenizer& tokenizer_;
  ToolSchemas schemas_;
  Parts parts_;
  std::unique_ptr<Splitter> splitter_;  // null: all text is content
  Detokenizer detokenizer_;
  std::deque<Piece> pieces_;
  std::string text_;       // came and is not split yet
  bool thinking_ = false;  // the first piece has begun within thinking
};

}  // namespace quire::text::answer
