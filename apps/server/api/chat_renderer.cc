#include "api/chat_renderer.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/call.h"
#include "api/generation.h"
#include "api/json.h"
#include "api/openai.h"
#include "api/render.h"
#include "quire/answer.h"
#include "quire/chat.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/tokenizer.h"
#include "quire/types.h"

namespace quire::server {
namespace {

json::object call_json(const ToolCall& call) {
  json::object function;
  function["name"] = call.name;
  function["arguments"] = call.arguments_json;
  json::object object;
  object["id"] = call.id;
  object["type"] = "function";
  object["function"] = std::move(function);
  return object;
}

class ChatRenderer final : public OpenAIRenderer {
 public:
  ChatRenderer(Services& services, const OpenAIRequest& request, AnswerSource source)
      : OpenAIRenderer(services, request, "chatcmpl-", "chat.completion", "chat.completion.chunk"),
        source_(std::move(source)) {}

 protected:
  void append_first(std::string& out, std::size_t index) override {
    open_chunk(out, index);
    out += R"(,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null)";
    close_chunk(out, nullptr);
  }
  void append_delta(std::string& out, std::size_t index, const Delta& delta) override {
    Delta split = delta;
    split.answer = take(index, delta);
    append_split(out, index, split);
  }
  void append_rest(std::string& out, std::size_t index) override {
    const Delta end{.finished = true};
    Delta split;
    split.answer = take(index, end);
    append_split(out, index, split);
  }
  void append_choice(std::string& out, std::size_t /*index*/, const Delta& delta) override {
    const AnswerParts parts = delta.answer.value_or(AnswerParts());
    out += ",\"delta\":{";
    if (!parts.thinking.empty()) {
      out += "\"reasoning_content\":";
      append_json_string(out, parts.thinking);
      out += parts.content.empty() ? "" : ",";
    }
    if (!parts.content.empty() || parts.thinking.empty()) {
      out += "\"content\":";
      append_json_string(out, parts.content);
    }
    out += "},\"logprobs\":";
    out += request().top_logprobs ? json::serialize(chat_entries(delta.token_ids, delta.logprobs))
                                  : "null";
    if (request().return_token_ids) {
      out += ",\"token_ids\":" + json::serialize(ids_json(delta.token_ids));
    }
  }
  void append_last(std::string& out, std::size_t /*index*/,
                   const GenerationOutput& output) override {
    out += R"(,"delta":{},"logprobs":null)";
    if (request().return_token_ids) {
      prompt_ids_ = ids_json(output.prompt_token_ids);
    }
  }
  void append_top(std::string& out) override {
    if (request().return_token_ids) {
      out += ",\"prompt_token_ids\":" + json::serialize(prompt_ids_);
    }
  }
  void set_choice(json::object& choice, std::size_t index,
                  const GenerationOutput& output) override {
    const AnswerParts parts =
        take(index, {.text = output.text, .token_ids = output.token_ids, .finished = true});
    json::object message;
    message["role"] = "assistant";
    message["content"] = parts.content;
    message["refusal"] = nullptr;
    if (!parts.thinking.empty()) {
      message["reasoning_content"] = parts.thinking;
    }
    if (!parts.tool_calls.empty()) {
      message["content"] =
          parts.content.empty() ? json::value(nullptr) : json::value(parts.content);
      message["tool_calls"] = array_of(parts.tool_calls, call_json);
    }
    choice["message"] = std::move(message);
    choice["logprobs"] = request().top_logprobs
                             ? json::value(chat_entries(output.token_ids, output.logprobs))
                             : json::value(nullptr);
    if (request().return_token_ids) {
      choice["token_ids"] = ids_json(output.token_ids);
    }
  }
  void set_body(json::object& body, const std::vector<ChoiceState>& choices) override {
    body["service_tier"] = "default";
    if (request().return_token_ids) {
      body["prompt_token_ids"] = ids_json(choices.front().output.prompt_token_ids);
    }
  }
  [[nodiscard]] const char* finish_reason(std::size_t index,
                                          const GenerationOutput& output) const override {
    const bool calls = index < answers_.size() && answers_[index].num_calls > 0;
    return calls && output.finish_reason == FinishReason::kStop
               ? "tool_calls"
               : OpenAIRenderer::finish_reason(index, output);
  }
  [[nodiscard]] std::int64_t reasoning_tokens() const override { return reasoning_tokens_; }

 private:
  struct Answer {
    std::optional<AnswerParser> parser;  // none: all text is content
    std::size_t num_calls = 0;
  };

  // Returns the parts that became certain with a delta of a choice.
  AnswerParts take(std::size_t index, const Delta& delta) {
    while (answers_.size() <= index) {
      Answer& answer = answers_.emplace_back();
      const auto tokenizer = services().engine->tokenizer();
      auto parser = tokenizer.ok()
                        ? tokenizer->answer_parser(source_.prompt_ids, source_.tools_json)
                        : tokenizer.error();
      if (parser.ok()) {
        answer.parser = std::move(parser).value();
      }
    }
    Answer& answer = answers_[index];
    if (answer.parser) {
      auto parts = answer.parser->take(delta);
      if (parts.ok()) {
        answer.num_calls += parts->tool_calls.size();
        reasoning_tokens_ += parts->thinking_tokens;
        return std::move(parts).value();
      }
      answer.parser.reset();
    }
    return {.content = delta.text};
  }

  // Appends a chunk for text and ids, and two for each call.
  void append_split(std::string& out, std::size_t index, const Delta& split) {
    const AnswerParts parts = split.answer.value_or(AnswerParts());
    if (!parts.thinking.empty() || !parts.content.empty() ||
        (shows_ids() && !split.token_ids.empty())) {
      open_chunk(out, index);
      append_choice(out, index, split);
      out += ",\"finish_reason\":null";
      close_chunk(out, nullptr);
    }
    std::size_t number = answers_[index].num_calls - parts.tool_calls.size();
    for (const ToolCall& call : parts.tool_calls) {
      append_call(out, index, number++, call);
    }
  }

  void append_call(std::string& out, std::size_t index, std::size_t number, const ToolCall& call) {
    json::object named = call_json({.id = call.id, .name = call.name, .arguments_json = ""});
    json::object function;
    function["arguments"] = call.arguments_json;
    json::object more;
    more["function"] = std::move(function);
    for (json::object* const part : {&named, &more}) {
      (*part)["index"] = number;
      json::object delta;
      delta["tool_calls"] = json::array({*part});
      open_chunk(out, index);
      out += ",\"delta\":" + json::serialize(delta);
      out += R"(,"logprobs":null,"finish_reason":null)";
      close_chunk(out, nullptr);
    }
  }

  [[nodiscard]] json::object chat_entries(const std::vector<TokenId>& ids,
                                          const std::vector<TokenLogprobs>& logprobs) const {
    json::object entries;
    entries["content"] = chat_logprobs(pieces(), ids, logprobs, request().top_logprobs.value_or(0));
    entries["refusal"] = nullptr;
    return entries;
  }

  AnswerSource source_;
  std::vector<Answer> answers_;  // by choice
  std::int64_t reasoning_tokens_ = 0;
  json::array prompt_ids_;
};

}  // namespace

std::unique_ptr<Renderer> chat_renderer(Services& services, const OpenAIRequest& request,
                                        AnswerSource source) {
  return std::make_unique<ChatRenderer>(services, request, std::move(source));
}

}  // namespace quire::server
