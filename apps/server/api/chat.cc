#include "api/chat.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "api/call.h"
#include "api/chat_renderer.h"
#include "api/completions.h"
#include "api/endpoints.h"
#include "api/errors.h"
#include "api/extension.h"
#include "api/fields.h"
#include "api/generation.h"
#include "api/json.h"
#include "api/messages.h"
#include "api/openai.h"
#include "api/router.h"
#include "api/sampling.h"
#include "api/tools.h"
#include "quire/chunk_types.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::server {
namespace {

constexpr std::size_t kMaxTemplateVariables = 16;
constexpr double kDaySeconds = 86400;
// Time for which breakpoints without one of their own are held.
constexpr double kBreakpointSeconds = 1800;
constexpr const char* kNoConstraint = "constrained output is not there yet";

constexpr FieldRule kResponseFormatRules[] = {
    {.name = "type",
     .kinds = kString,
     .help = "text",
     .required = true,
     .words = "text|json_object|json_schema"},
    {.name = "json_schema", .kinds = kObject, .help = kNoConstraint},
};
const FieldTable& response_format_table() {
  static const FieldTable table{"ResponseFormat", "Form of the answer.", {kResponseFormatRules}};
  return table;
}

constexpr FieldRule kCacheOptionRules[] = {
    {.name = "mode", .kinds = kString, .help = "implicit: no effect", .words = "implicit|explicit"},
    {.name = "ttl", .kinds = kString, .help = "time that a prompt is held: 30m, 24h"},
};
const FieldTable& cache_options_table() {
  static const FieldTable table{"PromptCacheOptions", "How prompts are kept.", {kCacheOptionRules}};
  return table;
}

std::span<const FieldRule> prompt_rules() {
  static const FieldRule rules[] = {
      {.name = "messages",
       .kinds = kArray,
       .help = "the chat so far",
       .required = true,
       .min_size = 1,
       .max_size = 65536,
       .members = &message_table(),
       .elements = kObject},
      {.name = "max_completion_tokens",
       .kinds = kInteger,
       .help = "most tokens to generate; wins over max_tokens",
       .min = 1,
       .max = 2147483647},
      {.name = "max_tokens",
       .kinds = kInteger,
       .help = "most tokens to generate; default what the context leaves, up to "
               "--default-max-tokens",
       .min = 1,
       .max = 2147483647},
      {.name = "logprobs", .kinds = kBool, .help = "log probabilities of the tokens"},
      {.name = "top_logprobs",
       .kinds = kInteger,
       .help = "likeliest tokens shown for each token; only with logprobs",
       .min = 0,
       .max = 20},
      {.name = "response_format",
       .kinds = kObject,
       .help = "type text",
       .members = &response_format_table()},
      {.name = "prompt_cache_key",
       .kinds = kString,
       .help = "a session, where quire.session is not given",
       .max_size = 256},
      {.name = "prompt_cache_retention",
       .kinds = kString,
       .help = "24h holds the prompt for so long; in_memory has no effect",
       .words = "in_memory|24h"},
      {.name = "prompt_cache_options",
       .kinds = kObject,
       .help = "how the prompt is held",
       .members = &cache_options_table()},
      {.name = "chat_template_kwargs",
       .kinds = kObject,
       .help = "up to 16 plain variables of the template"},
      {.name = "documents", .kinds = kArray, .help = "given to the template", .max_size = 1024},
      {.name = "add_generation_prompt",
       .kinds = kBool,
       .help = "false: the template does not open an answer"},
      {.name = "continue_final_message",
       .kinds = kBool,
       .help = "the answer goes on with the last message"},
      {.name = "reasoning_effort", .kinds = kString, .help = "given to a template that reads it"},
  };
  return rules;
}

constexpr FieldRule kIgnoredRules[] = {
    {.name = "safety_identifier", .kinds = kString, .effect = Effect::kIgnored},
    {.name = "metadata", .kinds = kObject, .effect = Effect::kIgnored},
    {.name = "store", .kinds = kBool, .effect = Effect::kIgnored},
    {.name = "service_tier", .kinds = kString, .effect = Effect::kIgnored},
    {.name = "verbosity", .kinds = kString, .effect = Effect::kIgnored},
    {.name = "id_slot", .kinds = kInteger, .effect = Effect::kIgnored},
    {.name = "priority", .kinds = kInteger, .effect = Effect::kIgnored},
};

constexpr FieldRule kRefusedRules[] = {
    {.name = "structured_outputs",
     .kinds = kObject,
     .help = kNoConstraint,
     .effect = Effect::kRefused},
    {.name = "grammar", .kinds = kString, .help = kNoConstraint, .effect = Effect::kRefused},
    {.name = "json_schema", .kinds = kObject, .help = kNoConstraint, .effect = Effect::kRefused},
    {.name = "cache_prompt", .kinds = kBool, .effect = Effect::kRefused, .only = "true"},
    {.name = "audio", .kinds = kObject, .effect = Effect::kRefused},
    {.name = "modalities", .kinds = kArray, .effect = Effect::kRefused, .only = "[\"text\"]"},
    {.name = "prediction", .kinds = kObject, .effect = Effect::kRefused},
    {.name = "web_search_options", .kinds = kObject, .effect = Effect::kRefused},
    {.name = "functions", .kinds = kArray, .effect = Effect::kRefused},
    {.name = "function_call", .kinds = kString | kObject, .effect = Effect::kRefused},
    {.name = "moderation", .kinds = kObject, .effect = Effect::kRefused},
    {.name = "chat_template",
     .kinds = kString,
     .help = "use --chat-template",
     .effect = Effect::kRefused},
    {.name = "echo", .kinds = kBool, .effect = Effect::kRefused, .only = "false"},
    {.name = "best_of",
     .kinds = kInteger,
     .help = "use n",
     .effect = Effect::kRefused,
     .only = "1"},
};

Check read_template_variables(const Members& members, json::object& variables) {
  if (const json::array* const documents = members.array("documents")) {
    variables["documents"] = *documents;
  }
  const json::object* const given = members.object("chat_template_kwargs");
  if (given == nullptr) {
    return passed();
  }
  if (given->size() > kMaxTemplateVariables) {
    return invalid("chat_template_kwargs",
                   "has " + std::to_string(given->size()) + " variables, at most 16 are allowed");
  }
  for (const auto& member : *given) {
    const std::string_view name(member.key().data(), member.key().size());
    const std::string path = member_path("chat_template_kwargs", name);
    if (name == "messages" || name == "tools" || name == "documents") {
      return invalid(path, "is a field of the body");
    }
    if (member.value().is_structured()) {
      return invalid(path, "must be a text, a number, true, false or null");
    }
    variables[member.key()] = member.value();
  }
  return passed();
}

Check read_logprobs(const Members& members, OpenAIRequest& request) {
  const auto top = members.integer("top_logprobs");
  if (!members.flag("logprobs")) {
    if (top && *top > 0) {
      return invalid("top_logprobs", "needs logprobs: true");
    }
    return passed();
  }
  request.top_logprobs = top.value_or(0);
  request.sampling.logprobs = static_cast<std::int32_t>(*request.top_logprobs);
  return passed();
}

// Reads a time such as "30m" or "24h".
std::optional<double> read_time(std::string_view text) {
  std::int64_t count = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), count);
  const std::string_view unit = text.substr(static_cast<std::size_t>(read.ptr - text.data()));
  const double seconds = unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : 0;
  const double time = static_cast<double>(count) * seconds;
  return read.ec == std::errc() && time > 0 && time <= 7 * kDaySeconds ? std::optional(time)
                                                                       : std::nullopt;
}

