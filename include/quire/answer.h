// AnswerParser: splits the answer of a chat into thinking, text and tool calls.
#pragma once

#include <memory>
#include <string_view>

#include "quire/chat.h"  // IWYU pragma: export
#include "quire/export.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/tokenizer.h"

namespace quire {

// Splits one answer as it comes. Tokenizer::answer_parser() makes it for a prompt.
//
// The chat template says how its model marks thinking and tool calls. Text that does not follow
// that style stays text. A style without marks makes all text content.
//
// Ownership: move only. Shares the tokenizer, so it may outlive its LLM.
// Threads: one thread at a time. Nothing waits. The memory is bounded by the answer.
class QUIRE_API AnswerParser {
 public:
  AnswerParser(AnswerParser&&) noexcept;
  AnswerParser& operator=(AnswerParser&&) noexcept;
  ~AnswerParser();

  // Takes the next delta of the answer and returns what became certain with it. The last delta
  // brings the rest. A tool call comes once, when it is whole.
  // However the answer is cut into deltas, the joined parts are the same. O(text), amortised.
  // Errors: kInvalidArgument where the tokenizer's file makes endless text of the tokens.
  // kOutOfBlocks when the machine refuses memory.
  // Precondition: no delta before this one was the last.
  [[nodiscard]] Result<AnswerParts> take(const Delta& delta);

  // For the library itself.
  struct Impl;
  explicit AnswerParser(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

// Sets `answer` of an output and of all its choices. The output's prompt was a chat with
// `tools_json`, as Tokenizer::answer_parser takes it.
// Errors: those of Tokenizer::answer_parser and AnswerParser::take. Any thread may call; nothing
// waits.
[[nodiscard]] QUIRE_API Status split_answer(const Tokenizer& tokenizer, std::string_view tools_json,
                                            GenerationOutput& output);

}  // namespace quire
