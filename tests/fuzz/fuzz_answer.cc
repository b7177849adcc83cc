// Answers of models: any text is split within bounds, alike however it is cut. Calls have JSON
// arguments.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/json.h"
#include "quire/chat.h"
#include "quire/text/answer/calls.h"
#include "quire/text/answer/harmony_splitter.h"
#include "quire/text/answer/mark_splitter.h"
#include "quire/text/answer/marked_text.h"
#include "quire/text/answer/parts.h"
#include "quire/text/answer/splitter.h"
#include "quire/text/answer/style.h"
#include "quire/text/answer/tool_schemas.h"

namespace {

using namespace quire::text::answer;

// The marks are special tokens. Seeds spell them as '\x01' and the place of the token.
constexpr std::array<std::string_view, 9> kSpecials = {"<think>", "</think>",    "<call>",
                                                       "</call>", "<|channel|>", "<|message|>",
                                                       "<|end|>", "<|start|>",   "<|call|>"};
constexpr std::uint8_t kForms = 8, kHarmony = 8;

struct Input {
  std::uint8_t form = 0;
  bool starts_thinking = false;
  std::size_t step = 1;             // pieces of a push
  std::vector<std::string> pieces;  // characters of marked text, and special tokens
};

Input read(const std::uint8_t* data, std::size_t size) {
  Input input;
  if (size < 2) {
    return input;
  }
  input.form = data[0] % (kForms + 1);
  input.starts_thinking = data[0] >= 128;
  input.step = 1 + data[1] % 16;
  for (std::size_t i = 2; i < size; ++i) {
    if (data[i] == 1 && i + 1 < size) {
      input.pieces.push_back(special(kSpecials[data[++i] % kSpecials.size()]));
    } else if (data[i] < 128) {
      input.pieces.emplace_back(1, static_cast<char>(data[i]));
    } else {
      input.pieces.emplace_back("\xC3\xA9");  // a detokenizer gives whole characters alone
    }
  }
  return input;
}

quire::AnswerParts split(const Input& input, std::size_t step) {
  static const ToolSchemas schemas =
      ToolSchemas::read(R"([{"type": "function", "function": {"name": "f", "parameters":
          {"type": "object", "properties": {"a": {"type": "string"}}}}}])")
          .value();
  Parts parts(CallIds{});
  std::unique_ptr<Splitter> splitter;
  if (input.form == kHarmony) {
    splitter =
        std::make_unique<HarmonySplitter>(special("<|start|>") + "assistant", schemas, parts);
  } else {
    const Style style{.kind = Style::Kind::kMarks,
                      .think_open = special("<think>"),
                      .think_close = special("</think>"),
                      .calls = {{.form = static_cast<CallForm>(input.form),
                                 .open = special("<call>"),
                                 .close = special("</call>")}}};
    splitter = std::make_unique<MarkSplitter>(style, input.starts_thinking, schemas, parts);
  }
  quire::AnswerParts all;
  const auto collect = [&] {
    quire::AnswerParts more = parts.take();
    all.thinking += more.thinking;
    all.content += more.content;
    std::ranges::move(more.tool_calls, std::back_inserter(all.tool_calls));
  };
  for (std::size_t i = 0; i < input.pieces.size(); i += step) {
    std::string pushed;
    for (std::size_t j = i; j < std::min(i + step, input.pieces.size()); ++j) {
      pushed += input.pieces[j];
    }
    splitter->push(pushed);
    collect();
  }
  splitter->finish();
  collect();
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Input input = read(data, size);
  const quire::AnswerParts whole = split(input, input.pieces.size() + 1);
  const quire::AnswerParts cut = split(input, input.step);
  QUIRE_CHECK(whole.thinking == cut.thinking && whole.content == cut.content &&
                  whole.tool_calls.size() == cut.tool_calls.size(),
              "an answer that is cut is split otherwise");
  std::size_t bytes = 0;
  for (const std::string& piece : input.pieces) {
    bytes += piece.size();
  }
  QUIRE_CHECK(whole.thinking.size() + whole.content.size() <= 2 * bytes + 16,
              "more text than the answer has");
  for (std::size_t i = 0; i < whole.tool_calls.size(); ++i) {
    const quire::ToolCall& call = whole.tool_calls[i];
    QUIRE_CHECK(call.arguments_json == cut.tool_calls[i].arguments_json, "a call depends on cuts");
    QUIRE_CHECK(quire::base::parse_json(call.arguments_json, "arguments").ok(),
                "arguments that are no JSON");
  }
  return 0;
}
