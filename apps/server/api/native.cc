// Quire's own endpoints that generate or say what would happen: /v1/generate, /v1/compositions and
// /v1/explain.
#include "api/native.h"

#include <cstddef>
#include <cstdint>
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
#include "api/render.h"
#include "api/router.h"
#include "api/sampling.h"
#include "api/source.h"
#include "quire/chunks.h"
#include "quire/fields.h"
#include "quire/interrupt.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/types.h"

namespace quire::server {
namespace {

constexpr std::int64_t kMaxBatch = 256;

constexpr FieldRule kLengthRules[] = {
    {.name = "max_tokens",
     .kinds = kInteger,
     .help = "most tokens to generate; default what the context leaves, up to "
             "--default-max-tokens",
     .min = 0,
     .max = 2147483647},
    {.name = "logprobs",
     .kinds = kInteger,
     .help = "likeliest tokens shown for each token",
     .min = 0,
     .max = 1024},
    {.name = "constraint",
     .kinds = kObject,
     .help = "constrained output is not there yet",
     .effect = Effect::kRefused},
};

std::span<const FieldRule> item_rules() {
  static const FieldRule rules[] = {
      {.name = "sampling",
       .kinds = kObject,
       .help = "how tokens are chosen",
       .members = &native_sampling_table()},
      {.name = "session",
       .kinds = kString,
       .help = "name of the session that the request belongs to",
       .min_size = 1,
       .max_size = 256},
      {.name = "priority",
       .kinds = kInteger,
       .help = "higher goes first, where the server orders requests by priority",
       .min = -1000,
       .max = 1000},
  };
  return rules;
}

const FieldTable& item_table() {
  static const FieldTable table{
      "GenerateItem", "One request of a batch.", {source_rules(), item_rules()}};
  return table;
}

const FieldTable& generate_table() {
  static const FieldRule rules[] = {
      {.name = "requests",
       .kinds = kArray,
       .help = "up to 256 requests as one batch, all or none",
       .min_size = 1,
       .max_size = kMaxBatch,
       .members = &item_table(),
       .elements = kObject},
      {.name = "stream", .kinds = kBool, .help = "server-sent events; not with requests"},
      {.name = "explain", .kinds = kBool, .help = "adds `parts`"},
      {.name = "deadline_ms",
       .kinds = kInteger,
       .help = "milliseconds after which the request ends with 504",
       .min = 1,
       .max = 1e12},
      {.name = "model", .kinds = kString, .help = "a name of the model"},
  };
  static const FieldTable table{"GenerateRequest",
                                "A prompt, a chat or a composition to go on with.",
                                {source_rules(), item_rules(), rules, extension_rules()}};
  return table;
}

const FieldTable& explain_table() {
  static const FieldRule rules[] = {
      {.name = "cache_salt",
       .kinds = kString,
       .help = "as of the request that is meant",
       .min_size = 1,
       .max_size = 512},
  };
  static const FieldTable table{"ExplainRequest", "A prompt to look up.", {source_rules(), rules}};
  return table;
}

// One request of the body.
struct NativeItem {
  PromptSource source;
  SamplingParams sampling;
  std::optional<std::int64_t> max_tokens;
  std::string session;
  std::optional<std::int32_t> priority;  // not given: that of the whole request
};

struct NativeRequest {
  std::vector<NativeItem> items;
  Extension extension;
  bool stream = false;
  bool batch = false;
};

Checked<NativeItem> read_item(const Services& services, Call& call, const json::object& object,
                              std::string_view path) {
  NativeItem item;
  QUIRE_TRY(item.source, read_source(*services.engine, object, path, call.notes));
  const Members members(object);
  item.session = std::string(members.text("session").value_or(""));
  if (const auto priority = members.integer("priority")) {
    item.priority = static_cast<std::int32_t>(*priority);
  }
  if (const json::object* const sampling = members.object("sampling")) {
    QUIRE_TRY(NativeSampling read, read_native_sampling(*sampling, member_path(path, "sampling")));
    item.sampling = std::move(read.params);
    item.max_tokens = read.max_tokens;
  }
  return item;
}

Checked<NativeRequest> read_native(const Services& services, Call& call) {
  QUIRE_TRY_STATUS(check_model(services, call));
  NativeRequest request;
  QUIRE_TRY(request.extension, read_extension(call));
  const Members members = call.members();
  request.stream = members.flag("stream");
  request.extension.explain = members.flag("explain", request.extension.explain);
  if (const auto deadline = members.integer("deadline_ms")) {
    request.extension.deadline_ms = deadline;
  }
  const json::array* const list = members.array("requests");
  if (list == nullptr) {
    QUIRE_TRY(NativeItem item, read_item(services, call, call.body, ""));
    if (item.session.empty()) {
      item.session = request.extension.session;
    }
    request.extension.session = item.session;
    request.items.push_back(std::move(item));
    return request;
  }
  request.batch = true;
  for (const char* const name :
       {"prompt", "messages", "variables", "composition", "sampling", "session", "priority"}) {
    if (members.has(name)) {
      return invalid(name, "stands in each of requests here");
    }
  }
  if (request.stream) {
    return invalid("stream", "a batch has no stream");
  }
  for (std::size_t i = 0; i < list->size(); ++i) {
    QUIRE_TRY(NativeItem item,
              read_item(services, call, (*list)[i].get_object(), element_path("requests", i)));
    request.items.push_back(std::move(item));
  }
  return request;
}

// Renders outputs with the names of GenerationOutput.
class NativeRenderer final : public Renderer {
 public:
  explicit NativeRenderer(bool batch) : batch_(batch) {}

