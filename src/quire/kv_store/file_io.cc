#include "quire/kv_store/file_io.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>  // renameat
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "quire/base/check.h"
#include "quire/base/home_path.h"
#include "quire/base/no_memory.h"
#include "quire/base/sha256.h"
#include "quire/base/str.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

constexpr int kReadFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;  // a pipe is refused, not waited for
constexpr int kFolderFlags = O_RDONLY | O_CLOEXEC | O_DIRECTORY;
constexpr mode_t kPrivateFile = 0600, kPrivateFolder = 0700;

Result<Descriptor> checked_regular(Descriptor file, const std::filesystem::path& path) {
  struct stat info{};
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0) {
    return io_error(path, "open", errno);
  }
  if (!S_ISREG(info.st_mode)) {
    return {ErrorCode::kIo, base::str_cat("cannot open ", path.string(), ": not a regular file")};
  }
  return file;
}

// Drops the first `bytes` of what `buffers` describe.
void drop_front(std::span<iovec>& buffers, std::size_t bytes) {
  while (!buffers.empty() && bytes >= buffers.front().iov_len) {
    bytes -= buffers.front().iov_len;
    buffers = buffers.subspan(1);
  }
  if (!buffers.empty()) {
    buffers.front().iov_base = static_cast<std::byte*>(buffers.front().iov_base) + bytes;
    buffers.front().iov_len -= bytes;
  }
}

