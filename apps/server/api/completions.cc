// POST /v1/completions.
#include "api/completions.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "api/call.h"
#include "api/endpoints.h"
#include "api/errors.h"
#include "api/extension.h"
#include "api/fields.h"
#include "api/generation.h"
#include "api/json.h"
#include "api/openai.h"
#include "api/prompt_logprobs.h"
#include "api/prompts.h"
#include "api/render.h"
#include "api/router.h"
#include "api/sampling.h"
#include "engine.h"
#include "quire/chunks.h"
#include "quire/interrupt.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/tokenizer.h"
#include "quire/types.h"

namespace quire::server {
namespace {

constexpr std::int64_t kMaxPrompts = 256;
constexpr std::int64_t kDefaultTokens = 16;

constexpr FieldRule kCompletionRules[] = {
    {.name = "prompt",
     .kinds = kString | kArray,
     .help = "a text, up to 256 texts, token ids, or up to 256 lists of ids",
     .required = true,
     .min_size = 1},
    {.name = "max_tokens",
     .kinds = kInteger,
     .help = "most tokens to generate; default 16",
     .min = 0,
     .max = 2147483647},
    {.name = "echo",
     .kinds = kBool,
     .help = "the text begins with the prompt; with logprobs, its tokens stand in front"},
    {.name = "logprobs",
     .kinds = kInteger,
     .help = "likeliest tokens shown for each token",
     .min = 0,
     .max = 20},
    {.name = "add_special_tokens",
     .kinds = kBool,
     .help = "false: texts are encoded without BOS and the like"},
    {.name = "suffix", .kinds = kString, .effect = Effect::kRefused, .only = "\"\""},
    {.name = "best_of",
     .kinds = kInteger,
     .help = "use n",
     .effect = Effect::kRefused,
     .only = "1"},
};

using PromptInput = std::variant<std::string, std::vector<TokenId>>;

struct CompletionRequest {
  OpenAIRequest openai;
  std::vector<PromptInput> prompts;
  bool echo = false;
  bool add_special_tokens = true;
};

Checked<std::vector<PromptInput>> read_prompts(const json::value& value, std::int32_t vocab_size) {
  std::vector<PromptInput> prompts;
  if (value.is_string()) {
    prompts.emplace_back(std::string(view_of(value.get_string())));
    return prompts;
  }
  const json::array& list = value.get_array();
  if (list.front().is_number()) {
    QUIRE_TRY(auto ids, read_ids(list, "prompt", vocab_size));
    prompts.emplace_back(std::move(ids));
    return prompts;
  }
  if (static_cast<std::int64_t>(list.size()) > kMaxPrompts) {
    return invalid("prompt",
                   "has " + std::to_string(list.size()) + " prompts, at most 256 are allowed");
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string path = element_path("prompt", i);
    if (list[i].is_string()) {
      prompts.emplace_back(std::string(view_of(list[i].get_string())));
    } else if (list[i].is_array() && !list[i].get_array().empty()) {
      QUIRE_TRY(auto ids, read_ids(list[i].get_array(), path, vocab_size));
      prompts.emplace_back(std::move(ids));
    } else {
      return invalid(path, "must be a text or a list of ids that is not empty");
    }
    if (prompts.back().index() != prompts.front().index()) {
      return invalid(path, "texts and lists of ids cannot stand beside each other");
    }
  }
  return prompts;
}

Checked<CompletionRequest> read_completion(const Services& services, const Call& call) {
  CompletionRequest request;
  QUIRE_TRY(request.openai, read_openai(services, call));
  const Members members = call.members();
  QUIRE_TRY(request.prompts,
            read_prompts(*members.value("prompt"), services.engine->facts().vocab_size));
  request.echo = members.flag("echo");
  request.add_special_tokens = members.flag("add_special_tokens", true);
  request.openai.top_logprobs = members.integer("logprobs");
  if (request.openai.top_logprobs) {
    request.openai.sampling.logprobs = static_cast<std::int32_t>(*request.openai.top_logprobs);
  }
  return request;
}

// Holds what stands in front of a prompt's choices. Empty without `echo`.
struct Echo {
  std::string text;
  std::vector<TokenId> ids;
  // One entry per id, where they are asked for. Written by a worker before the first token comes.
  std::shared_ptr<std::vector<TokenLogprobs>> logprobs =
      std::make_shared<std::vector<TokenLogprobs>>();
};

// Holds what a worker makes of the prompts: ids, and what is echoed.
struct EncodedPrompts {
  std::vector<std::vector<TokenId>> ids;
  std::vector<Echo> echoes;
};

Checked<EncodedPrompts> encode_prompts(const Engine& engine, CompletionRequest& request,
                                       const Interrupt& interrupted) {
  EncodedPrompts encoded;
  for (std::size_t i = 0; i < request.prompts.size(); ++i) {
    const std::string path = request.prompts.size() == 1 ? "prompt" : element_path("prompt", i);
    if (auto* const text = std::get_if<std::string>(&request.prompts[i])) {
      QUIRE_TRY(auto ids,
                encode_text(engine, *text, request.add_special_tokens, path, interrupted));
      encoded.ids.push_back(std::move(ids));
    } else {
      encoded.ids.push_back(std::get<std::vector<TokenId>>(request.prompts[i]));
    }
    Echo& echo = encoded.echoes.emplace_back();
    if (!request.echo) {
      continue;
    }
    echo.ids = encoded.ids.back();
    if (auto* const text = std::get_if<std::string>(&request.prompts[i])) {
      echo.text = std::move(*text);
    } else {
      QUIRE_TRY(const Tokenizer tokenizer, engine.tokenizer());
      QUIRE_TRY(echo.text, tokenizer.decode(echo.ids, true, interrupted));
    }
  }
  return encoded;
}

class CompletionRenderer final : public OpenAIRenderer {
 public:
  CompletionRenderer(Services& services, const OpenAIRequest& request, std::vector<Echo> echoes)
      : OpenAIRenderer(services, request, "cmpl-", "text_completion", "text_completion"),
        echoes_(std::move(echoes)),
        logprobs_(echoes_.size() * static_cast<std::size_t>(request.n)) {}

