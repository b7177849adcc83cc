// GgufValue: one value of a GGUF file's metadata, and all of them by key.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace quire::weights {

// Stands for a value that the format allows and that is not kept: whoever asks for its key gets an
// error.
struct GgufUnkept {
  const char* what;  // "an array of arrays", "an integer above 2^63 - 1"
};

// Holds a metadata value. Integers of every width are kept as int64, floats as double; arrays are
// homogeneous, truth values in arrays are 0 and 1.
using GgufValue = std::variant<std::int64_t, double, bool, std::string, std::vector<std::int64_t>,
                               std::vector<double>, std::vector<std::string>, GgufUnkept>;

using GgufMetadata = std::map<std::string, GgufValue, std::less<>>;

}  // namespace quire::weights
