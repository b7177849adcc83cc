#include "wakeups.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

namespace nb = nanobind;

namespace quire::python {

struct Wakeups::Ready {
  int fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  std::mutex mutex;
  std::vector<std::uint64_t> keys;

  Ready() = default;
  ~Ready() { ::close(fd); }
  Ready(const Ready&) = delete;
  Ready& operator=(const Ready&) = delete;
};

Wakeups::Wakeups() : ready_(std::make_shared<Ready>()) {
  if (ready_->fd < 0) {
    throw std::system_error(errno, std::generic_category(), "no descriptor for an event loop");
  }
}

int Wakeups::fd() const { return ready_->fd; }

std::function<void()> Wakeups::notifier(std::uint64_t key) const {
  return [ready = ready_, key] {
    {
      const std::lock_guard lock(ready->mutex);
      if (std::ranges::find(ready->keys, key) != ready->keys.end()) {
        return;
      }
      ready->keys.push_back(key);
    }
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(ready->fd, &one, sizeof(one));
  };
}

std::vector<std::uint64_t> Wakeups::take() {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto read = ::read(ready_->fd, &count, sizeof(count));
  // What comes in between is taken here, and wakes for nothing.
  const std::lock_guard lock(ready_->mutex);
  return std::exchange(ready_->keys, {});
}

void bind_wakeups(nb::module_& module) {
  nb::class_<Wakeups>(module, "Wakeups")
      .def(nb::init<>())
      .def("fd", &Wakeups::fd)
      .def("take", &Wakeups::take);
  nb::class_<Halt>(module, "Halt").def(nb::init<>()).def("set", [](Halt& halt) {
    *halt.set = true;
  });
}

}  // namespace quire::python
