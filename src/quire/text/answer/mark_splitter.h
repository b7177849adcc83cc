// MarkSplitter: thinking and calls stand between an opening and a closing mark.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "quire/text/answer/parts.h"
#include "quire/text/answer/splitter.h"
#include "quire/text/answer/style.h"
#include "quire/text/answer/tool_schemas.h"

namespace quire::text::answer {

// Rules:
// 1. Thinking opens at the beginning of a block: only blanks stand before it since the answer began
//    or since the last part. So an answer may speak of the marks.
// 2. Blanks around parts are dropped, others stay.
// 3. A call that does not parse stays text, and the text behind it is read again.
class MarkSplitter final : public Splitter {
 public:
  // Copies the style. Borrows `schemas` and `parts`.
  MarkSplitter(Style style, bool starts_thinking, const ToolSchemas& schemas, Parts& parts);

  void push(std::string_view marked) override;
  void finish() override;
  [[nodiscard]] bool is_thinking() const override { return state_ == State::kThinking; }

 private:
  enum class State : std::uint8_t { kText, kThinking, kCall };
  enum class Match : std::uint8_t { kNo, kPartly, kWhole };

  void run();
  // Each step consumes some of the text. Returns false where more must come first.
  bool step();
  bool step_text();
  bool step_thinking();
  bool step_call();
  bool step_closed_call();

  [[nodiscard]] std::string_view rest() const { return std::string_view(buffer_).substr(at_); }
  // Compares the rest with a mark.
  [[nodiscard]] Match match(std::string_view mark) const;
  // Moves the blanks at the beginning of the rest to `held_`.
  void hold_blanks();
  // Drops a special token that is no mark. Returns false where the rest begins otherwise.
  bool skip_special();
  // Returns the length of the text up to the next byte that may begin a mark, or blank.
  [[nodiscard]] std::size_t plain_run() const;
  void say(std::string_view text);
  void say_held();
  void think(std::string_view text);
  void begin_thinking(std::size_t mark_bytes);
  void begin_call(const CallMarks& marks);
  // Takes `bytes` of the rest as a call, if `body` parses.
  bool accept(std::string_view body, std::size_t bytes);
  // Leaves the call: its mark and `bytes` of the rest are text.
  void give_up(std::size_t bytes);
  void begin_text();

  Style style_;
  const ToolSchemas& schemas_;
  Parts& parts_;
  std::string first_bytes_;  // bytes at which a run of plain text ends
  State state_ = State::kText;
  bool ended_ = false;  // no text comes any more
  std::string buffer_;  // text from `at_` on is not consumed
  std::size_t at_ = 0;
  std::string held_;         // blanks that a part behind them would drop
  bool fresh_ = true;        // nothing but blanks since the answer began or since the last part
  bool after_part_ = false;  // a part has come, so blanks before a text are dropped
  // The call that is open, how far its end was looked for, and closing marks that were refused.
  const CallMarks* call_ = nullptr;
  std::size_t scanned_ = 0, first_close_ = 0;
  int refused_closes_ = 0;
};

}  // namespace quire::text::answer
