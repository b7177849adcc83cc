// GET /v1/models: one body that clients of three vendors read.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "api/call.h"
#include "api/endpoints.h"
#include "api/errors.h"
#include "api/router.h"
#include "quire/result.h"
#include "quire/tools.h"

namespace quire::server {
namespace {

// Returns ISO 8601 of seconds since 1970.
std::string iso_time(std::int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  const std::size_t size = std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return {text, size};
}

json::object model_json(const Services& services, const std::string& name) {
  const std::int64_t context = services.engine->facts().context_tokens;
  json::object model;
  model["id"] = name;
  model["object"] = "model";
  model["created"] = services.started_at;
  model["owned_by"] = "quire";
  model["type"] = "model";
  model["display_name"] = name;
  model["created_at"] = iso_time(services.started_at);
  model["max_model_len"] = context;
  model["max_input_tokens"] = context;
  return model;
}

json::object gemini_json(const Services& services, const std::string& name) {
  const std::int64_t context = services.engine->facts().context_tokens;
  json::object model;
  model["name"] = "models/" + name;
  model["displayName"] = name;
  model["version"] = version();
  model["inputTokenLimit"] = context;
  model["outputTokenLimit"] = context;
  model["supportedGenerationMethods"] = {"generateContent", "countTokens", "createCachedContent"};
  return model;
}

void list_models(Services& services, CallPtr call) {
  json::array data;
  json::array models;
  for (const std::string& name : services.names) {
    data.push_back(model_json(services, name));
    models.push_back(gemini_json(services, name));
  }
  json::object body;
  body["object"] = "list";
  body["data"] = std::move(data);
  body["has_more"] = false;
  body["first_id"] = services.names.front();
  body["last_id"] = services.names.back();
  body["models"] = std::move(models);
  send_json(services, *call, body);
}

void get_model(Services& services, CallPtr call) {
  const std::string name(call->capture("model"));
  if (std::ranges::find(services.names, name) == services.names.end()) {
    ApiError error = refusal(404, "model_not_found",
                             "no model " + name + ", this server has " + services.names.front());
    error.param = "model";
    error.cause = ErrorCode::kNotFound;
    send_error(services, *call, std::move(error));
    return;
  }
  json::object body = model_json(services, name);
  for (auto& [key, value] : gemini_json(services, name)) {
    body[key] = value;
  }
  send_json(services, *call, body);
}

constexpr Endpoint kModelEndpoints[] = {
    {.method = "GET",
     .pattern = "/v1/models",
     .summary = "Lists the names of the model.",
     .handle = list_models},
    {.method = "GET",
     .pattern = "/v1/models/{model...}",
     .summary = "Describes the model.",
     .handle = get_model},
};

}  // namespace

std::span<const Endpoint> model_endpoints() { return kModelEndpoints; }

}  // namespace quire::server
