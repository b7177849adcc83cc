// Wakeups: tell an event loop which of its streams have something, through a file descriptor that
// it watches. The engine's thread needs no GIL for it, and outlives the interpreter unharmed.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace quire::python {

class Wakeups {
 public:
  // Opens a descriptor. Throws OSError when the system has none left.
  Wakeups();

  // Returns a descriptor that is readable while a key is ready. It closes with the last of these
  // and of its notifiers.
  [[nodiscard]] int fd() const;
  // Returns the function that a stream calls when it has something; any thread may call it.
  [[nodiscard]] std::function<void()> notifier(std::uint64_t key) const;
  // Returns the keys that are ready, each once. They are ready no more.
  [[nodiscard]] std::vector<std::uint64_t> take();

 private:
  struct Ready;
  class Notifier;
  std::shared_ptr<Ready> ready_;
};

// Binds Wakeups, and Halt: a flag that ends a call which waits in another thread.
void bind_wakeups(nanobind::module_& module);

// A flag that any thread may set without the GIL.
struct Halt {
  std::shared_ptr<std::atomic<bool>> set = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace quire::python
