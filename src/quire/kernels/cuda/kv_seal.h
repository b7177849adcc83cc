// Sealing on a GPU: full blocks of numbers are stored in a format that is written block by block.
// Codes and scales are those of kernels/kv_codes.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "quire/kernels/cuda/rotary.h"
#include "quire/kernels/kv_codes.h"

namespace quire::kernels::cuda {

inline constexpr int kMaxSealViews = 9;  // formats of a pool, and blocks of one step

// A block to seal. Formats name views.
struct SealedBlock {
  std::uint8_t from_format = 0, to_format = 0;
  std::int32_t from = -1;  // block of the first view; -1: nothing to seal
  std::int32_t to = 0;     // block of the second one
  std::int32_t last_row = 0;
};

// One layer in all formats, and what its blocks have in common.
struct SealViews {
  KVLayer of[kMaxSealViews];  // plain ones have one type
  std::int32_t kv_heads = 0, head_dim = 0, block_tokens = 0;
};

// Results of sealing, by the row that fills a block; null: not wanted. `refused` is set to 1 where
// the format cannot hold the block. `errors` are increased by what codes have changed.
struct SealResults {
  std::uint8_t* refused = nullptr;
  KVErrorSums* errors = nullptr;
};

// Seals blocks of plain views in views of fp8 or int4. Where a head's part of a block is refused,
// zeros are stored for it. Blocks are inside of the views: checked by the caller. int4 has blocks
// of whole runs of 32 tokens.
[[nodiscard]] cudaError_t seal_blocks(const SealViews& views, const SealedBlock* blocks,
                                      std::int32_t count, const SealResults& results,
                                      cudaStream_t stream);

}  // namespace quire::kernels::cuda
