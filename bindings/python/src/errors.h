// Library errors as Python exceptions of quire.errors, with their fields.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "quire/result.h"

namespace quire::python {

// Makes refused memory an OutOfMemoryError wherever C++ throws it. Call once, with the GIL.
void bind_errors();

// Raises the exception that stands for error.code. Needs the GIL.
[[noreturn]] void raise(const Error& error);

// Returns the value, or throws the exception. Needs the GIL.
template <class T>
T unwrap(Result<T> result) {
  if (!result.ok()) {
    raise(result.error());
  }
  return std::move(result).value();
}

inline void unwrap(const Status& status) {
  if (!status.ok()) {
    raise(status.error());
  }
}

}  // namespace quire::python