// Reads how long the prompt is to be held. `quire.hold_seconds` wins.
Check read_cache_options(const Members& members, FieldNotes& notes, Extension& extension) {
  std::optional<double> seconds;
  if (members.text("prompt_cache_retention") == "in_memory") {
    notes.ignore("prompt_cache_retention");
  } else if (members.has("prompt_cache_retention")) {
    seconds = kDaySeconds;
  }
  if (const json::object* const given = members.object("prompt_cache_options")) {
    const Members options(*given);
    if (options.text("mode") == "implicit") {
      notes.ignore("prompt_cache_options.mode");
    }
    if (const auto ttl = options.text("ttl")) {
      seconds = read_time(*ttl);
      if (!seconds) {
        return invalid("prompt_cache_options.ttl",
                       "must be a time up to 7 days such as 30m or 24h");
      }
    }
  }
  if (!extension.hold_seconds) {
    extension.hold_seconds = seconds;
  }
  return passed();
}

Check read_format(const Members& members) {
  const json::object* const format = members.object("response_format");
  if (format != nullptr && Members(*format).text("type") != "text") {
    return unsupported("response_format.type", kNoConstraint);
  }
  return passed();
}

// Encodes a chat without chunks on a worker, and calls `take` with its plan.
void encode_and_plan(Services& services, const CallPtr& call,
                     const std::shared_ptr<ChatRequest>& request,
                     std::function<void(GenerationPlan)> take) {
  on_worker<EncodedChat>(
      services, call,
      [request, engine = services.engine, interrupted = Call::interrupt(call)] {
        return encode_chat(*engine, request->prompt, interrupted);
      },
      [&services, call, request, take = std::move(take)](EncodedChat encoded) {
        if (!encoded.reads_names) {
          note_names(request->prompt, call->notes);
        }
        request->answers.prompt_ids = encoded.ids;
        std::vector<std::vector<TokenId>> prompts;
        prompts.push_back(std::move(encoded.ids));
        GenerationPlan plan = plan_of(services, *call, request->openai, std::move(prompts),
                                      "messages", services.config->default_max_tokens);
        plan.prompts.front().hold_tokens = encoded.breakpoint_tokens;
        if (encoded.breakpoint_tokens && !plan.extension.hold_seconds) {
          plan.extension.hold_seconds = kBreakpointSeconds;
        }
        take(std::move(plan));
      });
}

