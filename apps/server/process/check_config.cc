#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "config.h"
#include "process/logs.h"
#include "process/process.h"
#include "quire/options.h"
#include "quire/result.h"

namespace quire::server {
namespace {

Status refuse_config(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

bool is_loopback_host(std::string_view host) {
  return host == "localhost" || host.starts_with("127.") || host == "::1" || host == "[::1]";
}

template <class Number>
Status check_range(const char* flag, Number value, Number least, Number most) {
  return value >= least && value <= most
             ? Status()
             : refuse_config(std::string(flag) + ": want " + std::to_string(least) + " to " +
                             std::to_string(most) + ", got " + std::to_string(value));
}

Status check_ranges(const Config& config) {
  constexpr double kDay = 86'400;
  constexpr double kMonth = 30 * kDay;
  constexpr std::int64_t kMaxBody = std::int64_t{1} << 40;
  QUIRE_TRY_STATUS(
      check_range<std::int64_t>("--max-body", config.limits.max_body_bytes, 1, kMaxBody));
  QUIRE_TRY_STATUS(check_range("--max-connections", config.limits.max_connections, 1, 1 << 20));
  QUIRE_TRY_STATUS(check_range("--workers", config.workers, 1, 256));
  QUIRE_TRY_STATUS(check_range("--max-inflight", config.max_inflight, 1, 1 << 20));
  QUIRE_TRY_STATUS(check_range("--default-max-tokens", config.default_max_tokens, 1, 1 << 30));
  QUIRE_TRY_STATUS(check_range("--max-n", config.max_n, 1, 1024));
  QUIRE_TRY_STATUS(check_range("--stream-interval-ms", config.stream_interval_ms, 0, 10'000));
  QUIRE_TRY_STATUS(check_range("--request-timeout", config.request_timeout_seconds, 0.0, kMonth));
  QUIRE_TRY_STATUS(check_range("--drain-timeout", config.drain_timeout_seconds, 0.0, kMonth));
  QUIRE_TRY_STATUS(check_range("--stall-seconds", config.stall_seconds, 0.001, kMonth));
  if (config.max_queued_tokens) {
    QUIRE_TRY_STATUS(
        check_range<std::int64_t>("--max-queued-tokens", *config.max_queued_tokens, 1, INT64_MAX));
  }
  return {};
}

// Returns whether `text` is such as "http://app.example:8080", without a path.
bool is_origin(std::string_view text) {
  const std::size_t scheme = text.find("://");
  if (text == "*") {
    return true;
  }
  return scheme != std::string_view::npos && scheme > 0 && text.size() > scheme + 3 &&
         text.find_first_of("/ \t,", scheme + 3) == std::string_view::npos;
}

Status check_exposure(const Config& config) {
  const bool guarded = !config.keys->empty() || config.insecure_no_auth;
  const std::string way_out = "; give --keys FILE or --api-key-file FILE, or --insecure-no-auth";
  if (config.has_tcp && !is_loopback_host(config.host) && !guarded) {
    return refuse_config("--host " + config.host + ": other machines would reach it without a key" +
                         way_out);
  }
  const std::string metrics = config.metrics_listen.substr(0, config.metrics_listen.rfind(':'));
  if (!config.metrics_listen.empty() && !is_loopback_host(metrics) && !guarded) {
    return refuse_config("--metrics-listen " + config.metrics_listen +
                         ": other machines would reach it without a key" + way_out);
  }
  for (const std::string& origin : config.cors) {
    if (!is_origin(origin)) {
      return refuse_config("--cors " + origin +
                           ": want an origin as http://app.example:8080, or *");
    }
    if (origin == "*" && config.keys->empty()) {
      return refuse_config("--cors *: any page could use this server; it needs keys");
    }
  }
  return {};
}

}  // namespace

Status check_config(const Config& config) {
  if (config.tls_cert.empty() != config.tls_key.empty()) {
    return refuse_config("--tls-cert and --tls-key are given together");
  }
  QUIRE_TRY_STATUS(check_ranges(config));
  QUIRE_TRY_STATUS(check_exposure(config));
  QUIRE_TRY_STATUS(config.engine.validate());
  const Result<LogLevel> level = parse_log_level(config.log_level);
  return level.ok() ? Status() : Status(level.error());
}

}  // namespace quire::server
