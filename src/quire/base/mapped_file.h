// Files of strangers, opened, mapped or copied. Errors name the path.
//
// Thread rule: any number of threads may read one object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "quire/result.h"

namespace quire::base {

// Owns a file descriptor. Move only.
class OpenFile {
 public:
  // Opens a regular file for reading. Returns kIo with path and reason for anything else: a folder,
  // a pipe or a device. Never waits for a pipe or device.
  [[nodiscard]] static Result<OpenFile> open(const std::string& path);

  OpenFile() = default;
  OpenFile(OpenFile&& other) noexcept;
  OpenFile& operator=(OpenFile&& other) noexcept;
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile();

  [[nodiscard]] int get() const { return descriptor_; }
  // Reads up to out.size() bytes from `offset` on and returns how many: fewer where the file ends.
  // Returns kIo when the system refuses.
  [[nodiscard]] Result<std::size_t> read(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  int descriptor_ = -1;
};

// Hints to the system how a mapping is read: once from first to last, or all of it again and again.
enum class MappedUse : std::uint8_t { kOnce, kAgain };

// Owns a read-only private mapping of a whole regular file. Move only. The bytes stay valid while
// the object lives. Access raises SIGBUS if another process truncates the file meanwhile. So only
// files that no other program has a reason to write to are mapped, and of checkpoints the headers
// alone.
class MappedFile {
 public:
  // Opens and maps a file. Returns kIo as OpenFile::open does, and when it cannot be mapped,
  // kOutOfBlocks where there is no memory for the mapping.
  [[nodiscard]] static Result<MappedFile> open(const std::string& path);
  // Maps an open file, which may be closed afterwards. `path` is for messages.
  [[nodiscard]] static Result<MappedFile> map(int descriptor, const std::string& path,
                                              MappedUse use);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Asks the system to bring `count` bytes from `first` on into memory in the background. `first`
  // is a multiple of the page size. Bytes behind the end of the file are ignored.
  void will_need(std::size_t first, std::size_t count) const;

  [[nodiscard]] const std::string& path() const { return path_; }
  // Returns when the file was last written before it was mapped, in nanoseconds since 1970.
  [[nodiscard]] std::int64_t modified_ns() const { return modified_ns_; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::int64_t modified_ns_ = 0;
};

// Returns the bytes of a regular file. Fails with kIo as OpenFile::open does, and with
// kInvalidArgument above `max_bytes`.
[[nodiscard]] Result<std::string> read_file(const std::string& path,
                                            std::size_t max_bytes = std::size_t{256} << 20);
// Returns true if `path` is a regular file that begins with `magic`.
[[nodiscard]] bool file_begins_with(const std::string& path, std::string_view magic);

}  // namespace quire::base
