#include "process/process.h"

#include <signal.h>  // POSIX
#include <sys/resource.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "config.h"
#include "http/channel.h"
#include "http/gate.h"
#include "http/http_server.h"
#include "http/reactor.h"
#include "message.h"
#include "process/logs.h"
#include "quire/options.h"
#include "quire/result.h"
#include "service.h"

namespace quire::server {
namespace {

// Time that answers have to end after they were aborted.
constexpr std::chrono::milliseconds kAbortTime{2'000};
constexpr unsigned kUnixMode = 0660;
constexpr int kSignalBase = 128;

// Lets the process have as many descriptors as the system allows. Returns how many.
std::int64_t raise_descriptor_limit() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<std::int64_t>(limit.rlim_cur);
}

Status say_on_stdout(std::string_view line) {
  while (!line.empty()) {
    const ssize_t size = ::write(STDOUT_FILENO, line.data(), line.size());
    if (size < 0 && errno != EINTR) {
      return {ErrorCode::kIo, "cannot write to stdout: " + std::generic_category().message(errno)};
    }
    line.remove_prefix(size < 0 ? 0 : static_cast<std::size_t>(size));
  }
  return {};
}

struct UnixAddress {
  std::string path;
  unsigned mode = kUnixMode;
};

// Reads "unix:/path" or "unix:/path:0660".
Result<UnixAddress> parse_unix(const std::string& text) {
  constexpr std::string_view kScheme = "unix:";
  if (!text.starts_with(kScheme) || text.size() == kScheme.size()) {
    return {ErrorCode::kInvalidArgument,
            "--listen " + text + ": want unix:/path or unix:/path:0660"};
  }
  UnixAddress address{.path = text.substr(kScheme.size())};
  const std::size_t colon = address.path.rfind(':');
  if (colon == std::string::npos) {
    return address;
  }
  const char* const end = address.path.data() + address.path.size();
  const auto read = std::from_chars(address.path.data() + colon + 1, end, address.mode, 8);
  if (read.ec != std::errc() || read.ptr != end || address.mode > 0777) {
    return {ErrorCode::kInvalidArgument, "--listen " + text + ": want permissions as 0660"};
  }
  address.path.resize(colon);
  return address;
}

// Reads "127.0.0.1:9400".
Result<std::pair<std::string, std::uint16_t>> parse_host_port(const std::string& text) {
  const HostPort parts = split_host(text);
  std::uint16_t port = 0;
  const char* const end = std::to_address(parts.port.end());
  const auto read = std::from_chars(std::to_address(parts.port.begin()), end, port);
  if (parts.name.empty() || parts.port.empty() || read.ec != std::errc() || read.ptr != end) {
    return {ErrorCode::kInvalidArgument, "--metrics-listen " + text + ": want HOST:PORT"};
  }
  return std::pair(std::string(parts.name), port);
}

Status check_model(const std::string& model) {
  std::error_code error;
  return model.starts_with("preset:") || std::filesystem::exists(model, error)
             ? Status()
             : Status(ErrorCode::kIo, "no model at \"" + model + "\"");
}

class Process {
 public:
  explicit Process(ProcessOptions options)
      : options_(std::move(options)),
        config_(with_log(*options_.config)),
        reactor_(config_->workers),
        service_(options_.make(config_, reactor_.loop())),
        server_(
            reactor_.loop(), config_,
            [this](const AccessRecord& record) {
              service_->observe(record);
              logs_->access(record);
            },
            [this](const char* what) { log_fault(what); }) {
    reactor_.on_fault([this](const char* what) { log_fault(what); });
    service_->set_transport_stats([this] { return server_.stats(); });
  }

  // Opens logs, certificates and listeners.
  Status open() {
    QUIRE_TRY_STATUS(check_model(config_->model));
    QUIRE_TRY(const LogLevel level, parse_log_level(config_->log_level));
    QUIRE_TRY(logs_, Logs::open(config_->access_log, level));
    QUIRE_TRY_STATUS(read_certificates(*config_));
    logs_->event(LogLevel::kInfo, "start",
                 {{"descriptors", raise_descriptor_limit()}, {"pid", std::int64_t{::getpid()}}});
    handler_ = [this](auto request, auto answer) {
      service_->handle(std::move(request), std::move(answer));
    };
    QUIRE_TRY_STATUS(open_tcp());
    for (const std::string& each : config_->listen) {
      QUIRE_TRY_STATUS(open_unix(each));
    }
    QUIRE_TRY_STATUS(open_metrics());
    return say_on_stdout("listening on " + listening_ + "\n");
  }

