// Enumerators by the names that the library gives them.
#pragma once

#include <nanobind/nanobind.h>

#include <initializer_list>
#include <string>

#include "quire/types.h"

namespace quire::python {

// Returns the enumerator called `name`, or throws ValueError listing all names.
template <class Enum>
Enum by_name(const std::string& name, const char* what, const char* (*name_of)(Enum),
             std::initializer_list<Enum> all) {
  std::string names;
  for (const Enum value : all) {
    if (name == name_of(value)) {
      return value;
    }
    names += std::string(names.empty() ? "'" : ", '") + name_of(value) + "'";
  }
  throw nanobind::value_error(
      (std::string(what) + " must be one of " + names + ", not '" + name + "'").c_str());
}

// "" for none. The package checks what programs give.
inline std::string compression_name(Compression compression) {
  constexpr const char* kNames[] = {"", "zstd", "lz4"};
  return kNames[compression.codec()];
}
inline Compression to_compression(const std::string& name) {
  return name == "zstd"  ? Compression::kZstd
         : name == "lz4" ? Compression::kLz4
                         : Compression::kNone;
}

}  // namespace quire::python
