// Gate: what stands in front of routing: Host (rule H11), Origin and CORS (H12), keys (A1).
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

// Describes a listener. Plain data.
struct ListenerFacts {
  enum class Kind : std::uint8_t { kTcp, kUnix, kMetrics };
  Kind kind = Kind::kTcp;
  // True: only this machine reaches it.
  bool loopback = true;
  std::uint16_t port = 0;
  bool tls = false;
};

// Holds the gate's answer in place of the API: a refusal, or a preflight's response. Plain data.
struct GateAnswer {
  Response response = {};
  // Code of the error, or "".
  std::string code = {};
};
[[nodiscard]] GateAnswer gate_refusal(int status, const char* code, std::string message);

// Checks a request whose head was read, and names its caller. `host` is the authority of an
// absolute target, or "".
[[nodiscard]] std::optional<GateAnswer> check_gate(const Config& config,
                                                   const ListenerFacts& listener, bool http11,
                                                   std::string_view host, Request& request);

// Adds what CORS wants on a response to `request`.
void add_cors(const Config& config, const Request& request, std::vector<HeaderField>& headers);

// Splits "localhost:8000", "[::1]:80" into name and port; the port is "" where there is none.
struct HostPort {
  std::string_view name;
  std::string_view port;
};
[[nodiscard]] HostPort split_host(std::string_view host);

}  // namespace quire::server
