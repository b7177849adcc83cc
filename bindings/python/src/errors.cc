#include "errors.h"

#include <nanobind/stl/string.h>

#include "quire/result.h"
#include "text.h"

namespace nb = nanobind;

namespace quire::python {
namespace {

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
    case ErrorCode::kInternal:
      break;
  }
  return "QuireError";
}

}  // namespace

void raise(const Error& error) {
  if (PyErr_Occurred() != nullptr) {  // a signal handler has raised: that is the reason
    throw nb::python_error();
  }
  const nb::object exception =
      nb::module_::import_("quire.errors").attr(class_of(error.code))(to_text(error.message));
  if (nb::hasattr(exception, "needed_bytes")) {
    exception.attr("chunk_id") =
        error.chunk_id.empty() ? nb::none() : nb::object(nb::str(error.chunk_id.c_str()));
    exception.attr("needed_bytes") = error.needed_bytes;
    exception.attr("free_bytes") = error.free_bytes;
  }
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

}  // namespace quire::python
