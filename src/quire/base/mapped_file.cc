#include "quire/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <ios>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "quire/base/file_time.h"
#include "quire/base/str.h"
#include "quire/result.h"

namespace quire::base {
namespace {

Error io_error(const std::string& path, std::string_view doing, int reason) {
  return {.code = ErrorCode::kIo,
          .message = str_cat("cannot ", doing, " ", path, ": ", std::strerror(reason))};
}

// Closes the descriptor when it leaves scope; a mapping outlives its descriptor.
struct Descriptor {
  int fd = -1;
  explicit Descriptor(int descriptor) : fd(descriptor) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd >= 0) {
      ::close(fd);
    }
  }
};

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  // Non-blocking, so that a pipe in place of a file is refused and not waited for.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.fd < 0) {
    return io_error(path, "open", errno);
  }
  return map(file.fd, path, MappedUse::kOnce);
}

Result<MappedFile> MappedFile::map(int descriptor, const std::string& path, MappedUse use) {
  struct stat info{};
  if (::fstat(descriptor, &info) != 0) {
    return io_error(path, "open", errno);
  }
  if (!S_ISREG(info.st_mode)) {
    return {ErrorCode::kIo, str_cat("cannot read ", path, ": not a regular file")};
  }
  MappedFile mapped;
  mapped.path_ = path;
  mapped.modified_ns_ = base::modified_ns(info);
  if (info.st_size == 0) {
    return mapped;
  }
  const auto size = static_cast<std::size_t>(info.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (data == MAP_FAILED) {  // NOLINT: the macro casts
    return io_error(path, "map", errno);
  }
  ::madvise(data, size, use == MappedUse::kOnce ? MADV_SEQUENTIAL : MADV_HUGEPAGE);
  mapped.data_ = static_cast<const std::byte*>(data);
  mapped.size_ = size;
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      modified_ns_(other.modified_ns_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(modified_ns_, other.modified_ns_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);  // NOLINT: munmap takes void*
  }
}

void MappedFile::will_need(std::size_t first, std::size_t count) const {
  if (first < size_) {
    ::madvise(const_cast<std::byte*>(data_) + first,  // NOLINT: madvise takes void*
              std::min(count, size_ - first), MADV_WILLNEED);
  }
}

Result<std::string> read_file(const std::string& path, std::size_t max_bytes) {
  std::error_code failure;
  if (std::filesystem::is_directory(path, failure)) {
    return {ErrorCode::kIo, str_cat("cannot read ", path, ": is a directory")};
  }
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return io_error(path, "open", errno);
  }
  std::string text;
  std::string piece(std::size_t{1} << 16, '\0');
  while (in.read(piece.data(), static_cast<std::streamsize>(piece.size())), in.gcount() > 0) {
    text.append(piece.data(), static_cast<std::size_t>(in.gcount()));
    if (text.size() > max_bytes) {
      return {
          ErrorCode::kInvalidArgument,
          str_cat(path, " is larger than ", format_bytes(static_cast<std::int64_t>(max_bytes)))};
    }
  }
  if (in.bad()) {
    return io_error(path, "read", errno);
  }
  return text;
}

}  // namespace quire::base
