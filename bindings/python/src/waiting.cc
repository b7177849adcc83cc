#include "waiting.h"

#include <nanobind/nanobind.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

namespace nb = nanobind;

namespace quire::python {
namespace {

// One interpreter, one end: the state of the process.
std::atomic<int> inside = 0;  // threads that are about to hold the GIL, or hold it for a callback
std::atomic<bool> ended = false;  // set once `ending_thread` is known
std::thread::id ending_thread;

// Longer than this no callback delays the end of the interpreter.
constexpr std::chrono::seconds kPatience{5};

// Counts this thread as one that asks for the GIL, or never returns.
void come_in() {
  ++inside;
  if (ended && std::this_thread::get_id() != ending_thread) {
    --inside;
    while (true) {
      ::pause();
    }
  }
}

// Waits for threads that are on their way back to Python; from then on none comes back. The thread
// that ends the interpreter calls this, once every engine is closed.
void end_waiting() {
  ending_thread = std::this_thread::get_id();
  ended = true;
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  PyThreadState* const state = PyEval_SaveThread();
  while (inside > 0 && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  PyEval_RestoreThread(state);
}

}  // namespace

WithoutGil::WithoutGil() : state_(PyEval_SaveThread()) {}

WithoutGil::~WithoutGil() {
  come_in();
  PyEval_RestoreThread(state_);
  --inside;
}

WithGil::WithGil() {
  come_in();
  state_ = PyGILState_Ensure();
}

WithGil::~WithGil() {
  PyGILState_Release(state_);
  --inside;
}

bool interrupted() {
  const WithGil gil;
  return PyErr_Occurred() != nullptr || PyErr_CheckSignals() != 0;
}

std::function<void(std::int64_t, std::int64_t)> progress_to(const nb::object& function) {
  if (function.is_none()) {
    return {};
  }
  return [&function](std::int64_t tokens, std::int64_t wanted) {
    const WithGil gil;
    if (PyErr_Occurred() != nullptr) {
      return;
    }
    try {
      function(wanted == 0 ? 1.0 : static_cast<double>(tokens) / static_cast<double>(wanted));
    } catch (nb::python_error& error) {
      error.restore();
    }
  };
}

void bind_waiting(nb::module_& module) {
  // A forked child has none of the threads that were counted.
  ::pthread_atfork(nullptr, nullptr, [] { inside = 0; });
  module.def("end_waiting", &end_waiting);
}

}  // namespace quire::python
