// A fuzzer's bytes as an open file.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "quire/kv_store/file_io.h"
#include "quire/kv_store/kv_file_format.h"

namespace quire::kv_store {

// The first byte says how the rest is meant: 0, a whole file; else the length of a header (2
// bytes), the header and what follows it, which get a right preamble of this kind first, since
// chance would never find it, with that byte for a version. Nothing for no bytes, or without memory
// for the file.
inline std::optional<Descriptor> fuzzed_file(FileKind kind, std::span<const std::byte> bytes) {
  if (bytes.empty()) {
    return std::nullopt;
  }
  std::vector<std::byte> content;
  auto rest = bytes.subspan(1);
  if (bytes[0] != std::byte{0} && rest.size() >= 2) {
    const auto wanted =
        std::to_integer<std::size_t>(rest[0]) + 256 * std::to_integer<std::size_t>(rest[1]);
    rest = rest.subspan(2);
    const auto header = rest.first(std::min(wanted, rest.size()));
    content = encode_preamble({.kind = kind,
                               .version = std::to_integer<std::uint32_t>(bytes[0]),
                               .header_bytes = header.size(),
                               .file_bytes = kPreambleBytes + rest.size(),
                               .header_checksum = checksum(header)});
  }
  content.insert(content.end(), rest.begin(), rest.end());
  Descriptor memory(::memfd_create("fuzz", MFD_CLOEXEC));
  if (!write_at(memory, content, 0, "fuzz").ok()) {
    return std::nullopt;
  }
  return memory;
}

}  // namespace quire::kv_store
