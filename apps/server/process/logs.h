// Logs: the events of a process and its access log, one line of JSON each.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "quire/options.h"
#include "quire/result.h"
#include "service.h"

namespace quire::server {

// Parses a name of --log-level: info, warning, error. kInvalidArgument.
[[nodiscard]] Result<LogLevel> parse_log_level(const std::string& name);

// A value of an event.
using LogValue = std::variant<std::string, std::int64_t, double>;
using LogField = std::pair<const char*, LogValue>;

// Writes in the background: no call waits for the reader of the log. If the reader is too slow, the
// oldest lines are dropped.
// Threads: any.
class Logs {
 public:
  // Opens the logs. `access_log` is "" for stderr, "off", or the path of a file. kIo.
  [[nodiscard]] static Result<std::unique_ptr<Logs>> open(const std::string& access_log,
                                                          LogLevel level);
  ~Logs();
  Logs(const Logs&) = delete;
  Logs& operator=(const Logs&) = delete;

  // Writes an event to stderr: `ts`, `level`, `event`, and the fields.
  void event(LogLevel level, std::string_view name, std::initializer_list<LogField> fields = {});
  // Writes the line of a request.
  void access(const AccessRecord& record);
  // Opens the file again, after a rotation, and takes another level. kIo changes nothing.
  [[nodiscard]] Status reopen(const std::string& access_log, LogLevel level);
  // Waits until all is written, but no longer than a second. Later lines are lost.
  void close();

 private:
  class Impl;
  explicit Logs(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::server
