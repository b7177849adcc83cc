// Any bytes as a KV file: an error, or content whose KV can be read and verified. The first byte
// says how the rest is meant: 0, a whole file; else the length of a header (2 bytes), the header
// and what follows it, to be sealed with right checksums first, since chance would never find them.
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_format.h"
#include "quire/kv_store/paged_store.h"

namespace {

using namespace quire::kv_store;  // NOLINT

constexpr std::int64_t kMaxShelfBytes = std::int64_t{1} << 20;

std::vector<std::byte> sealed(std::span<const std::byte> bytes) {
  if (bytes.size() < 2) {
    return {};
  }
  const auto wanted =
      std::to_integer<std::size_t>(bytes[0]) + 256 * std::to_integer<std::size_t>(bytes[1]);
  const auto rest = bytes.subspan(2);
  const auto header = rest.first(std::min(wanted, rest.size()));
  std::vector<std::byte> file = encode_preamble({.header_bytes = header.size(),
                                                 .file_bytes = kPreambleBytes + rest.size(),
                                                 .header_checksum = checksum(header)});
  file.insert(file.end(), rest.begin(), rest.end());
  return file;
}

void read_all(const KVFile& file) {
  const auto& geometry = file.content().geometry;
  if (file.payload_bytes() > kMaxShelfBytes) {
    return;
  }
  for (int run = 0; run < static_cast<int>(file.content().runs.size()); ++run) {
    const std::int32_t blocks =
        file.content().runs[static_cast<std::size_t>(run)].num_blocks(geometry.block_tokens);
    auto shelves = PagedStore::create(geometry, blocks);
    std::vector<quire::BlockId> to;
    for (std::int32_t i = blocks; i > 0; --i) {
      to.push_back({i - 1});
    }
    for (int layer = 0; shelves.ok() && layer < geometry.layers; ++layer) {
      static_cast<void>(file.read_layer(run, layer, 0, to, *shelves));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {  // NOLINT
  const auto bytes = std::as_bytes(std::span(data, size));
  if (bytes.empty()) {
    return 0;
  }
  std::vector<std::byte> content(bytes.begin() + 1, bytes.end());
  if (bytes[0] != std::byte{0}) {
    content = sealed(bytes.subspan(1));
  }
  Descriptor memory(::memfd_create("fuzz", MFD_CLOEXEC));
  if (!write_at(memory, content, 0, "fuzz").ok()) {
    return 0;
  }
  const auto file = KVFile::open(std::move(memory), "fuzz");
  if (file.ok()) {
    static_cast<void>(file->verify());
    file->will_need(0, 0);
    read_all(*file);
  }
  return 0;
}
