// Calls that wait: without the GIL, so that other threads run, and looking for signals, so that
// Ctrl-C works.
#pragma once

#include <nanobind/nanobind.h>

#include "quire/llm.h"

namespace quire::python {

// True when a signal handler of this thread has raised; the exception stays set.
inline bool interrupted() {
  const nanobind::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

template <class Work>
auto without_gil(Work work) {
  const nanobind::gil_scoped_release released;
  return work();
}

// Reports loading to `progress`, unless it is None. `progress` must outlive the load.
inline void set_progress(LLMOptions& options, const nanobind::object& progress) {
  if (!progress.is_none()) {
    options.progress = [&progress](double share) {
      const nanobind::gil_scoped_acquire gil;
      progress(share);
    };
  }
}

}  // namespace quire::python
