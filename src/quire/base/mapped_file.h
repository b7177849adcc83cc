// Files of strangers, opened and read whole, by mapping or by copying. Errors name the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "quire/result.h"

namespace quire::base {

// A file descriptor that is closed with the object. Move only.
class OpenFile {
 public:
  // Opens a regular file for reading. kIo with path and reason for anything else: a folder, and a
  // pipe or device, which is not waited for.
  [[nodiscard]] static Result<OpenFile> open(const std::string& path);

  OpenFile() = default;
  OpenFile(OpenFile&& other) noexcept;
  OpenFile& operator=(OpenFile&& other) noexcept;
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile();

  [[nodiscard]] int get() const { return descriptor_; }
  // Reads up to out.size() bytes from `offset` on; fewer where the file ends before. kIo as above.
  [[nodiscard]] Result<std::size_t> read(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  int descriptor_ = -1;
};

// How a mapping is read: a hint to the system.
enum class MappedUse : std::uint8_t { kOnce, kAgain };  // first to last; all of it, again and again

// A read-only private mapping of a whole regular file. Move only. The bytes stay valid while the
// object lives; a file that another process truncates meanwhile raises SIGBUS on access, as with
// every mapping, so only files that nobody but us has a reason to write to are kept mapped: of
// checkpoints the headers alone are read so.
class MappedFile {
 public:
  // As OpenFile::open; kIo also when the file cannot be mapped.
  [[nodiscard]] static Result<MappedFile> open(const std::string& path);
  // The same of an open file, which may be closed afterwards; `path` is for messages.
  [[nodiscard]] static Result<MappedFile> map(int descriptor, const std::string& path,
                                              MappedUse use);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Asks the system to bring these bytes, cut at the end of the file, into memory meanwhile.
  // `first` is a multiple of the page size.
  void will_need(std::size_t first, std::size_t count) const;

  [[nodiscard]] const std::string& path() const { return path_; }
  // When the file was last written to, as it was mapped: nanoseconds since 1970.
  [[nodiscard]] std::int64_t modified_ns() const { return modified_ns_; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::int64_t modified_ns_ = 0;
};

// Returns the bytes of a regular file. kIo as OpenFile::open; kInvalidArgument above `max_bytes`.
[[nodiscard]] Result<std::string> read_file(const std::string& path,
                                            std::size_t max_bytes = std::size_t{256} << 20);
// Returns whether a regular file is there that begins with `magic`.
[[nodiscard]] bool file_begins_with(const std::string& path, std::string_view magic);

}  // namespace quire::base