  void delta(std::string& out, std::size_t /*index*/, const Delta& delta) override {
    json::object event;
    event["text"] = delta.text;
    event["token_ids"] = ids_json(delta.token_ids);
    event["logprobs"] = logprobs_json(delta.logprobs);
    append_event(out, event);
  }
  void finish(std::string& /*out*/, std::size_t /*index*/, const GenerationOutput& output,
              const RunReport* /*report*/) override {
    output_ = output;
  }
  void end(std::string& out, const RunReport& report) override {
    json::object event;
    event["text"] = "";
    event["token_ids"] = json::array();
    event["finished"] = true;
    event["output"] = output_json(output_);
    event["quire"] = quire_json(report);
    append_event(out, event);
    out += kDone;
  }
  [[nodiscard]] json::value body(const std::vector<ChoiceState>& choices,
                                 const RunReport& report) override {
    if (!batch_) {
      json::object body = output_json(choices.front().output);
      body["quire"] = quire_json(report);
      return body;
    }
    json::array outputs;
    for (const ChoiceState& choice : choices) {
      outputs.push_back(output_json(choice.output));
    }
    json::object body;
    body["outputs"] = std::move(outputs);
    body["quire"] = quire_json(report);
    return body;
  }

 private:
  static json::value logprobs_json(const std::vector<TokenLogprobs>& logprobs) {
    if (logprobs.empty()) {
      return nullptr;
    }
    json::array list;
    for (const TokenLogprobs& entry : logprobs) {
      json::object object;
      for (const auto& [id, logprob] : entry) {
        object[std::to_string(id)] = static_cast<double>(logprob);
      }
      list.push_back(std::move(object));
    }
    return list;
  }

