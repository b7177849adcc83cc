// Files and folders by descriptor: positioned reads and writes that never come back short, and new
// files that appear under their name whole or not at all. Names are resolved inside an open folder
// and the last component is never followed, so that no link leads out of it.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "quire/base/folder_names.h"
#include "quire/result.h"

namespace quire::kv_store {

// Owns a file descriptor. Move only.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor();

  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_ = -1;
};

// `path` as an absolute one without a slash behind it, a leading "~" expanded: what it names stays
// the same when the working directory changes. kIo where there is none.
[[nodiscard]] Result<std::filesystem::path> resolved(const std::filesystem::path& path);

// An open folder; `path` is absolute.
struct Folder {
  Descriptor descriptor;
  std::filesystem::path path;

  // kNotFound when there is none, kIo otherwise; a link in place of the folder itself is followed,
  // since the caller named it. A leading "~" is the user's home folder, here and below.
  [[nodiscard]] static Result<Folder> open(const std::filesystem::path& path);
  // The folder `name` inside this one; a link is kIo. `create`: makes it (mode 0700) when missing.
  [[nodiscard]] Result<Folder> open_in(const std::string& name, bool create) const;
};

// Holds the lock of a folder, which nobody else has meanwhile. A store is set up under the lock of
// its folder, and wiped under that of its objects. `folder`'s descriptor must outlive the lock.
class FolderLock {
 public:
  explicit FolderLock(const Folder& folder);
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();

 private:
  int fd_;
};

// kIo: "cannot <doing> <path>: <reason of errno>"; kNotFound for a file that is not there.
[[nodiscard]] Error io_error(const std::filesystem::path& path, std::string_view doing, int reason);

using base::for_each_name;

// A regular file of `folder` for reading; a link, folder, pipe or device in its place is kIo.
[[nodiscard]] Result<Descriptor> open_file(const Folder& folder, const std::string& name);
// Opens a path of the caller's choice, whose links are followed.
[[nodiscard]] Result<Descriptor> open_file(const std::filesystem::path& path);

// A second descriptor of an open file.
[[nodiscard]] Result<Descriptor> duplicate(const Descriptor& file,
                                           const std::filesystem::path& path);

// Where a file of the caller's choice will be; links are followed.
struct FilePlace {
  Folder folder;
  std::string name;
};
// kInvalidArgument for a path that names no file, kIo for what a file must not replace: a folder, a
// device, a pipe.
[[nodiscard]] Result<FilePlace> place_of(const std::filesystem::path& path);

// Bytes of an open file.
[[nodiscard]] Result<std::int64_t> file_size(const Descriptor& file,
                                             const std::filesystem::path& path);

// Fills all of `buffers` from `offset` on; they are used up. At most 1024 buffers. kCorrupt when
// the file ends before, kIo for what the system refuses.
[[nodiscard]] Status read_at(const Descriptor& file, std::span<iovec> buffers, std::int64_t offset,
                             const std::filesystem::path& path);
[[nodiscard]] Status read_at(const Descriptor& file, std::span<std::byte> bytes,
                             std::int64_t offset, const std::filesystem::path& path);
[[nodiscard]] Status write_at(const Descriptor& file, std::span<iovec> buffers, std::int64_t offset,
                              const std::filesystem::path& path);
[[nodiscard]] Status write_at(const Descriptor& file, std::span<const std::byte> bytes,
                              std::int64_t offset, const std::filesystem::path& path);

// Appends `bytes` to `buffers`, growing the last buffer where they follow it in memory.
void append_buffer(std::span<const std::byte> bytes, std::span<iovec> buffers, std::size_t& used);

// A file (mode 0600) that is written without a name where the file system can, so that a process
// that dies leaves nothing, and gets its own by commit(). Elsewhere it has a temporary name
// (kTemporaryPrefix and what `name` says), which the next one of the same name takes over from a
// process that died. Not committed, it is removed.
class NewFile {
 public:
  // `folder` must outlive the object.
  [[nodiscard]] static Result<NewFile> create(const Folder& folder, std::string name);
  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&&) = delete;
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile();

  [[nodiscard]] const Descriptor& descriptor() const { return file_; }
  // Past the page cache (O_DIRECT) from now on, where the file system can. Without effect
  // otherwise.
  void set_direct(bool direct) const;
  // Writes like write_at. Bytes that cannot go past the page cache (not whole pages of file and
  // memory) go through it, and so does all that follows.
  [[nodiscard]] Status write(std::span<iovec> buffers, std::int64_t offset) const;
  // A second descriptor of what was written so far, for reading it back.
  [[nodiscard]] Result<Descriptor> reopen() const;
  // Where it will be, for messages.
  [[nodiscard]] std::filesystem::path path() const { return folder_->path / name_; }
  // Starts to bring what was written so far to the disk, without waiting.
  void start_writeback() const;
  // Replaces whatever has the name. `sync`: file, then folder are on the disk when this returns.
  [[nodiscard]] Status commit(bool sync);

 private:
  NewFile(const Folder& folder, std::string name) : folder_(&folder), name_(std::move(name)) {}
  [[nodiscard]] Status create_named();
  // Gives a file without a name its own.
  [[nodiscard]] Status link_into_place() const;
  const Folder* folder_;
  std::string name_;
  std::string temporary_;  // empty: without a name, committed or moved from
  Descriptor file_;
};

inline constexpr std::string_view kTemporaryPrefix = ".tmp-";

}  // namespace quire::kv_store