// Returns a request without chunks.
Check check_exact(const Extension& extension) {
  if (extension.says_how && extension.how.mode != ReuseMode::kExact) {
    return invalid("quire.mode",
                   "another mode than exact needs chunks in the messages or quire.chunks");
  }
  return passed();
}

void chat(Services& services, CallPtr call) {
  auto read = read_chat(services, *call);
  if (!read.ok()) {
    send_error(services, *call, std::move(read).error());
    return;
  }
  if (read->has_chunks() && !read->answers.tools_json.empty()) {
    send_error(services, *call, unsupported("tools", "a chat of chunks has no tools"));
    return;
  }
  if (read->has_chunks()) {
    chat_with_chunks(services, std::move(call), std::move(read).value());
    return;
  }
  if (Check check = check_exact(read->openai.extension); !check.ok()) {
    send_error(services, *call, std::move(check).error());
    return;
  }
  const auto request = std::make_shared<ChatRequest>(std::move(read).value());
  encode_and_plan(services, call, request, [&services, call, request](GenerationPlan plan) {
    GenerationRun::start(services, call, std::move(plan),
                         chat_renderer(services, request->openai, std::move(request->answers)));
  });
}

}  // namespace

bool ChatRequest::has_chunks() const {
  return openai.extension.names_chunks || std::ranges::any_of(prompt.messages, &Message::has_chunk);
}

const FieldTable& chat_table() {
  static const FieldTable table{"ChatCompletionRequest",
                                "A chat to answer.",
                                {prompt_rules(), tool_rules(), openai_rules(), sampling_rules(),
                                 extension_rules(), kIgnoredRules, kRefusedRules}};
  return table;
}

Checked<ChatRequest> read_chat(const Services& services, Call& call) {
  ChatRequest request;
  QUIRE_TRY(request.openai, read_openai(services, call));
  const Members members = call.members();
  QUIRE_TRY(request.prompt.messages,
            read_messages(*members.array("messages"), "messages", call.notes));
  QUIRE_TRY_STATUS(read_template_variables(members, request.prompt.variables));
  QUIRE_TRY(request.answers.tools_json, read_tools(members, request.prompt.variables));
  QUIRE_TRY_STATUS(read_logprobs(members, request.openai));
  QUIRE_TRY_STATUS(read_format(members));
  if (const auto tokens = members.integer("max_completion_tokens")) {
    request.openai.max_tokens = tokens;
  }
  request.prompt.continue_final_message = members.flag("continue_final_message");
  const auto opens = members.boolean("add_generation_prompt");
  if (request.prompt.continue_final_message && opens.value_or(false)) {
    return invalid("continue_final_message", "cannot be true beside add_generation_prompt");
  }
  request.prompt.add_generation_prompt = opens.value_or(true);
  QUIRE_TRY_STATUS(read_cache_options(members, call.notes, request.openai.extension));
  if (const auto effort = members.text("reasoning_effort")) {
    if (services.template_reads("reasoning_effort")) {
      request.prompt.variables["reasoning_effort"] = *effort;
    } else {
      call.notes.ignore("reasoning_effort");
    }
  }
  return request;
}

void plan_chat(Services& services, CallPtr call, TakePlan take) {
  auto read = read_chat(services, *call);
  if (read.ok() && read->has_chunks()) {
    ApiError error =
        invalid("messages", "a chat with chunks has no rendering; see /v1/compositions");
    error.code = "invalid_composition";
    read = std::move(error);
  }
  if (!read.ok()) {
    send_error(services, *call, std::move(read).error());
    return;
  }
  encode_and_plan(services, call, std::make_shared<ChatRequest>(std::move(read).value()),
                  [&services, call, take = std::move(take)](const GenerationPlan& plan) {
                    take(services, call, plan);
                  });
}

std::span<const Endpoint> chat_endpoints() {
  static const Endpoint endpoints[] = {
      {.method = "POST",
       .pattern = "/v1/chat/completions",
       .summary = "Answers a chat.",
       .uses = Uses::kEngine,
       .body = &chat_table(),
       .handle = chat},
      {.method = "POST",
       .pattern = "/chat/completions",
       .summary = "Answers a chat; /v1/chat/completions under llama-server's name.",
       .uses = Uses::kEngine,
       .body = &chat_table(),
       .handle = chat},
  };
  return endpoints;
}

}  // namespace quire::server
