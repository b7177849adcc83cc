// Config: settings of `quire serve` from the command line, `--config` and the files that they name.
// Plain data, which the process fills and everything else reads.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "keys.h"
#include "quire/options.h"

namespace quire::server {

// Treatment of unknown fields in bodies. kByPath: each API has its own rule.
enum class UnknownFields : std::uint8_t { kByPath, kLenient, kStrict };

// Limits of the transport. Tests make times small.
struct TransportLimits {
  std::int64_t max_body_bytes = std::int64_t{32} << 20;
  std::int32_t max_connections = 16384;
  std::int32_t header_bytes = 16 << 10;
  std::int32_t header_fields = 100;
  std::int32_t target_bytes = 8 << 10;
  // Bytes that are read ahead while a request is being answered.
  std::int32_t read_ahead_bytes = 16 << 10;
  // Bytes of a stream that may wait unsent.
  std::int64_t unsent_bytes = std::int64_t{1} << 20;
  std::chrono::milliseconds head_timeout{10'000};
  std::chrono::milliseconds body_timeout{30'000};
  // Window over which a body must come at 1 KiB/s or more on average.
  std::chrono::milliseconds rate_window{10'000};
  std::chrono::milliseconds handshake_timeout{10'000};
  std::chrono::milliseconds idle_timeout{75'000};
  std::chrono::milliseconds write_timeout{60'000};
  std::chrono::milliseconds ping_interval{15'000};
  // Time after which the head of a stream goes out even without an event.
  std::chrono::milliseconds head_delay{1'000};
  // Time for which the server still reads from a connection that it has closed.
  std::chrono::milliseconds linger{2'000};
};

struct Config {
  std::string model;
  LLMOptions engine = {};
  // True: the user has set --max-batch-tokens. Otherwise the server chooses it.
  bool has_max_batch_tokens = false;

  // Listeners. `host` and `port` do not count where the user gives `listen` alone.
  bool has_tcp = true;
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;
  // "unix:/path" or "unix:/path:0660".
  std::vector<std::string> listen = {};
  // HOST:PORT, or "".
  std::string metrics_listen = {};
  std::string tls_cert = {};
  std::string tls_key = {};
  bool insecure_no_auth = false;
  std::shared_ptr<const KeyTable> keys = std::make_shared<KeyTable>();
  std::vector<std::string> allow_host = {};
  std::vector<std::string> cors = {};
  TransportLimits limits = {};

  std::int32_t workers = 2;
  std::int32_t max_inflight = 256;
  // Not given: no limit.
  std::optional<std::int64_t> max_queued_tokens = {};
  // 0: no limit.
  double request_timeout_seconds = 600;
  double drain_timeout_seconds = 30;
  double stall_seconds = 60;
  std::int32_t default_max_tokens = 4096;
  std::int32_t max_n = 16;
  // Least time between two events of a stream. 0: each token is sent when it comes.
  std::int32_t stream_interval_ms = 0;
  UnknownFields unknown_fields = UnknownFields::kByPath;
  // Names that the model answers to. Empty: the base name of `model` without ".gguf".
  std::vector<std::string> alias = {};
  bool any_model = false;
  // Folder of saved sequences; "": none.
  std::string state_dir = {};

  // "": stderr. "off": none.
  std::string access_log = {};
  std::string log_level = "info";
};

}  // namespace quire::server
