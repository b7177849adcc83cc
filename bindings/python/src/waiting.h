// Calls that wait: without the GIL, so that other threads run, and looking for signals, so that
// Ctrl-C works.
//
// At the end of the interpreter a thread that asks for the GIL is ended where it stands, which no
// C++ frame survives. So once end_waiting() has returned, threads that come back from the library
// stay asleep instead; only the thread that ends the interpreter goes on.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <functional>

#include "quire/llm.h"

namespace quire::python {

// Releases the GIL in its scope.
class WithoutGil {
 public:
  WithoutGil();
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

// Holds the GIL in its scope, in a thread that has released it.
class WithGil {
 public:
  WithGil();
  ~WithGil();
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  PyGILState_STATE state_;
};

// Returns true when a signal handler of this thread, or a function that it has called, has raised.
// The exception stays set.
[[nodiscard]] bool interrupted();

template <class Work>
auto without_gil(Work work) {
  const WithoutGil released;
  return work();
}

// Reports loading to `progress`, unless it is None. `progress` must outlive the load.
inline void set_progress(LLMOptions& options, const nanobind::object& progress) {
  if (!progress.is_none()) {
    options.progress = [&progress](double share) {
      const WithGil gil;
      progress(share);
    };
  }
}

// Returns a function that hands the share of tokens that have KV to `function`, or none for None.
// An exception of `function` stays set, and interrupted() ends the call with it. Borrows
// `function`.
[[nodiscard]] std::function<void(std::int64_t tokens, std::int64_t wanted)> progress_to(
    const nanobind::object& function);

// Binds end_waiting(), for the end of the interpreter.
void bind_waiting(nanobind::module_& module);

}  // namespace quire::python
