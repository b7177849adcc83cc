#include "objects/objects.h"

#include <charconv>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "api/admission.h"
#include "api/call.h"
#include "api/errors.h"
#include "api/metrics.h"
#include "api/router.h"
#include "api/source.h"
#include "objects/state.h"
#include "quire/chunks.h"
#include "quire/result.h"

namespace quire::server {

std::shared_ptr<Objects> make_objects(Services& services) {
  return std::make_shared<ObjectState>(services);
}

void ObjectState::fill(Gauges& gauges) const { gauges.sequences = sequences.size(); }

ObjectState& object_state(Services& services) {
  return static_cast<ObjectState&>(*services.objects);
}

std::span<const Endpoint> object_endpoints() {
  static const std::vector<Endpoint> all = [] {
    std::vector<Endpoint> endpoints;
    for (const auto list : {chunk_endpoints(), chunk_item_endpoints(), sequence_endpoints(),
                            sequence_edit_endpoints(), session_endpoints(), request_endpoints(),
                            operator_endpoints()}) {
      endpoints.insert(endpoints.end(), list.begin(), list.end());
    }
    return endpoints;
  }();
  return all;
}

void reply_from_worker(Services& services, CallPtr call,
                       std::function<Checked<Reply>(ChunkedLLM& llm)> work) {
  on_worker<Reply>(
      services, call,
      [engine = services.engine, work = std::move(work)]() -> Checked<Reply> {
        QUIRE_TRY(ChunkedLLM* const llm, chunk_registry(*engine));
        return work(*llm);
      },
      [&services, call](const Reply& reply) {
        send_json(services, *call, reply.body, reply.status);
      });
}

Checked<std::shared_ptr<Ticket>> enter_admission(Services& services, const Call& call) {
  QUIRE_TRY(auto ticket,
            services.admission->enter(*services.config, *call.caller, {.generations = 1}));
  return std::shared_ptr<Ticket>(ticket.release(), [&loop = services.loop](Ticket* taken) {
    loop.post([taken] { delete taken; });
  });
}

json::object list_json(json::array data) {
  json::object list;
  list["object"] = "list";
  list["data"] = std::move(data);
  return list;
}

ApiError over_quota(const char* name, std::int64_t used, std::int64_t wanted,
                    std::int64_t allowed) {
  constexpr std::int64_t kRetryMs = 60'000;
  ApiError error = refusal(429, "quota_exceeded",
                           std::string(name) + ": " + std::to_string(used) + " are used and " +
                               std::to_string(wanted) + " more are asked for, " +
                               std::to_string(allowed) + " are allowed");
  error.retry_after_ms = kRetryMs;
  error.retryable = false;
  return error;
}

Checked<bool> query_flag(const Call& call, const char* name) {
  const auto given = call.query(name);
  if (!given || *given == "false" || *given == "0") {
    return false;
  }
  if (*given == "true" || *given == "1" || given->empty()) {
    return true;
  }
  return invalid(name, "must be true or false");
}

Checked<std::int64_t> query_integer(const Call& call, const char* name, std::int64_t otherwise,
                                    std::int64_t min, std::int64_t max) {
  const auto given = call.query(name);
  if (!given) {
    return otherwise;
  }
  std::int64_t value = 0;
  const char* const end = given->data() + given->size();
  if (std::from_chars(given->data(), end, value) != std::from_chars_result{end, std::errc()} ||
      value < min || value > max) {
    return invalid(name,
                   "must be an integer from " + std::to_string(min) + " to " + std::to_string(max));
  }
  return value;
}

}  // namespace quire::server
