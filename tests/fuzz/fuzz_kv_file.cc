// Any bytes as a KV file (fuzzed_file.h): an error, or content whose KV can be read and verified.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "fuzzed_file.h"
#include "quire/base/ids.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/kv_file_format.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/saved_states.h"
#include "quire/tensor/state_view.h"

namespace {

using namespace quire::kv_store;  // NOLINT

constexpr std::int64_t kMaxPoolBytes = std::int64_t{1} << 20;

void read_all(const KVFile& file) {
  const auto& geometry = file.content().geometry;
  if (file.payload_bytes() > kMaxPoolBytes) {
    return;
  }
  const SavedStates& states = file.content().states;
  std::vector<quire::tensor::StatePart> parts = states.parts;
  std::int64_t bytes = 0;
  for (quire::tensor::StatePart& part : parts) {
    part.offset = bytes;
    bytes += part.bytes;
  }
  std::vector<std::byte> state(static_cast<std::size_t>(std::min(bytes, kMaxPoolBytes)));
  for (std::size_t i = 0; i < states.at.size() && bytes <= kMaxPoolBytes; ++i) {
    static_cast<void>(file.read_state(i, parts, state));
  }
  for (int run = 0; run < static_cast<int>(file.content().runs.size()); ++run) {
    const SavedRun& saved = file.content().runs[static_cast<std::size_t>(run)];
    const std::int32_t blocks = saved.num_blocks_with_kv(geometry.block_tokens);
    auto pool =
        PagedPool::create(file.content().geometry_of(static_cast<std::size_t>(run)), blocks);
    std::vector<quire::BlockId> to;
    for (std::int32_t i = blocks; i > 0; --i) {
      to.push_back({i - 1});
    }
    for (int layer = 0; pool.ok() && layer < geometry.layers; ++layer) {
      const std::int32_t lost = saved.lost_in(geometry, layer);
      static_cast<void>(file.read_layer(
          run, layer, lost,
          std::span(to).subspan(static_cast<std::size_t>(lost - saved.lost_blocks)), *pool));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {  // NOLINT
  auto memory = fuzzed_file(FileKind::kKV, std::as_bytes(std::span(data, size)));
  if (!memory) {
    return 0;
  }
  const auto file = KVFile::open(*std::move(memory), "fuzz");
  if (file.ok()) {
    static_cast<void>(file->verify());
    read_all(*file);
  }
  return 0;
}