  // Serves. Returns why the model could not be loaded, if that is why it ended.
  std::optional<Error> run() {
    watch_signals();
    std::thread([this] {
      Status loaded = service_->load();
      reactor_.loop().post([this, loaded = std::move(loaded)] { take_loaded(loaded); });
    }).detach();
    reactor_.run();
    reactor_.close_listeners();
    return failure_;
  }

  // Flushes what is under way.
  void close() {
    server_.shut_all(Gone::kShutdown);
    if (loaded_) {
      service_->close();
    }
    logs_->event(LogLevel::kInfo, "stop");
    logs_->close();
  }
  [[nodiscard]] Logs* logs() { return logs_.get(); }

 private:
  // Lets the engine write what no call returns.
  std::shared_ptr<const Config> with_log(const Config& given) {
    auto config = std::make_shared<Config>(given);
    config->engine.log = [this](LogLevel level, std::string_view text) {
      logs_->event(level, "engine", {{"message", std::string(text)}});
    };
    return config;
  }

  void log_fault(const char* what) {
    logs_->event(LogLevel::kError, "fault", {{"message", std::string(what)}});
  }

  Status read_certificates(const Config& config) {
    if (!config.tls_cert.empty()) {
      QUIRE_TRY(auto tls, Reactor::read_tls(config.tls_cert, config.tls_key));
      reactor_.set_tls(std::move(tls), config.limits.handshake_timeout);
    }
    return {};
  }

  // Returns what takes the connections of a listener. Its facts are known only once it is open.
  AcceptCall accept_for(const std::shared_ptr<ListenerFacts>& facts, const Handler& handler) {
    return [this, facts, &handler](std::unique_ptr<Channel> channel, std::string remote) {
      server_.accept(*facts, handler, std::move(channel), std::move(remote));
    };
  }

  Status open_tcp() {
    if (!config_->has_tcp) {
      return {};
    }
    const bool tls = !config_->tls_cert.empty();
    auto facts = std::make_shared<ListenerFacts>();
    QUIRE_TRY(const Listening listening,
              reactor_.listen_tcp(config_->host, config_->port, tls, accept_for(facts, handler_)));
    *facts = {.loopback = listening.loopback, .port = listening.port, .tls = tls};
    listening_ = (tls ? "https://" : "http://") + listening.address;
    logs_->event(LogLevel::kInfo, "listening", {{"address", listening_}});
    return {};
  }

  Status open_unix(const std::string& text) {
    QUIRE_TRY(const UnixAddress address, parse_unix(text));
    auto facts = std::make_shared<ListenerFacts>();
    facts->kind = ListenerFacts::Kind::kUnix;
    QUIRE_TRY(const Listening listening,
              reactor_.listen_unix(address.path, address.mode, accept_for(facts, handler_)));
    const std::string name = "unix:" + listening.address;
    listening_ = listening_.empty() ? name : listening_;
    logs_->event(LogLevel::kInfo, "listening", {{"address", name}});
    return {};
  }

  Status open_metrics() {
    metrics_handler_ = [this](auto request, auto answer) {
      service_->handle_metrics(std::move(request), std::move(answer));
    };
    if (config_->metrics_listen.empty()) {
      return {};
    }
    QUIRE_TRY(const auto where, parse_host_port(config_->metrics_listen));
    auto facts = std::make_shared<ListenerFacts>();
    QUIRE_TRY(const Listening listening, reactor_.listen_tcp(where.first, where.second, false,
                                                             accept_for(facts, metrics_handler_)));
    *facts = {.kind = ListenerFacts::Kind::kMetrics,
              .loopback = listening.loopback,
              .port = listening.port};
    logs_->event(LogLevel::kInfo, "listening for metrics",
                 {{"address", "http://" + listening.address}});
    return {};
  }

