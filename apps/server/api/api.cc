#include "api/api.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/admission.h"
#include "api/call.h"
#include "api/endpoints.h"
#include "api/errors.h"
#include "api/fields.h"
#include "api/generation.h"
#include "api/holds.h"
#include "api/json.h"
#include "api/metrics.h"
#include "api/metrics_endpoint.h"
#include "api/render.h"
#include "api/rounds.h"
#include "api/router.h"
#include "api/stall.h"
#include "config.h"
#include "engine.h"
#include "keys.h"
#include "loop.h"
#include "message.h"
#include "objects/objects.h"
#include "quire/tools.h"

namespace quire::server {
namespace {

// JSON that is larger is read by a worker.
constexpr std::size_t kLargeJson = 64 << 10;

// Returns the names of the model: aliases, or the base name of its path.
std::vector<std::string> names_of(const Config& config) {
  if (!config.alias.empty()) {
    return config.alias;
  }
  std::string_view name = config.model;
  while (name.size() > 1 && name.ends_with('/')) {
    name.remove_suffix(1);
  }
  name.remove_prefix(name.rfind('/') == std::string_view::npos ? 0 : name.rfind('/') + 1);
  if (name.ends_with(".gguf")) {
    name.remove_suffix(std::string_view(".gguf").size());
  }
  return {std::string(name)};
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

std::string trimmed(std::string text) {
  const auto is_blank = [](unsigned char c) { return c == ' ' || c == '\t' || c == '"'; };
  while (!text.empty() && is_blank(text.back())) {
    text.pop_back();
  }
  text.erase(text.begin(), std::ranges::find_if_not(text, is_blank));
  return text;
}

// Returns true for application/json, in UTF-8 where a charset is given.
bool is_json(std::string_view content_type) {
  const std::string text = lower(content_type);
  std::size_t at = std::min(text.find(';'), text.size());
  if (trimmed(text.substr(0, at)) != "application/json") {
    return false;
  }
  while (at < text.size()) {
    const std::size_t end = std::min(text.find(';', at + 1), text.size());
    const std::string parameter = trimmed(text.substr(at + 1, end - at - 1));
    const std::size_t equals = std::min(parameter.find('='), parameter.size());
    if (parameter.substr(0, equals) == "charset" && equals < parameter.size()) {
      const std::string charset = trimmed(parameter.substr(equals + 1));
      if (charset != "utf-8" && charset != "utf8") {
        return false;
      }
    }
    at = end;
  }
  return true;
}

constexpr std::span<const Endpoint> (*kEndpointLists[])() = {
    health_endpoints, model_endpoints, chat_endpoints,    completion_endpoints, native_endpoints,
    token_endpoints,  info_endpoints,  metrics_endpoints, openapi_endpoints,    object_endpoints};

}  // namespace

Services::Services(std::shared_ptr<const Config> configuration, Loop& its_loop)
    : config(std::move(configuration)),
      loop(its_loop),
      names(names_of(*config)),
      started_at(unix_seconds()),
      admission(std::make_unique<Admission>(its_loop)),
      metrics(std::make_unique<Metrics>(names.front())),
      stall(std::make_unique<StallWatch>(*this)),
      holds(std::make_unique<Holds>(*this)),
      rounds(std::make_unique<Rounds>(its_loop,
                                      std::chrono::milliseconds(config->stream_interval_ms))) {
  for (auto* const list : kEndpointLists) {
    router.add(list());
  }
}
Services::~Services() = default;

bool Services::template_reads(std::string_view variable) const {
  return std::ranges::find(template_variables, variable) != template_variables.end();
}

Api::Api(std::shared_ptr<const Config> config, Loop& loop) : services_(std::move(config), loop) {}

Api::~Api() {
  abort_all();
  services_.stall->stop();
}

void Api::set_engine(Engine& engine) {
  services_.engine = &engine;
  const ModelFacts& facts = engine.facts();
  services_.system_fingerprint =
      std::string("bq-") + version() + "-" + facts.fingerprint.substr(0, 8);
  if (auto tokenizer = engine.tokenizer(); tokenizer.ok()) {
    services_.template_variables = tokenizer->template_variables();
    services_.pieces = std::make_unique<TokenPieces>(std::move(tokenizer).value());
  }
  services_.metrics->set_model(services_.names.front(), facts.block_tokens, facts.num_blocks);
  services_.objects = make_objects(services_);
  services_.stall->begin();
}

void Api::abort_all() {
  std::vector<std::shared_ptr<GenerationRun>> runs;
  runs.reserve(services_.runs.size());
  for (const auto& [id, run] : services_.runs) {
    runs.push_back(run);
  }
  for (const auto& run : runs) {
    run->fail(refusal(503, "draining", "the server is shutting down"));
  }
}

void Api::handle(std::shared_ptr<const Request> request, std::shared_ptr<Answer> answer) {
  auto call = std::make_shared<Call>();
  call->request = std::move(request);
  call->answer = std::move(answer);
  call->caller = call->request->caller;
  call->arrived = services_.loop.now();
  call->notes.unknown = services_.config->unknown_fields;
  call->answer->on_gone([weak = std::weak_ptr<Call>(call)](Gone) {
    if (const auto gone = weak.lock()) {
      gone->gone = true;
    }
  });
  route(call);
}

void Api::handle_metrics(std::shared_ptr<const Request> request, std::shared_ptr<Answer> answer) {
  const bool reads = request->method == "GET" || request->method == "HEAD";
  if (request->path != "/metrics") {
    answer->send(error_response(404, "not_found", "no such path"));
  } else if (!reads) {
    Response response = error_response(405, "method_not_allowed", "allowed: GET, HEAD");
    response.headers.push_back({"allow", "GET, HEAD"});
    answer->send(std::move(response));
  } else {
    answer->facts().route = "/metrics";
    scrape(services_, answer);
  }
}

void Api::route(const CallPtr& call) {
  std::string allow;
  auto match = services_.router.find(call->request->method, call->request->path, allow);
  const bool open = match.ok() && match->endpoint->access == Access::kOpen;
  if (services_.engine == nullptr && !open) {
    send_error(services_, *call, refusal(503, "loading", "the model is being loaded"));
    return;
  }
  if (!allow.empty() && call->request->method == "OPTIONS") {
    call->answer->send(
        {.status = 204, .content_type = {}, .headers = {{"allow", allow + ", OPTIONS"}}});
    return;
  }
  if (!match.ok()) {
    call->answer->facts().error_code = match.error().code;
    Response response = error_response(match.error());
    if (!allow.empty()) {
      response.headers.push_back({"allow", allow});
    }
    call->answer->send(std::move(response));
    return;
  }
  call->endpoint = match->endpoint;
  call->captures = std::move(match->captures);
  call->answer->facts().route = call->endpoint->pattern;
  if (call->caller == nullptr) {
    call->caller = std::make_shared<const Caller>();
  }
  if (call->endpoint->access == Access::kAdmin && !call->is_admin()) {
    send_error(services_, *call,
               refusal(403, "permission_denied", "this needs a key of role admin"));
    return;
  }
  if (services_.draining && call->endpoint->uses == Uses::kEngine) {
    ApiError error = refusal(503, "draining", "the server is shutting down");
    error.close = true;
    send_error(services_, *call, std::move(error));
    return;
  }
  read_body(call);
}

void Api::read_body(const CallPtr& call) {
  if (call->endpoint->body == nullptr) {
    call->endpoint->handle(services_, call);
    return;
  }
  const std::string& text = call->request->body;
  if (text.empty()) {
    take_body(call, json::value(json::object()));
    return;
  }
  if (!is_json(call->request->header("content-type"))) {
    send_error(services_, *call,
               refusal(415, "unsupported_media_type", "content-type must be application/json"));
    return;
  }
  if (text.size() <= kLargeJson) {
    take_body(call, read_json(text));
    return;
  }
  services_.loop.work([this, call] {
    auto body = std::make_shared<Checked<json::value>>(read_json(call->request->body));
    services_.loop.post([this, call, body] {
      if (!call->gone) {
        take_body(call, std::move(*body));
      }
    });
  });
}

void Api::take_body(const CallPtr& call, Checked<json::value> body) {
  if (!body.ok()) {
    send_error(services_, *call, std::move(body).error());
    return;
  }
  json::object* const object = body->if_object();
  if (object == nullptr) {
    ApiError error = invalid("", "the body must be a JSON object");
    error.code = "invalid_json";
    send_error(services_, *call, std::move(error));
    return;
  }
  if (Check check = check_fields(*call->endpoint->body, *object, "", call->notes); !check.ok()) {
    send_error(services_, *call, std::move(check).error());
    return;
  }
  call->body = std::move(*object);
  call->endpoint->handle(services_, call);
}

}  // namespace quire::server
