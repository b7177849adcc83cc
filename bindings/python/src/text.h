// Text as Python holds it.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace quire::python {

// Returns text of whatever bytes: names and paths have those that somebody gave them. Bytes that
// are not UTF-8 become U+FFFD.
[[nodiscard]] inline nanobind::object to_text(const std::string& bytes) {
  return nanobind::steal(
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
}

}  // namespace quire::python
