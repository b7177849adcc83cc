#include "quire/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "quire/base/file_time.h"
#include "quire/base/no_memory.h"
#include "quire/base/str.h"
#include "quire/result.h"

namespace quire::base {
namespace {

Error io_error(const std::string& path, std::string_view doing, int reason) {
  return {.code = ErrorCode::kIo,
          .message = str_cat("cannot ", doing, " ", path, ": ", std::strerror(reason)),
          .system_error = reason};
}

Status check_regular(const struct stat& info, const std::string& path) {
  if (S_ISREG(info.st_mode)) {
    return {};
  }
  return {ErrorCode::kIo,
          str_cat("cannot read ", path,
                  S_ISDIR(info.st_mode) ? ": is a directory" : ": not a regular file")};
}

}  // namespace

Result<OpenFile> OpenFile::open(const std::string& path) {
  OpenFile file;
  file.path_ = path;
  // Non-blocking, so that a pipe in place of a file is refused and not waited for.
  file.descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  struct stat info{};
  if (file.descriptor_ < 0 || ::fstat(file.descriptor_, &info) != 0) {
    return io_error(path, "open", errno);
  }
  QUIRE_TRY_STATUS(check_regular(info, path));
  return file;
}

OpenFile::OpenFile(OpenFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

OpenFile& OpenFile::operator=(OpenFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

OpenFile::~OpenFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

Result<std::size_t> OpenFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = ::pread(descriptor_, out.data() + done, out.size() - done,
                                static_cast<off_t>(offset + done));
    if (got < 0 && errno != EINTR) {
      return io_error(path_, "read", errno);
    }
    if (got == 0) {
      break;
    }
    done += got > 0 ? static_cast<std::size_t>(got) : 0;
  }
  return done;
}

Result<MappedFile> MappedFile::open(const std::string& path) {
  QUIRE_TRY(const OpenFile file, OpenFile::open(path));
  return map(file.get(), path, MappedUse::kOnce);
}

Result<MappedFile> MappedFile::map(int descriptor, const std::string& path, MappedUse use) {
  struct stat info{};
  if (::fstat(descriptor, &info) != 0) {
    return io_error(path, "open", errno);
  }
  QUIRE_TRY_STATUS(check_regular(info, path));
  MappedFile mapped;
  mapped.path_ = path;
  mapped.modified_ns_ = base::modified_ns(info);
  if (info.st_size == 0) {
    return mapped;
  }
  const auto size = static_cast<std::size_t>(info.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (data == MAP_FAILED) {  // NOLINT: the macro casts
    if (errno == ENOMEM) {
      return no_memory("mapping a file");
    }
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
  QUIRE_TRY(const OpenFile file, OpenFile::open(path));
  std::string text;
  std::string piece(std::size_t{1} << 16, '\0');
  while (true) {  // its size is not asked for: files that the system makes up say 0
    QUIRE_TRY(const std::size_t got,
              file.read(text.size(), std::as_writable_bytes(std::span(piece))));
    text.append(piece, 0, got);
    if (text.size() > max_bytes) {
      return {
          ErrorCode::kInvalidArgument,
          str_cat(path, " is larger than ", format_bytes(static_cast<std::int64_t>(max_bytes)))};
    }
    if (got < piece.size()) {
      return text;
    }
  }
}

bool file_begins_with(const std::string& path, std::string_view magic) {
  const auto file = OpenFile::open(path);
  std::string first(magic.size(), '\0');
  if (!file.ok()) {
    return false;
  }
  const auto got = file->read(0, std::as_writable_bytes(std::span(first)));
  return got.ok() && *got == magic.size() && first == magic;
}

}  // namespace quire::base
