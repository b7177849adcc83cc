// Preamble and header, the front of every file of ours: read with their checksums compared,
// written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "quire/kv_store/file_io.h"
#include "quire/kv_store/kv_file_format.h"
#include "quire/result.h"

namespace quire::kv_store {

struct FileFront {
  std::uint32_t version = 1;
  std::vector<std::byte> header;  // header as it was written
  std::int64_t file_bytes = 0;
};

// A file of ours in the middle of another one.
struct FileRange {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
};

// Reads the front of a file. Fails with kCorrupt, kUnsupported or kIo naming `path`. Allocates at
// most the size of the file.
[[nodiscard]] Result<FileFront> read_front(FileKind kind, const Descriptor& file,
                                           const std::filesystem::path& path);
[[nodiscard]] Result<FileFront> read_front(FileKind kind, const Descriptor& file,
                                           const FileRange& range,
                                           const std::filesystem::path& path);
[[nodiscard]] Status write_front(FileKind kind, std::span<const std::byte> header,
                                 std::int64_t file_bytes, const NewFile& file,
                                 std::uint32_t version = 1);

// Returns kCorrupt where a byte of [begin, end), the padding before a page, is not zero.
[[nodiscard]] Status check_padding(const Descriptor& file, std::int64_t begin, std::int64_t end,
                                   const std::filesystem::path& path);

}  // namespace quire::kv_store
