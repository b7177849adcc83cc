// Requests as objects: what runs, what has run, and ending it.
#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/call.h"
#include "api/errors.h"
#include "api/generation.h"
#include "api/router.h"
#include "objects/request_log.h"
#include "objects/state.h"
#include "quire/result.h"

namespace quire::server {
namespace {

bool may_see(const Call& call, std::string_view tenant) {
  return call.is_admin() || call.caller->tenant == tenant;
}

ApiError no_request(std::string_view id) {
  ApiError error = refusal(404, "request_not_found", "no request " + std::string(id));
  error.cause = ErrorCode::kNotFound;
  error.retryable = false;
  return error;
}

// Returns the run of that id which the caller may see, or null.
std::shared_ptr<GenerationRun> run_for(Services& services, const Call& call, std::string_view id) {
  const auto found = services.runs.find(std::string(id));
  const bool seen =
      found != services.runs.end() && may_see(call, found->second->call().caller->tenant);
  return seen ? found->second : nullptr;
}

void list_requests(Services& services, CallPtr call) {
  std::vector<std::shared_ptr<GenerationRun>> running;
  for (const auto& [id, run] : services.runs) {
    if (may_see(*call, run->call().caller->tenant)) {
      running.push_back(run);
    }
  }
  std::ranges::sort(running, std::greater(), [](const auto& run) {
    return std::pair(run->call().arrived, std::string_view(run->id()));
  });
  json::array rows;
  for (const auto& run : running) {
    rows.push_back(row_json(row_of(*run, nullptr, ""), false));
  }
  for (const RequestRow& row : object_state(services).requests.rows()) {
    if (may_see(*call, row.tenant)) {
      rows.push_back(row_json(row, false));
    }
  }
  send_json(services, *call, list_json(std::move(rows)));
}

void show_request(Services& services, CallPtr call) {
  const std::string_view id = call->capture("request_id");
  if (const auto run = run_for(services, *call, id)) {
    return send_json(services, *call, row_json(row_of(*run, nullptr, ""), true));
  }
  const RequestRow* const row = object_state(services).requests.find(id);
  if (row == nullptr || !may_see(*call, row->tenant)) {
    return send_error(services, *call, no_request(id));
  }
  send_json(services, *call, row_json(*row, true));
}

void abort_request(Services& services, CallPtr call) {
  const std::string id(call->capture("request_id"));
  const auto run = run_for(services, *call, id);
  if (run == nullptr) {
    return send_error(services, *call, no_request(id));
  }
  ApiError error = refusal(409, "request_cancelled", "the request was aborted by its operator");
  error.cause = ErrorCode::kCancelled;
  error.retryable = false;
  run->fail(std::move(error));
  json::object body;
  body["id"] = id;
  body["aborted"] = true;
  send_json(services, *call, body);
}

}  // namespace

std::span<const Endpoint> request_endpoints() {
  static const Endpoint endpoints[] = {
      {.method = "GET",
       .pattern = "/v1/requests",
       .summary = "Lists requests that run, then the last 200 that have ended.",
       .handle = list_requests},
      {.method = "GET",
       .pattern = "/v1/requests/{request_id}",
       .summary = "Describes a request, with the parts of its prompt.",
       .handle = show_request},
      {.method = "DELETE",
       .pattern = "/v1/requests/{request_id}",
       .summary = "Aborts a request that runs.",
       .handle = abort_request},
  };
  return endpoints;
}

}  // namespace quire::server
