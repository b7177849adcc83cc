#include "quire/kv_store/file_front.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "quire/base/str.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/kv_file_format.h"
#include "quire/result.h"

namespace quire::kv_store {

Result<FileFront> read_front(FileKind kind, const Descriptor& file,
                             const std::filesystem::path& path) {
  QUIRE_TRY(const std::int64_t bytes, file_size(file, path));
  return read_front(kind, file, {.bytes = bytes}, path);
}

Result<FileFront> read_front(FileKind kind, const Descriptor& file, const FileRange& range,
                             const std::filesystem::path& path) {
  std::array<std::byte, kPreambleBytes> bytes{};
  const auto there = std::span(bytes).first(
      std::min(bytes.size(), static_cast<std::size_t>(std::max<std::int64_t>(range.bytes, 0))));
  QUIRE_TRY_STATUS(read_at(file, there, range.offset, path));
  const auto preamble = parse_preamble(kind, there, range.bytes);
  if (!preamble.ok()) {
    return {preamble.error().code, base::str_cat(path.string(), ": ", preamble.error().message)};
  }
  FileFront front{.version = preamble->version, .file_bytes = range.bytes};
  front.header.resize(static_cast<std::size_t>(preamble->header_bytes));
  QUIRE_TRY_STATUS(read_at(file, front.header, range.offset + std::int64_t{kPreambleBytes}, path));
  if (checksum(front.header) != preamble->header_checksum) {
    return {ErrorCode::kCorrupt,
            base::str_cat(path.string(), ": the checksum of its header is wrong")};
  }
  return front;
}

Status write_front(FileKind kind, std::span<const std::byte> header, std::int64_t file_bytes,
                   const NewFile& file, std::uint32_t version) {
  std::vector<std::byte> front =
      encode_preamble({.kind = kind,
                       .version = version,
                       .header_bytes = header.size(),
                       .file_bytes = static_cast<std::uint64_t>(file_bytes),
                       .header_checksum = checksum(header)});
  front.insert(front.end(), header.begin(), header.end());
  return write_at(file.descriptor(), front, 0, file.path());
}

Status check_padding(const Descriptor& file, std::int64_t begin, std::int64_t end,
                     const std::filesystem::path& path) {
  std::array<std::byte, kPayloadAlignment> bytes{};
  for (std::int64_t at = begin; at < end;) {
    const auto slice =
        std::span(bytes).first(static_cast<std::size_t>(std::min(kPayloadAlignment, end - at)));
    QUIRE_TRY_STATUS(read_at(file, slice, at, path));
    if (!std::ranges::all_of(slice, [](std::byte byte) { return byte == std::byte{0}; })) {
      return {ErrorCode::kCorrupt, base::str_cat(path.string(), ": what fills it up to byte ", end,
                                                 " is not zero; the file is damaged")};
    }
    at += static_cast<std::int64_t>(slice.size());
  }
  return {};
}

}  // namespace quire::kv_store
