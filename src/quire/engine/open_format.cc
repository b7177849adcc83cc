#include "quire/engine/open_format.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "quire/base/str.h"
#include "quire/device/accelerator.h"
#include "quire/kv/format.h"
#include "quire/kv/types.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/result.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::engine {
namespace {

// Returns the sizes of layers, each once; none where all layers are alike.
std::vector<tensor::KVLayerSize> distinct_sizes(const tensor::KVGeometry& geometry) {
  std::vector<tensor::KVLayerSize> sizes;
  for (const tensor::KVLayerSize& size : geometry.layer_sizes) {
    if (std::ranges::find(sizes, size) == sizes.end()) {
      sizes.push_back(size);
    }
  }
  return sizes;
}

}  // namespace

Status check_block_tokens(const tensor::KVGeometry& geometry) {
  if (geometry.fits_format()) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat("block_tokens is ", geometry.block_tokens, "; kv_dtype \"",
                        tensor::kv_format_name(geometry.format, geometry.dtype),
                        "\" takes multiples of ", tensor::kInt4RunTokens)};
}

Status add_open_format(kv_store::PagedPool& pool, kv::LedgerConfig& ledger,
                       std::int64_t open_blocks) {
  tensor::KVGeometry open = pool.geometry();
  open.format = tensor::KVFormat::kPlain;
  QUIRE_TRY(const kv::FormatId open_format, pool.add_format(open));
  ledger.formats = pool.block_formats();
  ledger.formats.front().open = open_format;
  const std::int64_t own_bytes = ledger.block_bytes(kv::kOwnFormat);
  const std::int64_t open_bytes = ledger.block_bytes(open_format);
  // A slab holds two blocks of either format.
  const auto least = static_cast<std::int32_t>((2 * open_bytes + own_bytes - 1) / own_bytes);
  ledger.slab_blocks = std::max(ledger.slab_blocks, least);
  if (ledger.num_blocks < 2 * ledger.slab_blocks) {
    const std::int64_t needed = std::int64_t{2} * ledger.slab_blocks * own_bytes;
    return Error{.code = ErrorCode::kInvalidArgument,
                 .message = base::str_cat(
                     "kv_budget of ", base::format_bytes(ledger.budget_bytes()), " is below the ",
                     base::format_bytes(needed), " that KV of this format needs; raise kv_budget"),
                 .needed_bytes = needed,
                 .free_bytes = ledger.budget_bytes()};
  }
  const std::int64_t quarter = ledger.budget_bytes() / 4 / open_bytes;
  ledger.standing_open_blocks = static_cast<std::int32_t>(std::min(quarter, open_blocks));
  return {};
}

Result<kv_store::PagedPool> make_staging(const tensor::KVGeometry& geometry,
                                         std::int32_t step_tokens,
                                         device::Accelerator* accelerator) {
  tensor::KVGeometry staged = geometry;
  staged.format = tensor::KVFormat::kPlain;
  staged.layer_sizes = distinct_sizes(geometry);
  staged.layers = std::max<int>(1, static_cast<int>(staged.layer_sizes.size()));
  staged.window_tokens = {};
  const std::int32_t blocks = std::max(step_tokens / staged.block_tokens, 1);
  return accelerator == nullptr ? kv_store::PagedPool::create(staged, blocks)
                                : kv_store::PagedPool::create_on(*accelerator, staged, blocks);
}

std::vector<tensor::PagedKVView> staging_views(const kv_store::PagedPool& staging,
                                               const tensor::KVGeometry& geometry) {
  std::vector<tensor::PagedKVView> views(static_cast<std::size_t>(geometry.layers));
  const std::vector<tensor::KVLayerSize>& made = staging.geometry().layer_sizes;
  for (std::size_t layer = 0; layer < views.size(); ++layer) {
    const auto of = geometry.layer_sizes.empty()
                        ? made.begin()
                        : std::ranges::find(made, geometry.layer_sizes[layer]);
    views[layer] = staging.view(static_cast<int>(of - made.begin()));
  }
  return views;
}

}  // namespace quire::engine
