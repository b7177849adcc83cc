// Sessions by name: how long and how well their KV is kept.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "api/call.h"
#include "api/errors.h"
#include "api/fields.h"
#include "api/router.h"
#include "objects/state.h"
#include "quire/chunks.h"
#include "quire/options.h"
#include "quire/result.h"

namespace quire::server {
namespace {

constexpr double kMaxSessionSeconds = 1e9;

const FieldTable& session_table() {
  static const FieldRule rules[] = {
      {.name = "priority",
       .kinds = kInteger,
       .help = "lower ones are evicted first; default 0",
       .min = -2147483648.0,
       .max = 2147483647},
      {.name = "ttl_seconds",
       .kinds = kNumber,
       .help = "seconds after the last request from which on nobody wants the KV",
       .min = 0,
       .max = kMaxSessionSeconds},
  };
  static const FieldTable table{"SessionRequest", "How a session's KV is kept.", {rules}};
  return table;
}

const FieldTable& pause_table() {
  static const FieldRule rules[] = {
      {.name = "expected_return_seconds",
       .kinds = kNumber,
       .help = "seconds until the next request; default: nobody knows",
       .min = 0,
       .max = kMaxSessionSeconds},
  };
  static const FieldTable table{"SessionPause", "When a session comes back.", {rules}};
  return table;
}

json::object session_json(const std::string& name) {
  json::object body;
  body["object"] = "session";
  body["name"] = name;
  return body;
}

// Returns the reply, or 404 for a session that is not open.
Checked<Reply> session_reply(const Status& done, json::object body) {
  if (!done.ok()) {
    return api_error(done.error());
  }
  return Reply{std::move(body)};
}

void put_session(Services& services, CallPtr call) {
  const Members members = call->members();
  const SessionRetention retention{
      .priority = static_cast<std::int32_t>(members.integer("priority").value_or(0)),
      .ttl_seconds = members.number("ttl_seconds")};
  reply_from_worker(
      services, call,
      [name = std::string(call->capture("name")), retention,
       salt = engine_salt(call->caller->tenant)](ChunkedLLM& llm) {
        json::object body = session_json(name);
        body["priority"] = retention.priority;
        body["ttl_seconds"] =
            retention.ttl_seconds ? json::value(*retention.ttl_seconds) : json::value(nullptr);
        return session_reply(llm.llm().set_retention(name, retention, salt), std::move(body));
      });
}

void pause_session(Services& services, CallPtr call) {
  const auto seconds = call->members().number("expected_return_seconds");
  reply_from_worker(services, call,
                    [name = std::string(call->capture("name")), seconds,
                     salt = engine_salt(call->caller->tenant)](ChunkedLLM& llm) {
                      json::object body = session_json(name);
                      body["paused"] = true;
                      return session_reply(llm.llm().pause_session(name, seconds, salt),
                                           std::move(body));
                    });
}

void close_session(Services& services, CallPtr call) {
  reply_from_worker(services, call,
                    [name = std::string(call->capture("name")),
                     salt = engine_salt(call->caller->tenant)](ChunkedLLM& llm) {
                      json::object body = session_json(name);
                      body["deleted"] = true;
                      return session_reply(llm.llm().close_session(name, salt), std::move(body));
                    });
}

}  // namespace

std::span<const Endpoint> session_endpoints() {
  static const Endpoint endpoints[] = {
      {.method = "PUT",
       .pattern = "/v1/sessions/{name}",
       .summary = "Opens a session, or says how its KV is kept.",
       .uses = Uses::kEngine,
       .body = &session_table(),
       .handle = put_session},
      {.method = "POST",
       .pattern = "/v1/sessions/{name}/pause",
       .summary = "Says that a session is away.",
       .uses = Uses::kEngine,
       .body = &pause_table(),
       .handle = pause_session},
      {.method = "DELETE",
       .pattern = "/v1/sessions/{name}",
       .summary = "Closes a session: what it alone has cached goes first.",
       .uses = Uses::kEngine,
       .handle = close_session},
  };
  return endpoints;
}

}  // namespace quire::server
