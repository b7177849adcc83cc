#include "quire/text/answer/style.h"

#include <string>
#include <string_view>

#include "quire/text/answer/calls.h"
#include "quire/text/answer/marked_text.h"
#include "quire/text/tokenizer.h"

namespace quire::text::answer {
namespace {

// Finds words in a template, and writes marks as the tokenizer gives them.
class Finder {
 public:
  Finder(std::string_view chat_template, const Tokenizer& tokenizer)
      : template_(chat_template), tokenizer_(tokenizer) {}

  [[nodiscard]] bool has(std::string_view word) const {
    return template_.find(word) != std::string_view::npos;
  }
  // Tells whether the tokenizer has a special token of this spelling. Templates of LFM2 do not
  // spell the marks of its calls.
  [[nodiscard]] bool has_special(std::string_view spelling) const {
    const auto id = tokenizer_.token_to_id(spelling);
    return id && tokenizer_.is_special(*id);
  }
  [[nodiscard]] std::string mark(std::string_view spelling) const {
    return has_special(spelling) ? special(spelling) : std::string(spelling);
  }
  [[nodiscard]] CallMarks marks(CallForm form, std::string_view open,
                                std::string_view close) const {
    return {.form = form, .open = mark(open), .close = close.empty() ? "" : mark(close)};
  }

 private:
  std::string_view template_;
  const Tokenizer& tokenizer_;
};

void find_thinking(const Finder& find, Style& style) {
  if (find.has("<|channel>")) {  // Gemma 4
    style.think_open = find.mark("<|channel>") + "thought";
    style.think_close = find.mark("<channel|>");
  } else if (find.has("[THINK]")) {  // Ministral 3
    style.think_open = find.mark("[THINK]");
    style.think_close = find.mark("[/THINK]");
  } else if (find.has("</think>")) {
    style.think_open = find.mark("<think>");
    style.think_close = find.mark("</think>");
  }
}

// Tells whether tools are given as Llama 3's templates give them.
bool is_llama(const Finder& find) {
  return find.has("<|start_header_id|>") && find.has("\"parameters\": ") &&
         find.has("{\"name\": ") && !find.has("<function=");
}

void find_calls(const Finder& find, Style& style) {
  if (find.has("[TOOL_CALLS]")) {
    style.calls.push_back(find.marks(CallForm::kMistral, "[TOOL_CALLS]", ""));
    style.short_ids = true;
  } else if (find.has("<|tool_call>")) {
    style.calls.push_back(find.marks(CallForm::kGemma, "<|tool_call>", "<tool_call|>"));
  } else if (find.has("<|tool_call_start|>") || find.has_special("<|tool_call_start|>")) {
    style.calls.push_back(
        find.marks(CallForm::kPython, "<|tool_call_start|>", "<|tool_call_end|>"));
  } else if (find.has("<tool_call>")) {
    const CallForm form = find.has("<function=")  ? CallForm::kXml
                          : find.has("<arg_key>") ? CallForm::kGlm
                                                  : CallForm::kJson;
    style.calls.push_back(find.marks(form, "<tool_call>", "</tool_call>"));
  } else if (find.has("<TOOLCALL>")) {  // Nemotron Nano 2
    style.calls.push_back(find.marks(CallForm::kJson, "<TOOLCALL>", "</TOOLCALL>"));
  } else if (find.has("<|tool_call|>")) {  // Phi-4-mini closes it, Granite 3 does not
    style.calls.push_back(find.marks(CallForm::kJson, "<|tool_call|>",
                                     find.has("<|/tool_call|>") ? "<|/tool_call|>" : ""));
  } else if (find.has("<｜tool▁calls▁begin｜>")) {
    style.calls.push_back(
        find.marks(CallForm::kDeepSeek, "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"));
  } else if (is_llama(find)) {
    style.calls.push_back(find.marks(CallForm::kLlama, "<|python_tag|>", ""));
    style.calls.push_back({.form = CallForm::kJson, .open = "{", .bare = true});
  }
}

}  // namespace

Style find_style(std::string_view chat_template, const Tokenizer& tokenizer) {
  const Finder find(chat_template, tokenizer);
  Style style;
  if (find.has("<|channel|>") && find.has("<|message|>")) {
    style.kind = Style::Kind::kHarmony;
    return style;
  }
  find_thinking(find, style);
  find_calls(find, style);
  if (!style.think_open.empty() || !style.calls.empty()) {
    style.kind = Style::Kind::kMarks;
  }
  return style;
}

}  // namespace quire::text::answer