// Moves all of `buffers` by `move` (preadv or pwritev), however little it takes at a time.
template <class Move>
Status move_all(std::span<iovec> buffers, std::int64_t offset, const std::filesystem::path& path,
                std::string_view doing, const Move& move) {
  drop_front(buffers, 0);
  while (!buffers.empty()) {
    const ssize_t moved = move(buffers, offset);
    if (moved < 0 && errno == EINTR) {
      continue;
    }
    if (moved < 0) {
      return io_error(path, doing, errno);
    }
    if (moved == 0) {
      return {ErrorCode::kCorrupt,
              base::str_cat(path.string(), " ends at byte ", offset, ", more should follow")};
    }
    offset += moved;
    drop_front(buffers, static_cast<std::size_t>(moved));
  }
  return {};
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

FolderLock::FolderLock(const Folder& folder) : fd_(folder.descriptor.get()) {
  while (::flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
  }
}

FolderLock::FolderLock(FolderLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FolderLock::~FolderLock() {
  if (fd_ >= 0) {
    ::flock(fd_, LOCK_UN);
  }
}

Error io_error(const std::filesystem::path& path, std::string_view doing, int reason) {
  if (reason == ENOMEM) {
    return base::no_memory("a file");
  }
  return {
      .code = reason == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
      .message = base::str_cat("cannot ", doing, " ", path.string(), ": ", std::strerror(reason)),
      .system_error = reason};
}

Result<std::filesystem::path> resolved(const std::filesystem::path& path) {
  std::error_code failure;
  const auto whole = std::filesystem::absolute(base::home_path(path.string()), failure);
  if (failure) {
    return io_error(path, "resolve", failure.value());
  }
  return whole.has_filename() ? whole : whole.parent_path();
}

Result<Folder> Folder::open(const std::filesystem::path& given) {
  QUIRE_TRY(const std::filesystem::path path, resolved(given));
  Folder folder{.descriptor = Descriptor(::open(path.c_str(), kFolderFlags)), .path = path};
  if (folder.descriptor.get() < 0) {
    return io_error(path, "open folder", errno);
  }
  return folder;
}

Result<Folder> Folder::open_in(const std::string& name, bool create) const {
  Folder folder{.path = path / name};
  if (create && ::mkdirat(descriptor.get(), name.c_str(), kPrivateFolder) == 0) {
    ::fsync(descriptor.get());  // makes sure that files of the new folder are found again
  } else if (create && errno != EEXIST) {
    return io_error(folder.path, "create folder", errno);
  }
  folder.descriptor =
      Descriptor(::openat(descriptor.get(), name.c_str(), kFolderFlags | O_NOFOLLOW));
  if (folder.descriptor.get() < 0) {
    return io_error(folder.path, "open folder", errno);
  }
  return folder;
}

Result<Descriptor> open_file(const Folder& folder, const std::string& name) {
  return checked_regular(
      Descriptor(::openat(folder.descriptor.get(), name.c_str(), kReadFlags | O_NOFOLLOW)),
      folder.path / name);
}

Result<Descriptor> open_file(const std::filesystem::path& path) {
  const std::string name = base::home_path(path.string());
  return checked_regular(Descriptor(::open(name.c_str(), kReadFlags)), name);
}

Result<Descriptor> duplicate(const Descriptor& file, const std::filesystem::path& path) {
  Descriptor second(::fcntl(file.get(), F_DUPFD_CLOEXEC, 0));
  if (second.get() < 0) {
    return io_error(path, "open", errno);
  }
  return second;
}

Result<FilePlace> place_of(const std::filesystem::path& path) {
  if (!path.has_filename()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("cannot write ", base::quoted(path.string()), ": it names no file")};
  }
  QUIRE_TRY(std::filesystem::path whole, resolved(path));
  std::error_code failure;
  const auto there = std::filesystem::status(whole, failure);
  if (std::filesystem::is_regular_file(there)) {
    const auto target = std::filesystem::canonical(whole, failure);
    if (failure) {
      return io_error(whole, "resolve", failure.value());
    }
    whole = target;
  } else if (std::filesystem::is_directory(there)) {
    return io_error(whole, "write", EISDIR);
  } else if (std::filesystem::exists(there)) {
    return {ErrorCode::kIo, base::str_cat("cannot write ", whole.string(), ": not a regular file")};
  }
  QUIRE_TRY(Folder folder, Folder::open(whole.parent_path()));
  return FilePlace{std::move(folder), whole.filename().string()};
}

Result<std::int64_t> file_size(const Descriptor& file, const std::filesystem::path& path) {
  struct stat info{};
  if (::fstat(file.get(), &info) != 0) {
    return io_error(path, "examine", errno);
  }
  return std::int64_t{info.st_size};
}

Status read_at(const Descriptor& file, std::span<iovec> buffers, std::int64_t offset,
               const std::filesystem::path& path) {
  return move_all(buffers, offset, path, "read", [&](std::span<iovec> rest, std::int64_t at) {
    return ::preadv(file.get(), rest.data(), static_cast<int>(rest.size()), at);
  });
}

Status read_at(const Descriptor& file, std::span<std::byte> bytes, std::int64_t offset,
               const std::filesystem::path& path) {
  iovec buffer{.iov_base = bytes.data(), .iov_len = bytes.size()};
  return read_at(file, {&buffer, 1}, offset, path);
}

Status write_at(const Descriptor& file, std::span<iovec> buffers, std::int64_t offset,
                const std::filesystem::path& path) {
  return move_all(buffers, offset, path, "write", [&](std::span<iovec> rest, std::int64_t at) {
    return ::pwritev(file.get(), rest.data(), static_cast<int>(rest.size()), at);
  });
}

Status write_at(const Descriptor& file, std::span<const std::byte> bytes, std::int64_t offset,
                const std::filesystem::path& path) {
  iovec buffer{.iov_base = const_cast<std::byte*>(bytes.data()),  // NOLINT: iovec has one type
               .iov_len = bytes.size()};
  return write_at(file, {&buffer, 1}, offset, path);
}

void append_buffer(std::span<const std::byte> bytes, std::span<iovec> buffers, std::size_t& used) {
  auto* data = const_cast<std::byte*>(bytes.data());  // NOLINT: iovec has one type for both ways
  if (used > 0) {
    iovec& last = buffers[used - 1];
    if (static_cast<std::byte*>(last.iov_base) + last.iov_len == data) {
      last.iov_len += bytes.size();
      return;
    }
  }
  QUIRE_CHECK(used < buffers.size(), "too many buffers");
  buffers[used++] = {.iov_base = data, .iov_len = bytes.size()};
}

namespace {

constexpr int kAttempts = 100;  // names are tried again, as other processes may get between

std::string path_of(const Descriptor& file) { return base::str_cat("/proc/self/fd/", file.get()); }

// Returns the one temporary name for all that write a file of this name.
std::string temporary_name(std::string_view name) {
  base::FieldHasher hasher;
  hasher.add(name);
  const auto digest = hasher.finish();
  return base::str_cat(kTemporaryPrefix, base::to_hex(std::span(digest).first(8)));
}

bool is_same_file(const Folder& folder, const std::string& name, const Descriptor& file) {
  struct stat by_name{}, open{};
  return ::fstatat(folder.descriptor.get(), name.c_str(), &by_name, AT_SYMLINK_NOFOLLOW) == 0 &&
         ::fstat(file.get(), &open) == 0 && by_name.st_ino == open.st_ino &&
         by_name.st_dev == open.st_dev;
}

// Removes the file unless its writer lives, who has it locked. Returns whether it is gone.
bool remove_left(const Folder& folder, const std::string& name) {
  const Descriptor left(::openat(folder.descriptor.get(), name.c_str(), kReadFlags | O_NOFOLLOW));
  return left.get() >= 0 && ::flock(left.get(), LOCK_EX | LOCK_NB) == 0 &&
         is_same_file(folder, name, left) &&
         ::unlinkat(folder.descriptor.get(), name.c_str(), 0) == 0;
}

}  // namespace

Result<NewFile> NewFile::create(const Folder& folder, std::string name) {
  NewFile file(folder, std::move(name));
  file.file_ = Descriptor(
      ::openat(folder.descriptor.get(), ".", O_RDWR | O_TMPFILE | O_CLOEXEC, kPrivateFile));
  // The name of the file comes by way of /proc, which may not be there.
  if (file.file_.get() < 0 || ::access(path_of(file.file_).c_str(), F_OK) != 0) {
    QUIRE_TRY_STATUS(file.create_named());
  }
  return file;
}

Status NewFile::create_named() {
  std::string temporary = temporary_name(name_);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const int made = ::openat(folder_->descriptor.get(), temporary.c_str(),
                              O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kPrivateFile);
    const int reason = made < 0 ? errno : 0;
    file_ = Descriptor(made);
    if (file_.get() >= 0) {
      const bool own = ::flock(file_.get(), LOCK_EX | LOCK_NB) == 0;  // else taken for left behind
      if (own && is_same_file(*folder_, temporary, file_)) {
        temporary_ = std::move(temporary);
        return {};
      }
    } else if (reason != EEXIST) {
      return io_error(path(), "create a temporary file for", reason);
    } else if (!remove_left(*folder_, temporary)) {
      std::array<std::uint8_t, 8> chance{};
      if (::getrandom(chance.data(), chance.size(), 0) != static_cast<ssize_t>(chance.size())) {
        return io_error(path(), "name a temporary file for", errno);
      }
      temporary = base::str_cat(kTemporaryPrefix, base::to_hex(chance));
    }
  }
  return io_error(path(), "create a temporary file for", EEXIST);
}

