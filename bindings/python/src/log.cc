#include "log.h"

#include <nanobind/nanobind.h>

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "casters.h"  // IWYU pragma: keep (conversions)
#include "quire/options.h"
#include "text.h"
#include "waiting.h"

namespace nb = nanobind;

namespace quire::python {
namespace {

constexpr std::size_t kMostRecords = 1000;  // most records that wait; beyond them the oldest go
constexpr int kLevels[] = {20, 30, 40};     // levels of Python's logging

}  // namespace

struct LogRecords::Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::pair<int, std::string>> records;
  bool ended = false;

  void put(LogLevel level, std::string_view text) {
    {
      const std::lock_guard lock(mutex);
      if (records.size() == kMostRecords) {
        records.erase(records.begin());
      }
      records.emplace_back(kLevels[static_cast<std::size_t>(level)], text);
    }
    changed.notify_one();
  }
  void end() {
    {
      const std::lock_guard lock(mutex);
      ended = true;
    }
    changed.notify_one();
  }
};

LogRecords::LogRecords() : queue_(std::make_shared<Queue>()) {}

std::function<void(LogLevel, std::string_view)> LogRecords::sink() const {
  const std::shared_ptr<Queue> held(queue_.get(), [queue = queue_](Queue*) { queue->end(); });
  return [held](LogLevel level, std::string_view text) { held->put(level, text); };
}

std::vector<std::pair<int, std::string>> LogRecords::take() const {
  return without_gil([&] {
    std::unique_lock lock(queue_->mutex);
    queue_->changed.wait(lock, [&] { return queue_->ended || !queue_->records.empty(); });
    return std::exchange(queue_->records, {});
  });
}

void LogRecords::end() const { queue_->end(); }

void bind_log(nb::module_& module) {
  nb::class_<LogRecords>(module, "LogRecords")
      .def(nb::init<>())
      .def("take",
           [](const LogRecords& records) {
             nb::list list;
             for (const auto& [level, text] : records.take()) {
               list.append(nb::make_tuple(level, to_text(text)));
             }
             return list;
           })
      .def("end", &LogRecords::end);
}

}  // namespace quire::python
