#include "quire/base/temporary_folder.h"

#include <stdlib.h>

#include <filesystem>
#include <new>
#include <string>
#include <system_error>

namespace quire::base {
namespace {

std::filesystem::path system_folder() {
  std::error_code failure;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(failure);
  return failure ? std::filesystem::path("/tmp") : folder;
}

}  // namespace

TemporaryFolder::TemporaryFolder() : TemporaryFolder(system_folder()) {}

TemporaryFolder::TemporaryFolder(const std::filesystem::path& parent) {
  std::string name = (parent / "quire-XXXXXX").string();
  if (::mkdtemp(name.data()) != nullptr) {
    path_ = name;
  }
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  try {
    if (!path_.empty()) {
      std::filesystem::remove_all(path_, ignored);
    }
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): what is left is temporary
  }
}

}  // namespace quire::base
