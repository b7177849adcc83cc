// HarmonySplitter: messages on channels, as gpt-oss writes them:
// <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "quire/text/answer/parts.h"
#include "quire/text/answer/splitter.h"
#include "quire/text/answer/tool_schemas.h"

namespace quire::text::answer {

// Rules:
// 1. The channel `analysis` is thinking; other channels are content.
// 2. A message to a recipient (`to=functions.name`) is a call, if the request has tools and if its
//    text is a JSON object.
// 3. A header that no message follows is content.
class HarmonySplitter final : public Splitter {
 public:
  // Borrows `schemas` and `parts`. Begins inside of what `prompt_end` has opened: a header, or a
  // message. The answer to a prompt without either is content.
  HarmonySplitter(std::string_view prompt_end, const ToolSchemas& schemas, Parts& parts);

  void push(std::string_view marked) override;
  void finish() override;
  [[nodiscard]] bool is_thinking() const override { return state_ == State::kThinking; }

 private:
  enum class State : std::uint8_t { kHeader, kThinking, kContent, kCall };

  void take_text(std::string_view text);
  void take_special(std::string_view spelling);
  void begin_header(std::string_view role);
  void begin_message();
  void end_message();
  // Makes the header so far content. Does not count the prompt's share.
  void lose_header();

  const ToolSchemas& schemas_;
  Parts& parts_;
  State state_ = State::kContent;
  std::string header_;
  std::size_t of_prompt_ = 0;  // bytes of the header that the prompt has
  std::optional<std::size_t> channel_at_;
  std::string recipient_, arguments_;
};

}  // namespace quire::text::answer
