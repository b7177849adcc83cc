// TemporaryFolder: a new empty folder, private to the user, removed with all its content.
#pragma once

#include <filesystem>

namespace quire::base {

class TemporaryFolder {
 public:
  // Makes a folder under the system's folder for temporary files, or under `parent`. When it cannot
  // be made, path() is empty.
  TemporaryFolder();
  explicit TemporaryFolder(const std::filesystem::path& parent);
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace quire::base
