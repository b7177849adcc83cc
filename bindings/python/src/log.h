// LogRecords: messages of LLMOptions::log on their way to Python. The engine's thread puts them and
// needs no GIL; a thread of Python takes them.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/options.h"

namespace quire::python {

class LogRecords {
 public:
  LogRecords();

  // Returns a function that takes an LLM's records; any thread may call it. The records end with
  // the last copy of it.
  [[nodiscard]] std::function<void(LogLevel, std::string_view)> sink() const;
  // Waits without the GIL for records, and takes all. Empty: no more will come.
  [[nodiscard]] std::vector<std::pair<int, std::string>> take() const;
  // Ends the log. No more will come, whoever still holds the sink.
  void end() const;

 private:
  struct Queue;
  std::shared_ptr<Queue> queue_;
};

// Binds LogRecords.
void bind_log(nanobind::module_& module);

}  // namespace quire::python
