#include "errors.h"

#include <exception>
#include <new>
#include <stdexcept>
#include <string_view>

#include "casters.h"  // IWYU pragma: keep (conversions)
#include "quire/result.h"
#include "text.h"

namespace nb = nanobind;

namespace quire::python {
namespace {

// quire.errors.OutOfMemoryError, looked up before memory is short. Lives as long as the process.
PyObject* out_of_memory = nullptr;

// Raises OutOfMemoryError for std::bad_alloc and for sizes that no container can have.
void translate_refused_memory(const std::exception_ptr& exception, void* /*payload*/) {
  const char* const message = "memory was refused; nothing has changed";
  try {
    std::rethrow_exception(exception);
  } catch (const std::bad_alloc&) {
    PyErr_SetString(out_of_memory, message);
  } catch (const std::length_error&) {
    PyErr_SetString(out_of_memory, message);
  }
}

const char* class_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "ValueError";
    case ErrorCode::kNotFound:
      return "ChunkNotFoundError";
    case ErrorCode::kIncompatible:
      return "IncompatibleChunksError";
    case ErrorCode::kInvalidComposition:
      return "InvalidCompositionError";
    case ErrorCode::kOverflow:
      return "KVOverflowError";
    case ErrorCode::kOutOfBlocks:
      return "OutOfMemoryError";
    case ErrorCode::kCancelled:
      return "CancelledError";
    case ErrorCode::kClosed:
      return "ClosedError";
    case ErrorCode::kUnsupported:
      return "UnsupportedError";
    case ErrorCode::kCorrupt:
    case ErrorCode::kIo:
      return "OSError";
    case ErrorCode::kDevice:
      return "DeviceError";
    case ErrorCode::kQueueFull:
      return "QueueFullError";
    case ErrorCode::kInternal:
      break;
  }
  return "QuireError";
}

// Returns the exception. One of the system has the class of its errno, such as FileNotFoundError.
nb::object exception_of(const Error& error) {
  const nb::object named = nb::module_::import_("quire.errors").attr(class_of(error.code));
  const bool is_of_system = class_of(error.code) == std::string_view("OSError");
  if (!is_of_system || error.system_error == 0) {
    return named(to_text(error.message));
  }
  nb::object exception = named(error.system_error, "").type()(to_text(error.message));
  exception.attr("errno") = error.system_error;
  return exception;
}

}  // namespace

void bind_errors() {
  out_of_memory =
      nb::object(nb::module_::import_("quire.errors").attr("OutOfMemoryError")).release().ptr();
  nb::register_exception_translator(&translate_refused_memory);
}

void raise(const Error& error) {
  if (PyErr_Occurred() != nullptr) {  // a signal handler has raised: that is the reason
    throw nb::python_error();
  }
  const nb::object exception = exception_of(error);
  if (nb::hasattr(exception, "needed_bytes")) {
    exception.attr("chunk_id") =
        error.chunk_id.empty() ? nb::none() : nb::object(nb::str(error.chunk_id.c_str()));
    exception.attr("needed_bytes") = error.needed_bytes;
    exception.attr("free_bytes") = error.free_bytes;
    if (error.code == ErrorCode::kQueueFull) {
      exception.attr("requests") = error.requests;
    }
  }
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

}  // namespace quire::python