  bool batch_;
  GenerationOutput output_;
};

void start_native(Services& services, const CallPtr& call, NativeRequest& request,
                  std::vector<EncodedSource> sources) {
  GenerationPlan plan{.extension = request.extension, .stream = request.stream};
  const std::int64_t context = services.engine->facts().context_tokens;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    NativeItem& item = request.items[i];
    const bool composed = std::holds_alternative<CompositionSpec>(sources[i].prompt);
    PromptPlan prompt{.prompt = std::move(sources[i].prompt), .sampling = item.sampling};
    prompt.tokens = sources[i].tokens;
    prompt.priority = item.priority;
    prompt.path = item.source.path;
    prompt.sampling.max_tokens =
        output_length(item.max_tokens, services.config->default_max_tokens, context - prompt.tokens,
                      call->caller->limits.max_completion_tokens);
    prompt.options.session = item.session;
    prompt.options.salt = engine_salt(call->caller->tenant,
                                      composed ? std::string_view() : request.extension.cache_salt);
    plan.prompts.push_back(std::move(prompt));
  }
  GenerationRun::start(services, call, std::move(plan),
                       std::make_unique<NativeRenderer>(request.batch));
}

void generate(Services& services, CallPtr call) {
  auto read = read_native(services, *call);
  if (!read.ok()) {
    send_error(services, *call, std::move(read).error());
    return;
  }
  auto request = std::make_shared<NativeRequest>(std::move(read).value());
  on_worker<std::vector<EncodedSource>>(
      services, call,
      [request, engine = services.engine, salt = engine_salt(call->caller->tenant),
       interrupted = Call::interrupt(call)]() -> Checked<std::vector<EncodedSource>> {
        std::vector<EncodedSource> sources;
        for (const NativeItem& item : request->items) {
          QUIRE_TRY(auto source, encode_source(*engine, item.source, salt, interrupted));
          sources.push_back(std::move(source));
        }
        return sources;
      },
      [&services, call, request](std::vector<EncodedSource> sources) {
        start_native(services, call, *request, std::move(sources));
      });
}

json::object info_json(const CompositionInfo& info) {
  json::array segments;
  for (const CompositionInfo::Segment& segment : info.segments) {
    json::object object;
    object["chunk_id"] = segment.chunk_id;
    object["type"] = chunk_type_name(segment.type);
    object["num_tokens"] = segment.num_tokens;
    object["position"] = segment.position;
    object["kv_dtype"] = segment.kv_dtype;
    object["cached"] = segment.cached;
    object["why_not"] = segment.why_not;
    segments.push_back(std::move(object));
  }
  json::object object;
  object["segments"] = std::move(segments);
  object["mode"] = reuse_mode_name(info.mode);
  object["grade"] = reuse_grade_name(info.grade);
  object["total_tokens"] = info.total_tokens;
  object["tokens_reused"] = info.tokens_reused;
  object["tokens_computed"] = info.tokens_computed;
  object["num_levels"] = info.num_levels;
  object["num_blocks"] = info.num_blocks;
  object["new_blocks"] = info.new_blocks;
  object["memory_bytes"] = info.memory_bytes;
  object["retokenizes_alike"] = info.retokenizes_alike;
  return object;
}

void preview(Services& services, CallPtr call) {
  auto spec = read_composition(call->body, "");
  if (!spec.ok()) {
    send_error(services, *call, std::move(spec).error());
    return;
  }
  spec->salt = engine_salt(call->caller->tenant);
  on_worker<json::object>(
      services, call,
      [engine = services.engine, spec = std::move(spec).value()]() -> Checked<json::object> {
        QUIRE_TRY(ChunkedLLM* const chunks, chunk_registry(*engine));
        const auto info = chunks->preview_composition(spec);
        if (!info.ok()) {
          return composition_error(info.error(), spec, "");
        }
        return info_json(*info);
      },
      [&services, call](json::object body) { send_json(services, *call, std::move(body)); });
}

Checked<json::object> explain_source(Engine& engine, PromptSource source,
                                     const std::string& tenant_salt, const std::string& salt,
                                     const Interrupt& interrupted) {
  QUIRE_TRY(ChunkedLLM* const chunks, chunk_registry(engine));
  std::vector<ReusePart> parts;
  std::int64_t tokens = 0;
  if (auto* const spec = std::get_if<CompositionSpec>(&source.prompt)) {
    spec->salt = tenant_salt;
    auto explained = chunks->explain(*spec);
    if (!explained.ok()) {
      return composition_error(explained.error(), *spec, source.path);
    }
    parts = std::move(explained).value();
  } else {
    QUIRE_TRY(EncodedSource encoded,
              encode_source(engine, std::move(source), tenant_salt, interrupted));
    QUIRE_TRY(parts, chunks->llm().explain(std::get<std::vector<TokenId>>(encoded.prompt),
                                           {.salt = salt}));
  }
  std::int64_t cached = 0;
  for (const ReusePart& part : parts) {
    tokens += part.tokens;
    cached += part.hit ? part.tokens : 0;
  }
  json::object body;
  body["parts"] = parts_json(parts);
  body["cached_tokens"] = cached;
  body["tokens"] = tokens;
  return body;
}

void explain(Services& services, CallPtr call) {
  auto source = read_source(*services.engine, call->body, "", call->notes);
  if (!source.ok()) {
    send_error(services, *call, std::move(source).error());
    return;
  }
  const std::string salt =
      engine_salt(call->caller->tenant, call->members().text("cache_salt").value_or(""));
  on_worker<json::object>(
      services, call,
      [engine = services.engine, source = std::move(source).value(), salt,
       tenant_salt = engine_salt(call->caller->tenant), interrupted = Call::interrupt(call)] {
        return explain_source(*engine, source, tenant_salt, salt, interrupted);
      },
      [&services, call](json::object body) { send_json(services, *call, std::move(body)); });
}

}  // namespace

std::unique_ptr<Renderer> native_renderer() { return std::make_unique<NativeRenderer>(false); }

const FieldTable& native_sampling_table() {
  static const FieldTable table{
      "SamplingParams", "How tokens are chosen.", {sampling_rules(), kLengthRules}};
  return table;
}

Checked<NativeSampling> read_native_sampling(const json::object& object, std::string_view path) {
  NativeSampling sampling;
  QUIRE_TRY(sampling.params, read_sampling(object, path));
  const Members members(object);
  sampling.max_tokens = members.integer("max_tokens");
  if (const auto top = members.integer("logprobs")) {
    sampling.params.logprobs = static_cast<std::int32_t>(*top);
  }
  return sampling;
}

json::object output_json(const GenerationOutput& output) {
  const auto text = to_json(output);
  return text.ok() ? json::parse(*text).as_object() : json::object();
}

std::span<const Endpoint> native_endpoints() {
  static const Endpoint endpoints[] = {
      {.method = "POST",
       .pattern = "/v1/generate",
       .summary = "Goes on with a prompt, a chat or a composition.",
       .uses = Uses::kEngine,
       .body = &generate_table(),
       .handle = generate},
      {.method = "POST",
       .pattern = "/v1/compositions",
       .summary = "Says what running a composition would do now; computes nothing.",
       .uses = Uses::kEngine,
       .body = &composition_table(),
       .handle = preview},
      {.method = "POST",
       .pattern = "/v1/explain",
       .summary = "Says which parts of a prompt are cached, and why others are not.",
       .uses = Uses::kEngine,
       .body = &explain_table(),
       .handle = explain},
  };
  return endpoints;
}

}  // namespace quire::server
