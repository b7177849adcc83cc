// Files and folders by descriptor. Positioned reads and writes never come back short. A new file
// appears under its name whole or not at all. Names are resolved inside an open folder and the last
// component is never followed, so that no link leads out of it.
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

// Returns `path` as an absolute path without a slash at its end, with a leading "~" expanded. It
// stays valid when the working directory changes. kIo if there is no working directory.
[[nodiscard]] Result<std::filesystem::path> resolved(const std::filesystem::path& path);

// An open folder; `path` is absolute.
struct Folder {
  Descriptor descriptor;
  std::filesystem::path path;

  // Opens a folder. A link in place of the folder itself is followed, since the caller named it. A
  // leading "~" is the user's home folder, here and below. kNotFound when there is none, kIo
  // otherwise.
  [[nodiscard]] static Result<Folder> open(const std::filesystem::path& path);
  // Opens the folder `name` inside this one; a link is kIo. `create`: makes it (mode 0700) when
  // missing.
  [[nodiscard]] Result<Folder> open_in(const std::string& name, bool create) const;
};

// Holds the lock of a folder, which nobody else has meanwhile. A store is set up under its folder's
// lock, and wiped under the lock of its objects. `folder`'s descriptor must outlive the lock.
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

// Makes the error "cannot <doing> <path>: <reason of errno>": kNotFound for a file that does not
// exist, else kIo.
[[nodiscard]] Error io_error(const std::filesystem::path& path, std::string_view doing, int reason);

using base::for_each_name;

// Opens a regular file of `folder` for reading; a link, folder, pipe or device in its place is kIo.
[[nodiscard]] Result<Descriptor> open_file(const Folder& folder, const std::string& name);
// Opens a path of the caller's choice, whose links are followed.
[[nodiscard]] Result<Descriptor> open_file(const std::filesystem::path& path);

// Returns a second descriptor of an open file.
[[nodiscard]] Result<Descriptor> duplicate(const Descriptor& file,
                                           const std::filesystem::path& path);

// Folder and name of a file of the caller's choice; links are followed.
struct FilePlace {
  Folder folder;
  std::string name;
};
// Finds the place of a new file. kInvalidArgument for a path that names no file; kIo for a folder,
// device or pipe, which a file must not replace.
[[nodiscard]] Result<FilePlace> place_of(const std::filesystem::path& path);

// Returns the size of an open file in bytes.
[[nodiscard]] Result<std::int64_t> file_size(const Descriptor& file,
                                             const std::filesystem::path& path);

// Reads all of `buffers` from `offset` on, and changes them; write_at writes them. At most 1024
// buffers. kCorrupt when the file ends before, kIo when the system refuses.
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

// A new file (mode 0600). Where the file system can, it has no name until commit(), so that a
// process that dies leaves nothing. Elsewhere it has a temporary name, made of kTemporaryPrefix and
// a hash of `name`. After a process that died, the next file of that name takes it over. A file
// that is not committed is removed.
class NewFile {
 public:
  // Makes a file that commit() will call `name`. `folder` must outlive the object.
  [[nodiscard]] static Result<NewFile> create(const Folder& folder, std::string name);
  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&&) = delete;
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile();

  [[nodiscard]] const Descriptor& descriptor() const { return file_; }
  // Writes past the page cache (O_DIRECT) from now on, where the file system can. Has no effect
  // elsewhere.
  void set_direct(bool direct) const;
  // Writes like write_at. Bytes that cannot go past the page cache (not whole pages of file and
  // memory) go through it, and so does all that follows.
  [[nodiscard]] Status write(std::span<iovec> buffers, std::int64_t offset) const;
  // Returns a second descriptor, for reading back what was written so far.
  [[nodiscard]] Result<Descriptor> reopen() const;
  // Returns the path that it will have, for messages.
  [[nodiscard]] std::filesystem::path path() const { return folder_->path / name_; }
  // Starts to bring what was written so far to the disk, without waiting.
  void start_writeback() const;
  // Gives the file its name, and replaces a file of that name. `sync`: file and folder are on the
  // disk when this returns.
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
