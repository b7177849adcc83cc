#include "api/openai.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/call.h"
#include "api/errors.h"
#include "api/extension.h"
#include "api/fields.h"
#include "api/generation.h"
#include "api/json.h"
#include "api/render.h"
#include "api/sampling.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::server {
namespace {

constexpr FieldRule kStreamOptionRules[] = {
    {.name = "include_usage", .kinds = kBool, .help = "one more chunk with usage"},
    {.name = "continuous_usage_stats", .kinds = kBool, .help = "usage in every chunk"},
    {.name = "include_obfuscation", .kinds = kBool, .effect = Effect::kIgnored},
};
const FieldTable& stream_options_table() {
  static const FieldTable table{"StreamOptions", "Options of a stream.", {kStreamOptionRules}};
  return table;
}

void append_report(std::string& out, const RunReport& report) {
  out += ",\"quire\":" + json::serialize(quire_json(report));
  out += ",\"timings\":" + json::serialize(timings_json(report));
}

}  // namespace

std::span<const FieldRule> openai_rules() {
  static const FieldRule rules[] = {
      {.name = "model", .kinds = kString, .help = "a name of the model; default the served one"},
      {.name = "n",
       .kinds = kInteger,
       .help = "choices for each prompt, up to --max-n",
       .min = 1,
       .max = 128},
      {.name = "stream", .kinds = kBool, .help = "server-sent events"},
      {.name = "stream_options",
       .kinds = kObject,
       .help = "only with stream",
       .members = &stream_options_table()},
      {.name = "return_token_ids", .kinds = kBool, .help = "adds ids of prompts and choices"},
      {.name = "timings_per_token", .kinds = kBool, .help = "adds timings to every chunk"},
      {.name = "user", .kinds = kString, .effect = Effect::kIgnored},
  };
  return rules;
}

Checked<OpenAIRequest> read_openai(const Services& services, const Call& call) {
  QUIRE_TRY_STATUS(check_model(services, call));
  const Members members = call.members();
  OpenAIRequest request;
  QUIRE_TRY(request.sampling, read_sampling(call.body, ""));
  QUIRE_TRY(request.extension, read_extension(call));
  const std::int64_t n = members.integer("n").value_or(1);
  if (n > services.config->max_n) {
    return invalid("n", std::to_string(n) + " choices, at most " +
                            std::to_string(services.config->max_n) + " are allowed");
  }
  request.n = static_cast<std::int32_t>(n);
  request.stream = members.flag("stream");
  if (const json::object* const given = members.object("stream_options")) {
    if (!request.stream) {
      return invalid("stream_options", "is allowed with stream: true alone");
    }
    const Members options(*given);
    request.continuous_usage = options.flag("continuous_usage_stats");
    request.include_usage = options.flag("include_usage");
  }
  request.return_token_ids = members.flag("return_token_ids");
  request.timings_per_token = members.flag("timings_per_token");
  request.max_tokens = members.integer("max_tokens");
  return request;
}

OpenAIRenderer::OpenAIRenderer(Services& services, const OpenAIRequest& request,
                               std::string_view id_prefix, const char* object,
                               const char* chunk_object)
    : services_(services),
      request_(request),
      id_(new_id(id_prefix)),
      created_(unix_seconds()),
      object_(object) {
  prefix_ = json::serialize(head(chunk_object));
  prefix_.pop_back();
  prefix_.insert(0, "data: ");
  prefix_ += ",\"choices\":[";
}

TokenPieces& OpenAIRenderer::pieces() const { return *services_.pieces; }

OpenAIRenderer::Progress& OpenAIRenderer::begin_choice(std::string& out, std::size_t index) {
  if (progress_.size() <= index) {
    progress_.resize(index + 1);
  }
  if (!std::exchange(progress_[index].begun, true)) {
    append_first(out, index);
  }
  return progress_[index];
}

void OpenAIRenderer::open_chunk(std::string& out, std::size_t index) const {
  out += prefix_;
  out += "{\"index\":";
  out += std::to_string(index);
}

std::int64_t OpenAIRenderer::tokens_so_far() const {
  std::int64_t tokens = 0;
  for (const Progress& choice : progress_) {
    tokens += choice.tokens;
  }
  return tokens;
}

// Counts what has come. The number of cached tokens is known only at the end.
json::object OpenAIRenderer::usage_so_far() const {
  const std::int64_t completion = tokens_so_far();
  json::object usage;
  usage["prompt_tokens"] = request_.prompt_tokens;
  usage["completion_tokens"] = completion;
  usage["total_tokens"] = request_.prompt_tokens + completion;
  return usage;
}

