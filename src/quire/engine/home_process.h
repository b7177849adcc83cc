// HomeProcess: the process in which something was made. A forked child has its memory, but none of
// its threads. A wait for one of them, or for a mutex that one of them held, never ends. So whoever
// enters asks here first, and in a child what owns threads is leaked, not destroyed.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <string_view>

#include "quire/result.h"

namespace quire::engine {

class HomeProcess {
 public:
  // Returns whether this is another process. Cost: a system call, so once a call, not once a step.
  [[nodiscard]] bool left() const { return ::getpid() != process_; }
  // Returns kClosed when this is another process.
  [[nodiscard]] Status check() const;
  // Returns kClosed with a message of its own. `what` was opened; `way_out` says what to do in the
  // child.
  [[nodiscard]] Status check(std::string_view what, std::string_view way_out) const;

 private:
  pid_t process_ = ::getpid();
};

}  // namespace quire::engine
