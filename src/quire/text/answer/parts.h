// Parts: collects thinking, content and tool calls of one answer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "quire/chat.h"

namespace quire::text::answer {

// Makes ids of tool calls. Equal seeds give equal ids.
struct CallIds {
  std::uint64_t seed = 0;
  std::string_view prefix = "call_";
  int digits = 24;
  std::uint64_t made = 0;

  [[nodiscard]] std::string next();
};

// Collects what became certain. Blocks of one kind are apart by an empty line.
class Parts {
 public:
  explicit Parts(CallIds ids) : ids_(ids) {}

  // Appends text to the thinking.
  void think(std::string_view text);
  // Appends text to the content.
  void say(std::string_view text);
  // Appends a call, with an id where it has none.
  void call(ToolCall call);
  // Ends the block: later text of either kind begins a new one.
  void end_block() { think_.ended = say_.ended = true; }
  void count_thinking_tokens(std::int64_t tokens) { taken_.thinking_tokens += tokens; }
  // Returns what was collected since the last call.
  [[nodiscard]] AnswerParts take() { return std::exchange(taken_, AnswerParts()); }

 private:
  struct Kind {
    bool begun = false;  // text has come
    bool ended = false;  // the next text begins a new block
  };
  static void append(std::string_view text, Kind& kind, std::string& out);

  AnswerParts taken_;
  Kind think_, say_;
  CallIds ids_;
};

}  // namespace quire::text::answer
