// /health, /ready, /ping and /live.
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "api/call.h"
#include "api/endpoints.h"
#include "api/errors.h"
#include "api/router.h"
#include "api/stall.h"
#include "message.h"

namespace quire::server {
namespace {

void live(Services& services, CallPtr call) { send_json(services, *call, {{"status", "ok"}}); }

void health(Services& services, CallPtr call) {
  const char* status = nullptr;
  std::string message;
  if (services.engine == nullptr) {
    status = "loading";
    message = "the model is being loaded";
  } else if (services.draining) {
    status = "draining";
    message = "the server is shutting down";
  } else if (services.stall->stalled()) {
    status = "stalled";
    message = "the engine makes no step";
  } else {
    live(services, std::move(call));
    return;
  }
  ApiError error = refusal(503, status, std::move(message));
  call->answer->facts().error_code = status;
  Response response = error_response(error);
  json::object body;
  body["status"] = status;
  const json::value refused = json::parse(response.body);
  for (const auto& member : refused.get_object()) {
    body[member.key()] = member.value();
  }
  response.body = json::serialize(body);
  call->answer->send(std::move(response));
}

constexpr Endpoint open_endpoint(const char* pattern, const char* summary,
                                 void (*handle)(Services&, CallPtr)) {
  return {.method = "GET",
          .pattern = pattern,
          .summary = summary,
          .access = Access::kOpen,
          .handle = handle};
}
constexpr const char* kReady =
    "Says that requests are taken; 503 while the model loads, the "
    "server ends, or the engine has stalled.";
constexpr Endpoint kHealthEndpoints[] = {
    open_endpoint("/live", "Says that the process runs.", live),
    open_endpoint("/health", kReady, health),
    open_endpoint("/ready", kReady, health),
    open_endpoint("/ping", kReady, health),
};

}  // namespace

std::span<const Endpoint> health_endpoints() { return kHealthEndpoints; }

}  // namespace quire::server
