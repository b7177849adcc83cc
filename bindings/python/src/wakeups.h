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
  // OSError when the system has no descriptor left.
  Wakeups();

  // Readable while a key is ready. Closed with the last of these and of its notifiers.
  [[nodiscard]] int fd() const;
  // Returns the function that a stream calls when it has something; any thread may call it.
  [[nodiscard]] std::function<void()> notifier(std::uint64_t key) const;
  // The keys that are ready, each once; they are ready no more.
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
