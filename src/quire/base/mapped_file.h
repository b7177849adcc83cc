// Files read whole, by mapping or by copying, with errors that name the path.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "quire/result.h"

namespace quire::base {

// A read-only private mapping of a whole regular file. Move only. The bytes stay valid while the
// object lives; a file that another process truncates meanwhile raises SIGBUS on access, as with
// every mapping, so checkpoints are copied into packed form while loading and not kept mapped.
class MappedFile {
 public:
  // kIo with path and reason when the file cannot be opened, is a directory, or cannot be mapped.
  [[nodiscard]] static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// The file's bytes as a string. kIo with path and reason; kInvalidArgument above `max_bytes`.
[[nodiscard]] Result<std::string> read_file(const std::filesystem::path& path,
                                            std::size_t max_bytes = std::size_t{256} << 20);

}  // namespace quire::base
