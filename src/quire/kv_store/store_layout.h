// Names inside a store's folder.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace quire::kv_store {

inline constexpr const char* kFormatName = "format";
inline constexpr const char* kIndexName = "index.sqlite";
inline constexpr std::string_view kLogEnding = "-wal";  // SQLite's, behind the name of the index
inline constexpr const char* kObjectsName = "objects";
inline constexpr const char* kWeightsName = "weights";
inline constexpr std::string_view kObjectEnding = ".qkv";
inline constexpr std::string_view kWeightsEnding = ".qw";
// Digits of the hash that name the folder of an object.
inline constexpr std::size_t kFolderDigits = 2;

[[nodiscard]] inline std::string object_file_name(std::string_view hash) {
  return std::string(hash).append(kObjectEnding);
}
[[nodiscard]] inline std::string weights_file_name(std::string_view key) {
  return std::string(key).append(kWeightsEnding);
}

}  // namespace quire::kv_store
