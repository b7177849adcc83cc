// Gate: checks that come before routing: Host, Origin and CORS, keys.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config.h"
#include "message.h"

namespace quire::server {

// A listener's address and kind. Plain data.
struct ListenerFacts {
  enum class Kind : std::uint8_t { kTcp, kUnix, kMetrics };
  Kind kind = Kind::kTcp;
  // True: only this machine reaches it.
  bool loopback = true;
  std::uint16_t port = 0;
  bool tls = false;
};

// The gate's answer in place of the API's: a refusal, or a response to a preflight. Plain data.
struct GateAnswer {
  Response response = {};
  // Code of the error, or "".
  std::string code = {};
};
[[nodiscard]] GateAnswer gate_refusal(int status, const char* code, std::string message);

// Checks a request whose head was read, and sets its caller. `host` is the authority of an absolute
// target, or "". Returns an answer if the gate gives it itself.
[[nodiscard]] std::optional<GateAnswer> check_gate(const Config& config,
                                                   const ListenerFacts& listener, bool http11,
                                                   std::string_view host, Request& request);

// Adds the headers of CORS for a response to `request`.
void add_cors(const Config& config, const Request& request, std::vector<HeaderField>& headers);

// Name and port of "localhost:8000" or "[::1]:80"; the port is "" where there is none.
struct HostPort {
  std::string_view name;
  std::string_view port;
};
[[nodiscard]] HostPort split_host(std::string_view host);

}  // namespace quire::server
