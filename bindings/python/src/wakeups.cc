#include "wakeups.h"

#include <nanobind/nanobind.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include "casters.h"  // IWYU pragma: keep (conversions)

namespace nb = nanobind;

namespace quire::python {

struct Wakeups::Ready {
  int fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  std::mutex mutex;
  std::vector<std::uint64_t>
      keys;  // ready keys, with room for every notifier: ringing asks for no memory
  std::size_t notifiers = 0;

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

// Counts as a notifier of `ready` while it lives.
class Wakeups::Notifier {
 public:
  Notifier(std::shared_ptr<Ready> ready, std::uint64_t key) : ready_(std::move(ready)), key_(key) {
    const std::lock_guard lock(ready_->mutex);
    ready_->keys.reserve(ready_->keys.size() + ready_->notifiers + 1);
    ++ready_->notifiers;
  }
  ~Notifier() {
    const std::lock_guard lock(ready_->mutex);
    --ready_->notifiers;
  }
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  void ring() {
    {
      const std::lock_guard lock(ready_->mutex);
      if (std::ranges::find(ready_->keys, key_) != ready_->keys.end()) {
        return;
      }
      ready_->keys.push_back(key_);
    }
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(ready_->fd, &one, sizeof(one));
  }

 private:
  std::shared_ptr<Ready> ready_;
  std::uint64_t key_;
};

std::function<void()> Wakeups::notifier(std::uint64_t key) const {
  return [notifier = std::make_shared<Notifier>(ready_, key)] { notifier->ring(); };
}

std::vector<std::uint64_t> Wakeups::take() {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto read = ::read(ready_->fd, &count, sizeof(count));
  // Keys that became ready since the read are taken here; their wakeup then finds nothing.
  const std::lock_guard lock(ready_->mutex);
  std::vector<std::uint64_t> taken = ready_->keys;
  ready_->keys.clear();
  return taken;
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