 protected:
  void append_first(std::string& out, std::size_t index) override {
    if (!echo(index).ids.empty()) {
      open_chunk(out, index);
      append_text(out, echo(index).text);
      out += ",\"logprobs\":" +
             json::serialize(logprobs(index, echo(index).ids, *echo(index).logprobs));
      out += ",\"finish_reason\":null";
      close_chunk(out, nullptr);
    }
  }
  void append_choice(std::string& out, std::size_t index, const Delta& delta) override {
    append_text(out, delta.text);
    out += ",\"logprobs\":" + json::serialize(logprobs(index, delta.token_ids, delta.logprobs));
    if (request().return_token_ids) {
      out += ",\"token_ids\":" + json::serialize(ids_json(delta.token_ids));
    }
  }
  void append_last(std::string& out, std::size_t /*index*/,
                   const GenerationOutput& output) override {
    out += R"(,"text":"","logprobs":null)";
    if (request().return_token_ids) {
      out += ",\"token_ids\":[],\"prompt_token_ids\":" +
             json::serialize(ids_json(output.prompt_token_ids));
    }
  }
  void set_choice(json::object& choice, std::size_t index,
                  const GenerationOutput& output) override {
    choice["text"] = echo(index).text + output.text;
    if (request().top_logprobs) {
      logprobs_[index].add(pieces(), echo(index).ids, *echo(index).logprobs,
                           *request().top_logprobs);
    }
    choice["logprobs"] = logprobs(index, output.token_ids, output.logprobs);
    if (request().return_token_ids) {
      choice["token_ids"] = ids_json(output.token_ids);
      choice["prompt_token_ids"] = ids_json(output.prompt_token_ids);
    }
  }
  void set_body(json::object& /*body*/, const std::vector<ChoiceState>& /*choices*/) override {}

