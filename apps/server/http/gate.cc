#include "http/gate.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/errors.h"
#include "config.h"
#include "http/head.h"
#include "keys.h"
#include "message.h"

namespace quire::server {
namespace {

constexpr std::string_view kMethods = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";
constexpr std::string_view kAllowedFields =
    "authorization, content-type, x-api-key, x-goog-api-key, x-request-id, x-request-timeout-ms, "
    "x-quire-session, x-quire-explain, anthropic-version, anthropic-beta, openai-organization, "
    "openai-project, x-stainless-arch, x-stainless-async, x-stainless-helper-method, "
    "x-stainless-lang, x-stainless-os, x-stainless-package-version, x-stainless-retry-count, "
    "x-stainless-runtime, x-stainless-runtime-version, x-stainless-timeout";
constexpr std::string_view kExposedFields =
    "x-request-id, request-id, x-quire-grade, x-quire-cached-tokens, x-quire-ignored, retry-after, "
    "retry-after-ms";

// Paths that need no key.
constexpr std::string_view kOpenPaths[] = {"/live", "/health", "/ready", "/ping"};

bool is_loopback_name(std::string_view name) {
  return same_word(name, "localhost") || name == "127.0.0.1" || name == "[::1]";
}

bool is_allowed_name(const Config& config, std::string_view name) {
  return is_loopback_name(name) ||
         std::ranges::any_of(config.allow_host,
                             [&](const std::string& each) { return same_word(each, name); });
}

std::optional<GateAnswer> check_host(const Config& config, const ListenerFacts& listener,
                                     bool http11, std::string_view host, const Request& request) {
  const auto fields = std::ranges::count(request.headers, "host", &HeaderField::name);
  if (fields > 1 || (fields == 0 && http11)) {
    GateAnswer refusal = gate_refusal(400, "invalid_value", "host: want it once");
    refusal.response.close = true;
    return refusal;
  }
  // A page of another site cannot send a request without a host, nor reach a unix socket.
  const bool checked = listener.loopback && listener.kind != ListenerFacts::Kind::kUnix;
  const auto allowed = [&](std::string_view name) {
    return is_allowed_name(config, split_host(name).name);
  };
  if (!checked ||
      ((fields == 0 || allowed(request.header("host"))) && (host.empty() || allowed(host)))) {
    return {};
  }
  return gate_refusal(403, "host_not_allowed",
                      "the host is not allowed here; start with --allow-host NAME to allow it");
}

bool is_listed_origin(const Config& config, std::string_view origin) {
  return std::ranges::any_of(
      config.cors, [&](const std::string& each) { return each == "*" || same_word(each, origin); });
}

// Returns true for the server's own origin: a host of H11 with the listener's port.
bool is_own_origin(const Config& config, const ListenerFacts& listener, const Request& request,
                   std::string_view origin) {
  const std::string_view scheme = listener.tls ? "https://" : "http://";
  if (!origin.starts_with(scheme)) {
    return false;
  }
  const HostPort host = split_host(origin.substr(scheme.size()));
  const std::string port(host.port.empty() ? (listener.tls ? "443" : "80") : host.port);
  const HostPort asked = split_host(request.header("host"));
  const bool named = is_allowed_name(config, host.name) ||
                     (!listener.loopback && same_word(host.name, asked.name));
  return named && port == std::to_string(listener.port);
}

bool changes(const std::string& method) {
  return method != "GET" && method != "HEAD" && method != "OPTIONS";
}

GateAnswer preflight(std::string_view origin) {
  Response response{.status = 204, .content_type = {}};
  response.headers = {{"access-control-allow-origin", std::string(origin)},
                      {"access-control-allow-methods", std::string(kMethods)},
                      {"access-control-allow-headers", std::string(kAllowedFields)},
                      {"access-control-max-age", "600"},
                      {"vary", "origin"}};
  return {.response = std::move(response)};
}

GateAnswer unauthorized(std::string message) {
  GateAnswer refusal = gate_refusal(401, "invalid_api_key", std::move(message));
  refusal.response.headers.push_back({"www-authenticate", "Bearer"});
  return refusal;
}

// Names the caller. Returns why nobody is named.
std::optional<std::string> identify(const Config& config, Request& request) {
  static const auto everybody = std::make_shared<const Caller>();
  if (config.keys->empty()) {
    request.caller = everybody;
    return {};
  }
  const PresentedKey presented = presented_key(request);
  if (presented.ambiguous) {
    return "two keys are given that differ; give one";
  }
  if (!presented.key) {
    return "a key is needed: authorization: Bearer KEY, or x-api-key: KEY";
  }
  request.caller = config.keys->find(*presented.key);
  return request.caller == nullptr ? std::optional<std::string>("the key is not known here")
                                   : std::nullopt;
}

}  // namespace

GateAnswer gate_refusal(int status, const char* code, std::string message) {
  return {.response = error_response(status, code, std::move(message)), .code = code};
}

HostPort split_host(std::string_view host) {
  const std::size_t bracket = host.starts_with('[') ? host.find(']') : 0;
  const std::size_t colon = bracket == std::string_view::npos ? bracket : host.find(':', bracket);
  return colon == std::string_view::npos
             ? HostPort{.name = host}
             : HostPort{.name = host.substr(0, colon), .port = host.substr(colon + 1)};
}

std::optional<GateAnswer> check_gate(const Config& config, const ListenerFacts& listener,
                                     bool http11, std::string_view host, Request& request) {
  if (auto refusal = check_host(config, listener, http11, host, request)) {
    return refusal;
  }
  if (listener.kind == ListenerFacts::Kind::kMetrics) {
    return {};
  }
  const std::string_view origin = request.header("origin");
  const bool listed = !origin.empty() && is_listed_origin(config, origin);
  if (listed && request.method == "OPTIONS" &&
      !request.header("access-control-request-method").empty()) {
    return preflight(origin);
  }
  const std::optional<std::string> nobody = identify(config, request);
  const bool named_by_key = !nobody && !config.keys->empty();
  if (!origin.empty() && !listed && !named_by_key && changes(request.method) &&
      !is_own_origin(config, listener, request, origin)) {
    return gate_refusal(403, "origin_not_allowed",
                        "pages of this origin may not change things here; start with --cors "
                        "ORIGIN to allow it");
  }
  if (nobody && std::ranges::find(kOpenPaths, request.path) == std::end(kOpenPaths)) {
    return unauthorized(*nobody);
  }
  return {};
}

void add_cors(const Config& config, const Request& request, std::vector<HeaderField>& headers) {
  const std::string_view origin = request.header("origin");
  if (config.cors.empty() || origin.empty() || !is_listed_origin(config, origin) ||
      std::ranges::count(headers, "access-control-allow-origin", &HeaderField::name) > 0) {
    return;
  }
  headers.push_back({"access-control-allow-origin", std::string(origin)});
  headers.push_back({"access-control-expose-headers", std::string(kExposedFields)});
  headers.push_back({"vary", "origin"});
}

}  // namespace quire::server