NewFile::NewFile(NewFile&& other) noexcept
    : folder_(other.folder_),
      name_(std::move(other.name_)),
      temporary_(std::exchange(other.temporary_, {})),
      file_(std::move(other.file_)) {}

NewFile::~NewFile() {
  if (!temporary_.empty()) {
    ::unlinkat(folder_->descriptor.get(), temporary_.c_str(), 0);
  }
}

void NewFile::set_direct(bool direct) const {
  const int flags = ::fcntl(file_.get(), F_GETFL);
  ::fcntl(file_.get(), F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT);
}

Status NewFile::write(std::span<iovec> buffers, std::int64_t offset) const {
  return move_all(buffers, offset, path(), "write", [&](std::span<iovec> rest, std::int64_t at) {
    const auto write = [&] {
      return ::pwritev(file_.get(), rest.data(), static_cast<int>(rest.size()), at);
    };
    const ssize_t written = write();
    if (written >= 0 || errno != EINVAL) {
      return written;
    }
    set_direct(false);
    return write();
  });
}

Result<Descriptor> NewFile::reopen() const {
  return temporary_.empty() ? open_file(path_of(file_)) : open_file(*folder_, temporary_);
}

void NewFile::start_writeback() const {
  ::sync_file_range(file_.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
}

// Links the file to its name. An existing file of the name is replaced by a rename, for which the
// new file gets a second name. A process that dies in between leaves that; the next one of the same
// name removes it.
Status NewFile::link_into_place() const {
  const int folder = folder_->descriptor.get();
  const std::string temporary = temporary_name(name_);
  const auto reason = [](int result) { return result == 0 ? 0 : errno; };  // 0: it went well
  const auto link = [&](const std::string& name) {
    return reason(
        ::linkat(AT_FDCWD, path_of(file_).c_str(), folder, name.c_str(), AT_SYMLINK_FOLLOW));
  };
  const auto replace = [&] {
    ::unlinkat(folder, temporary.c_str(), 0);
    if (const int linked = link(temporary); linked != 0) {
      return linked;
    }
    // NOLINTNEXTLINE(misc-include-cleaner): POSIX has it in <stdio.h>
    const int renamed = reason(::renameat(folder, temporary.c_str(), folder, name_.c_str()));
    return renamed == ENOENT ? EEXIST : renamed;  // another one has taken it for left behind
  };
  int failure = link(name_);
  std::optional<FolderLock> alone;  // others who replace something there take the same name
  if (failure == EEXIST) {
    alone.emplace(*folder_);
  }
  for (int attempt = 0; failure == EEXIST && attempt < kAttempts; ++attempt) {
    failure = replace();
  }
  ::unlinkat(folder, temporary.c_str(), 0);
  return failure == 0 ? Status() : Status(io_error(path(), "put into place", failure));
}

Status NewFile::commit(bool sync) {
  if (sync && ::fsync(file_.get()) != 0) {
    return io_error(path(), "sync", errno);
  }
  const int folder = folder_->descriptor.get();
  if (temporary_.empty()) {
    QUIRE_TRY_STATUS(link_into_place());
    // NOLINTNEXTLINE(misc-include-cleaner): POSIX has it in <stdio.h>
  } else if (::renameat(folder, temporary_.c_str(), folder, name_.c_str()) != 0) {
    return io_error(path(), "put into place", errno);
  }
  temporary_.clear();
  if (sync && ::fsync(folder) != 0) {
    return io_error(folder_->path, "sync folder", errno);
  }
  return {};
}

}  // namespace quire::kv_store
