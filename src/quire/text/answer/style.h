// Style: the marks by which a chat template's model tells thinking and tool calls from text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quire/text/answer/calls.h"
#include "quire/text/tokenizer.h"

namespace quire::text::answer {

// Marks of one kind of tool call, as marked text.
struct CallMarks {
  CallForm form = CallForm::kJson;
  std::string open;
  // Empty: the call goes on until the answer ends.
  std::string close;
  // True: `open` is also the beginning of the call's text, and counts at the beginning of the
  // answer alone.
  bool bare = false;
};

struct Style {
  // * kPlain: all text is content.
  // * kMarks: the members below.
  // * kHarmony: messages on channels, of gpt-oss.
  enum class Kind : std::uint8_t { kPlain, kMarks, kHarmony };
  Kind kind = Kind::kPlain;
  // Marks of thinking, as marked text. Empty: there is none.
  std::string think_open, think_close;
  std::vector<CallMarks> calls;
  // True: ids of calls have 9 letters and digits, which templates of Mistral demand.
  bool short_ids = false;
};

// Returns the style that the text of a chat template shows. The tokenizer tells which marks are
// special tokens.
[[nodiscard]] Style find_style(std::string_view chat_template, const Tokenizer& tokenizer);

}  // namespace quire::text::answer
