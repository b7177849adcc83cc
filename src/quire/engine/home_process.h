// HomeProcess: the process in which something was made. A forked child has its memory, but none of
// its threads: what waits for one of them, or for a mutex that one of them held, waits for ever.
// So whoever enters asks here first, and in a child what owns threads is leaked, not destroyed.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <string_view>

#include "quire/result.h"

namespace quire::engine {

class HomeProcess {
 public:
  // Whether this is another process. A system call: for the beginning of a call, not for a step.
  [[nodiscard]] bool left() const { return ::getpid() != process_; }
  // kClosed then.
  [[nodiscard]] Status check() const;
  // The same of something else than an LLM: what was opened, and what to do in the child.
  [[nodiscard]] Status check(std::string_view what, std::string_view way_out) const;

 private:
  pid_t process_ = ::getpid();
};

}  // namespace quire::engine