  void watch_signals() {
    reactor_.on_signal({SIGTERM, SIGINT}, [this](int signal) {
      if (draining_) {
        std::_Exit(kSignalBase + signal);
      }
      drain();
    });
    reactor_.on_signal({SIGHUP}, [this](int) { reload(); });
  }

  void take_loaded(const Status& loaded) {
    if (draining_) {
      return;
    }
    if (!loaded.ok()) {
      failure_ = loaded.error();
      reactor_.stop();
      return;
    }
    loaded_ = true;
    logs_->event(LogLevel::kInfo, "loaded", {{"model", config_->model}});
  }

  void drain() {
    draining_ = true;
    logs_->event(LogLevel::kInfo, "drain",
                 {{"running", static_cast<std::int64_t>(server_.answering())}});
    service_->drain();
    server_.close_when_rested([this] { reactor_.stop(); });
    const auto patience =
        std::chrono::milliseconds(static_cast<std::int64_t>(1000 * config_->drain_timeout_seconds));
    reactor_.loop().after(patience, [this] {
      logs_->event(LogLevel::kWarning, "drain timeout",
                   {{"running", static_cast<std::int64_t>(server_.answering())}});
      service_->abort_all();
      reactor_.loop().after(kAbortTime, [this] { reactor_.stop(); });
    });
  }

  void reload() {
    const Status done = try_reload();
    service_->count_reload(done.ok());
    if (done.ok()) {
      logs_->event(LogLevel::kInfo, "reload");
    } else {
      logs_->event(LogLevel::kError, "reload", {{"error", done.error().message}});
    }
  }

  // Takes what may change while the process runs; all of it, or nothing.
  Status try_reload() {
    QUIRE_TRY(const auto read, options_.reread());
    QUIRE_TRY_STATUS(check_config(*read));
    QUIRE_TRY(const LogLevel level, parse_log_level(read->log_level));
    std::shared_ptr<TlsContext> tls;
    const bool had_tls = !config_->tls_cert.empty();
    if (had_tls && !read->tls_cert.empty()) {
      QUIRE_TRY(tls, Reactor::read_tls(read->tls_cert, read->tls_key));
    }
    QUIRE_TRY_STATUS(logs_->reopen(read->access_log, level));
    if (tls != nullptr) {
      reactor_.set_tls(std::move(tls), read->limits.handshake_timeout);
    }
    auto merged = std::make_shared<Config>(*read);
    merged->model = config_->model;
    merged->engine = config_->engine;
    merged->has_max_batch_tokens = config_->has_max_batch_tokens;
    merged->has_tcp = config_->has_tcp;
    merged->host = config_->host;
    merged->port = config_->port;
    merged->listen = config_->listen;
    merged->metrics_listen = config_->metrics_listen;
    merged->workers = config_->workers;
    config_ = std::move(merged);
    server_.reload(config_);
    service_->reload(config_);
    return {};
  }

  ProcessOptions options_;
  std::shared_ptr<const Config> config_;
  Reactor reactor_;
  std::unique_ptr<Logs> logs_;
  std::unique_ptr<Service> service_;
  HttpServer server_;
  Handler handler_;
  Handler metrics_handler_;
  std::string listening_;
  std::optional<Error> failure_;
  bool loaded_ = false;
  bool draining_ = false;
};

}  // namespace

// Runs the server. Ends the process here, without destructors: a loading model or a worker cannot
// be interrupted, and everything that must be flushed has been.
Error run_server(ProcessOptions options) {
  if (const Status checked = check_config(*options.config); !checked.ok()) {
    return checked.error();
  }
  signal(SIGPIPE, SIG_IGN);
  auto* const process = new Process(std::move(options));
  if (const Status opened = process->open(); !opened.ok()) {
    if (process->logs() != nullptr) {
      process->logs()->close();
    }
    return opened.error();
  }
  if (const std::optional<Error> failure = process->run()) {
    process->logs()->close();
    return *failure;
  }
  process->close();
  std::_Exit(EXIT_SUCCESS);
}

}  // namespace quire::server
