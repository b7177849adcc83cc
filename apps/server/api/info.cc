// Small endpoints about the server, and those that are not there.
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "api/admission.h"
#include "api/call.h"
#include "api/endpoints.h"
#include "api/errors.h"
#include "api/router.h"
#include "engine.h"
#include "quire/result.h"
#include "quire/tools.h"

namespace quire::server {
namespace {

void get_version(Services& services, CallPtr call) {
  send_json(services, *call, {{"version", version()}});
}

void get_load(Services& services, CallPtr call) {
  send_json(services, *call, {{"server_load", services.admission->inflight()}});
}

void get_server_info(Services& services, CallPtr call) {
  const ModelFacts& facts = services.engine->facts();
  json::object body;
  body["model"] = services.names.front();
  body["block_size"] = facts.block_tokens;
  body["max_model_len"] = facts.context_tokens;
  body["num_blocks"] = facts.num_blocks;
  body["version"] = version();
  send_json(services, *call, body);
}

void get_event_sources(Services& services, CallPtr call) {
  json::object body;
  body["sources"] = json::array();
  send_json(services, *call, body);
}

void not_there(Services& services, CallPtr call) {
  const std::string path = call->endpoint->pattern;
  const char* instead = "see /openapi.json for what is there";
  if (path.starts_with("/v1/embeddings")) {
    instead = "this server generates text; /v1/generate gives log probabilities";
  } else if (path.starts_with("/v1/files")) {
    instead = "register texts with POST /v1/chunks";
  } else if (path.starts_with("/v1/batches")) {
    instead = "send up to 256 requests at once to POST /v1/generate";
  } else if (path.starts_with("/v1/rerank")) {
    instead = "POST /v1/compositions says what chunks cost";
  }
  ApiError error =
      refusal(501, "not_implemented", call->request->method + " is not there: " + instead);
  error.cause = ErrorCode::kUnsupported;
  send_error(services, *call, std::move(error));
}

constexpr Endpoint info_endpoint(const char* pattern, const char* summary, Access access,
                                 void (*handle)(Services&, CallPtr)) {
  return {
      .method = "GET", .pattern = pattern, .summary = summary, .access = access, .handle = handle};
}
constexpr Endpoint absent(const char* pattern) {
  return {.method = "*",
          .pattern = pattern,
          .summary = "Not there.",
          .statuses = "501",
          .handle = not_there};
}

constexpr Endpoint kInfoEndpoints[] = {
    info_endpoint("/version", "Says the version.", Access::kUser, get_version),
    info_endpoint("/load", "Says how many generations wait or run.", Access::kUser, get_load),
    info_endpoint("/get_server_info", "Describes model and blocks.", Access::kAdmin,
                  get_server_info),
    info_endpoint("/kv_event_sources", "Lists sources of KV events.", Access::kAdmin,
                  get_event_sources),
    absent("/v1/embeddings"),
    absent("/v1/rerank"),
    absent("/v1/audio/{rest...}"),
    absent("/v1/images/{rest...}"),
    absent("/v1/files"),
    absent("/v1/files/{rest...}"),
    absent("/v1/batches"),
    absent("/v1/batches/{rest...}"),
    absent("/v1/fine_tuning/{rest...}"),
};

}  // namespace

std::span<const Endpoint> info_endpoints() { return kInfoEndpoints; }

}  // namespace quire::server
