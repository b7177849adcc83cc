// For tests of wipes: what is left of a text in a folder.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "quire/kv_store/test_support.h"

namespace quire::kv_store {

// Returns whether some file of the folder holds the text.
inline bool holds_text(const std::filesystem::path& folder, const std::string& text) {
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder)) {
    if (!file.is_regular_file()) {
      continue;
    }
    const std::vector<char> bytes = file_bytes_of(file.path());
    if (std::ranges::search(bytes, text).begin() != bytes.end()) {
      return true;
    }
  }
  return false;
}

}  // namespace quire::kv_store
