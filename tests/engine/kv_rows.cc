#include "kv_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "quire/api/llm_impl.h"
#include "quire/api/sequence_impl.h"
#include "quire/base/ids.h"
#include "quire/engine/engine.h"
#include "quire/kernels/kv_read.h"
#include "quire/kv/format.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/result.h"
#include "quire/sequence.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/tiers/tier_service.h"

namespace quire {
namespace {

// Appends one token's, [layers, kv_heads, 2, head_dim].
void add_row(const kv_store::PagedPool& pool, tensor::KVSlot slot, kv::FormatId format,
             std::vector<std::uint32_t>& rows) {
  for (int layer = 0; layer < pool.geometry().layers; ++layer) {
    const tensor::PagedKVView view = pool.view(layer, format);
    std::vector<float> row(static_cast<std::size_t>(pool.geometry().head_dim));
    for (int head = 0; head < view.kv_heads; ++head) {
      for (const auto read : {&kernels::read_key, &kernels::read_value}) {
        read(view, head, slot, row);
        std::ranges::transform(row, std::back_inserter(rows),
                               [](float value) { return std::bit_cast<std::uint32_t>(value); });
      }
    }
  }
}

}  // namespace

std::vector<std::uint32_t> kv_rows(const Sequence& sequence, std::int64_t first,
                                   std::int64_t last) {
  const auto runtime = sequence.impl().llm->open().value();
  const auto state = sequence.impl().look().value();
  using Windows = sequences::SavedSequences::Windows;
  const auto made = runtime->saved_sequences().describe(state, Windows::kWhole);
  if (!made.ok()) {  // owed tokens had no room
    EXPECT_EQ(made.error().code, ErrorCode::kOutOfBlocks) << made.error().message;
    return {};
  }
  const auto& described = *made;
  const kv_store::PagedPool& pool = runtime->tiers().paged_pool();
  const std::int64_t block_tokens = pool.geometry().block_tokens;
  std::vector<std::uint32_t> rows;
  std::int64_t before = 0;  // tokens of earlier runs
  for (std::size_t run = 0; run < described.runs.size(); ++run) {
    const std::int64_t tokens = std::ssize(described.runs[run].tokens);
    const std::int64_t lost = described.runs[run].lost_blocks;
    for (std::int64_t i = std::max(first - before, lost * block_tokens);
         i < std::min(last - before, tokens); ++i) {
      const BlockId block =
          described.blocks[run][static_cast<std::size_t>(i / block_tokens - lost)];
      add_row(pool, {.block = block.value, .offset = static_cast<std::int32_t>(i % block_tokens)},
              described.formats[run], rows);
    }
    before += tokens;
  }
  return rows;
}

}  // namespace quire