// Says how many tokens have come, and in which time since the first of them.
void OpenAIRenderer::append_timings(std::string& out) {
  const auto now = services_.loop.now();
  first_token_ = first_token_.value_or(now);
  json::object timings;
  timings["prompt_n"] = request_.prompt_tokens;
  timings["predicted_n"] = tokens_so_far();
  timings["predicted_ms"] = milliseconds_between(*first_token_, now);
  out += ",\"timings\":" + json::serialize(timings);
}

// Closes choice and list, and appends what stands behind.
void OpenAIRenderer::close_chunk(std::string& out, const RunReport* report) {
  out += "}]";
  if (request_.include_usage && !request_.continuous_usage) {
    out += ",\"usage\":null";
  } else if (request_.continuous_usage) {
    out += ",\"usage\":" + json::serialize(usage_so_far());
  }
  if (request_.timings_per_token && report == nullptr) {
    append_timings(out);
  }
  if (report != nullptr) {
    append_top(out);
  }
  if (report != nullptr && !request_.include_usage) {
    append_report(out, *report);
  }
  out += "}\n\n";
}

void OpenAIRenderer::delta(std::string& out, std::size_t index, const Delta& delta) {
  begin_choice(out, index).tokens += static_cast<std::int64_t>(delta.token_ids.size());
  append_delta(out, index, delta);
}

void OpenAIRenderer::append_delta(std::string& out, std::size_t index, const Delta& delta) {
  if (delta.text.empty() && (!shows_ids() || delta.token_ids.empty())) {
    return;
  }
  open_chunk(out, index);
  append_choice(out, index, delta);
  out += ",\"finish_reason\":null";
  close_chunk(out, nullptr);
}

const char* OpenAIRenderer::finish_reason(std::size_t /*index*/,
                                          const GenerationOutput& output) const {
  return finish_word(output.finish_reason);
}

void OpenAIRenderer::finish(std::string& out, std::size_t index, const GenerationOutput& output,
                            const RunReport* report) {
  begin_choice(out, index);
  append_rest(out, index);
  open_chunk(out, index);
  append_last(out, index, output);
  out += ",\"finish_reason\":\"";
  out += finish_reason(index, output);
  out += "\",\"stop_reason\":" + json::serialize(stop_reason(output));
  close_chunk(out, report);
}

void OpenAIRenderer::end(std::string& out, const RunReport& report) {
  if (request_.include_usage) {
    out += prefix_;
    out += "],\"usage\":" + json::serialize(usage_json(report, reasoning_tokens()));
    append_report(out, report);
    out += "}\n\n";
  }
  out += kDone;
}

json::object OpenAIRenderer::head(const char* object) const {
  json::object body;
  body["id"] = id_;
  body["object"] = object;
  body["created"] = created_;
  body["model"] = services_.names.front();
  body["system_fingerprint"] = services_.system_fingerprint;
  return body;
}

json::value OpenAIRenderer::body(const std::vector<ChoiceState>& choices, const RunReport& report) {
  json::object body = head(object_);
  json::array list;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const GenerationOutput& output = choices[i].output;
    json::object choice;
    choice["index"] = i;
    set_choice(choice, i, output);
    choice["finish_reason"] = finish_reason(i, output);
    choice["stop_reason"] = stop_reason(output);
    list.push_back(std::move(choice));
  }
  body["choices"] = std::move(list);
  body["usage"] = usage_json(report, reasoning_tokens());
  set_body(body, choices);
  body["quire"] = quire_json(report);
  body["timings"] = timings_json(report);
  return body;
}

GenerationPlan plan_of(const Services& services, const Call& call, OpenAIRequest& request,
                       std::vector<std::vector<TokenId>> prompts, const char* path,
                       std::int64_t default_tokens) {
  GenerationPlan plan{.extension = request.extension, .stream = request.stream};
  const std::int64_t context = services.engine->facts().context_tokens;
  const bool several = prompts.size() > 1;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    PromptPlan prompt{.sampling = request.sampling, .choices = request.n};
    prompt.tokens = static_cast<std::int64_t>(prompts[i].size());
    request.prompt_tokens += prompt.tokens;
    prompt.prompt = std::move(prompts[i]);
    prompt.sampling.max_tokens =
        output_length(request.max_tokens, default_tokens, context - prompt.tokens,
                      call.caller->limits.max_completion_tokens);
    prompt.options.session = request.extension.session;
    prompt.options.salt = engine_salt(call.caller->tenant, request.extension.cache_salt);
    prompt.path = several ? element_path(path, i) : path;
    plan.prompts.push_back(std::move(prompt));
  }
  return plan;
}

}  // namespace quire::server
