// fmt and spdlog are compiled in: the program needs no library of theirs.
#define FMT_HEADER_ONLY
#define SPDLOG_FMT_EXTERNAL
#define SPDLOG_HEADER_ONLY
#include "process/logs.h"

#include <fmt/core.h>
#include <spdlog/async_logger.h>
#include <spdlog/common.h>
#include <spdlog/details/thread_pool.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <array>
#include <atomic>
#include <boost/json.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <exception>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>

#include "message.h"
#include "quire/options.h"
#include "quire/result.h"
#include "service.h"

namespace quire::server {
namespace {

constexpr std::size_t kQueuedLines = 8192;
constexpr std::size_t kShownBytes = 1024;

using Logger = std::shared_ptr<spdlog::async_logger>;

const char* name_of_level(LogLevel level) {
  constexpr const char* kNames[] = {"info", "warning", "error"};
  return kNames[static_cast<std::uint8_t>(level)];
}

// Returns the time such as "2026-11-29T13:05:01.250Z".
std::string timestamp() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm parts = {};
  gmtime_r(&seconds, &parts);
  std::array<char, 40> text = {};
  const std::size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  return fmt::format("{}.{:03}Z", std::string_view(text.data(), size), ms);
}

// Returns a text of a client as it may stand in JSON: bytes that are no ASCII as %XX.
std::string shown(std::string_view text) {
  std::string result;
  for (const unsigned char c : text.substr(0, kShownBytes)) {
    result += c < 0x80 ? std::string(1, static_cast<char>(c)) : fmt::format("%{:02X}", c);
  }
  return result;
}

boost::json::value text_or_null(const std::string& text) {
  return text.empty() ? boost::json::value(nullptr) : boost::json::value(text);
}

template <class Number>
boost::json::value number_or_null(const std::optional<Number>& number) {
  return number ? boost::json::value(*number) : boost::json::value(nullptr);
}

}  // namespace

class Logs::Impl {
 public:
  Logger logger(spdlog::sink_ptr sink) {
    auto made = std::make_shared<spdlog::async_logger>(
        "quire", std::move(sink), pool, spdlog::async_overflow_policy::overrun_oldest);
    made->set_pattern("%v");
    made->flush_on(spdlog::level::trace);
    made->set_error_handler([](const std::string&) {});  // its own goes to stderr
    return made;
  }
  Status open_access(const std::string& access_log, Logger& to) {
    if (access_log == "off") {
      to = nullptr;
    } else if (access_log.empty()) {
      to = events;
    } else {
      try {
        to = logger(std::make_shared<spdlog::sinks::basic_file_sink_mt>(access_log));
      } catch (const std::exception& error) {
        return {ErrorCode::kIo, "--access-log " + access_log + ": " + error.what()};
      }
    }
    return {};
  }

  std::shared_ptr<spdlog::details::thread_pool> pool =
      std::make_shared<spdlog::details::thread_pool>(kQueuedLines, 1);
  Logger events = logger(std::make_shared<spdlog::sinks::stderr_sink_mt>());
  std::mutex mutex;
  Logger access;  // under the mutex
  std::atomic<LogLevel> level = LogLevel::kInfo;
};

Result<LogLevel> parse_log_level(const std::string& name) {
  for (const LogLevel level : {LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
    if (name == name_of_level(level)) {
      return level;
    }
  }
  return {ErrorCode::kInvalidArgument,
          "--log-level: want info, warning or error, got \"" + name + "\""};
}

Logs::Logs(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Logs::~Logs() = default;

Result<std::unique_ptr<Logs>> Logs::open(const std::string& access_log, LogLevel level) {
  auto impl = std::make_unique<Impl>();
  impl->level = level;
  QUIRE_TRY_STATUS(impl->open_access(access_log, impl->access));
  return std::unique_ptr<Logs>(new Logs(std::move(impl)));
}

void Logs::event(LogLevel level, std::string_view name, std::initializer_list<LogField> fields) {
  if (level < impl_->level.load()) {
    return;
  }
  boost::json::object line = {
      {"ts", timestamp()}, {"level", name_of_level(level)}, {"event", std::string(name)}};
  for (const auto& [key, value] : fields) {
    std::visit([&, name = key](const auto& each) { line[name] = each; }, value);
  }
  impl_->events->info("{}", boost::json::serialize(line));
}

void Logs::access(const AccessRecord& record) {
  Logger logger;
  {
    const std::lock_guard lock(impl_->mutex);
    logger = impl_->access;
  }
  if (logger == nullptr) {
    return;
  }
  const AnswerFacts& facts = record.facts;
  const boost::json::object line = {{"ts", timestamp()},
                                    {"request_id", text_or_null(record.request_id)},
                                    {"tenant", text_or_null(record.tenant)},
                                    {"remote", text_or_null(record.remote)},
                                    {"method", text_or_null(record.method)},
                                    {"path", text_or_null(shown(record.path))},
                                    {"status", record.status},
                                    {"bytes_in", record.bytes_in},
                                    {"bytes_out", record.bytes_out},
                                    {"model", text_or_null(facts.model)},
                                    {"prompt_tokens", number_or_null(facts.prompt_tokens)},
                                    {"cached_tokens", number_or_null(facts.cached_tokens)},
                                    {"completion_tokens", number_or_null(facts.completion_tokens)},
                                    {"grade", text_or_null(facts.grade)},
                                    {"queue_ms", number_or_null(facts.queue_ms)},
                                    {"ttft_ms", number_or_null(facts.first_token_ms)},
                                    {"total_ms", record.total_ms},
                                    {"finish_reason", text_or_null(facts.finish_reason)},
                                    {"error_code", text_or_null(facts.error_code)},
                                    {"user_agent", text_or_null(shown(record.user_agent))}};
  logger->info("{}", boost::json::serialize(line));
}

Status Logs::reopen(const std::string& access_log, LogLevel level) {
  Logger opened;
  QUIRE_TRY_STATUS(impl_->open_access(access_log, opened));
  const std::lock_guard lock(impl_->mutex);
  impl_->access = std::move(opened);
  impl_->level = level;
  return {};
}

// Closes the logs. The queue writes all before its thread ends; where nobody reads stderr that
// never comes.
void Logs::close() {
  struct Ended {
    std::mutex mutex;
    std::condition_variable changed;
    bool is = false;
  };
  auto ended = std::make_shared<Ended>();
  std::thread([ended, pool = std::move(impl_->pool)]() mutable {
    pool.reset();
    const std::lock_guard lock(ended->mutex);
    ended->is = true;
    ended->changed.notify_all();
  }).detach();
  std::unique_lock lock(ended->mutex);
  ended->changed.wait_for(lock, std::chrono::seconds(1), [&] { return ended->is; });
}

}  // namespace quire::server