 private:
  static void append_text(std::string& out, std::string_view text) {
    out += ",\"text\":";
    append_json_string(out, text);
  }
  [[nodiscard]] const Echo& echo(std::size_t index) const {
    return echoes_[index / static_cast<std::size_t>(request().n)];
  }
  [[nodiscard]] json::value logprobs(std::size_t index, const std::vector<TokenId>& ids,
                                     const std::vector<TokenLogprobs>& given) {
    if (!request().top_logprobs) {
      return nullptr;
    }
    logprobs_[index].add(pieces(), ids, given, *request().top_logprobs);
    return logprobs_[index].take();
  }

  std::vector<Echo> echoes_;  // one per prompt
  std::vector<CompletionLogprobs> logprobs_;
};

// Lets a worker compute the log probabilities of what is echoed, once the request is admitted.
void prepare_echoes(Services& services, const CallPtr& call, std::int64_t top,
                    const std::vector<Echo>& echoes, GenerationPlan& plan) {
  for (std::size_t i = 0; i < echoes.size(); ++i) {
    if (echoes[i].ids.empty()) {
      continue;
    }
    plan.prompts[i].prepare = [engine = services.engine, echo = echoes[i], top,
                               salt = plan.prompts[i].options.salt,
                               interrupted = Call::interrupt(call)]() -> Status {
      ChunkedLLM* const chunks = engine->chunks();
      if (chunks == nullptr) {
        return {ErrorCode::kUnsupported, "this engine has no log probabilities of prompts"};
      }
      QUIRE_TRY(*echo.logprobs, prompt_logprobs(chunks->llm(), echo.ids, top, salt, interrupted));
      return {};
    };
  }
}

// Reads a body, encodes it, and calls `take` with the plan and what a renderer needs.
void with_plan(Services& services, CallPtr call,
               std::function<void(GenerationPlan, const OpenAIRequest&, std::vector<Echo>)> take) {
  auto read = read_completion(services, *call);
  if (!read.ok()) {
    send_error(services, *call, std::move(read).error());
    return;
  }
  auto request = std::make_shared<CompletionRequest>(std::move(read).value());
  on_worker<EncodedPrompts>(
      services, call,
      [request, engine = services.engine, interrupted = Call::interrupt(call)] {
        return encode_prompts(*engine, *request, interrupted);
      },
      [&services, call, request, take = std::move(take)](EncodedPrompts encoded) {
        GenerationPlan plan = plan_of(services, *call, request->openai, std::move(encoded.ids),
                                      "prompt", kDefaultTokens);
        if (request->openai.top_logprobs) {
          prepare_echoes(services, call, *request->openai.top_logprobs, encoded.echoes, plan);
        }
        take(std::move(plan), request->openai, std::move(encoded.echoes));
      });
}

void complete(Services& services, CallPtr call) {
  with_plan(services, call,
            [&services, call](GenerationPlan plan, const OpenAIRequest& request,
                              std::vector<Echo> echoes) {
              GenerationRun::start(
                  services, call, std::move(plan),
                  std::make_unique<CompletionRenderer>(services, request, std::move(echoes)));
            });
}

}  // namespace

const FieldTable& completion_table() {
  static const FieldTable table{
      "CompletionRequest",
      "A text to go on with.",
      {kCompletionRules, openai_rules(), sampling_rules(), extension_rules()}};
  return table;
}

void plan_completion(Services& services, CallPtr call, TakePlan take) {
  with_plan(services, call,
            [&services, call, take = std::move(take)](
                const GenerationPlan& plan, const OpenAIRequest& /*request*/,
                const std::vector<Echo>& /*echoes*/) { take(services, call, plan); });
}

std::span<const Endpoint> completion_endpoints() {
  static const Endpoint endpoints[] = {
      {.method = "POST",
       .pattern = "/v1/completions",
       .summary = "Goes on with a text.",
       .uses = Uses::kEngine,
       .body = &completion_table(),
       .handle = complete},
      {.method = "POST",
       .pattern = "/completions",
       .summary = "Goes on with a text; /v1/completions under llama-server's name.",
       .uses = Uses::kEngine,
       .body = &completion_table(),
       .handle = complete},
  };
  return endpoints;
}

}  // namespace quire::server
