// Any bytes as a weights file (fuzzed_file.h): an error, or weights whose every row can be
// unpacked.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fuzzed_file.h"
#include "quire/base/check.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/packed_part.h"
#include "quire/kernels/packed_weights.h"
#include "quire/kv_store/kv_file_format.h"
#include "quire/kv_store/weights_file.h"

namespace {

using namespace quire::kv_store;  // NOLINT

void unpack(const quire::kernels::PackedPart& part) {
  if (!part.format) {
    QUIRE_CHECK(part.bytes.size() == static_cast<std::size_t>(part.columns) * 4, "a whole vector");
    return;
  }
  const auto weights =
      quire::kernels::PackedWeights::view(*part.format, part.columns, part.depth, part.bytes);
  std::vector<float> row(static_cast<std::size_t>(part.depth));
  weights.unpack_row(0, row);
  weights.unpack_row(part.columns - 1, row);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {  // NOLINT
  static quire::device::ThreadPool pool(1);
  auto memory = fuzzed_file(FileKind::kWeights, std::as_bytes(std::span(data, size)));
  if (!memory) {
    return 0;
  }
  const auto file = WeightsFile::open(*memory, "fuzz");
  if (file.ok()) {
    static_cast<void>(file->verify(pool));
    std::ranges::for_each(file->content().parts, unpack);
  }
  return 0;
}
