// Paths as the system takes them: bytes, whatever their encoding (os.fsencode).
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace quire::python {

[[nodiscard]] inline std::string to_path(const nanobind::bytes& path) {
  return {path.c_str(), path.size()};
}

}  // namespace quire::python
