// Widens tiles of codes to tiles of numbers in shared memory, for the products of wgmma.cuh.
#pragma once

#include <cstdint>

#include "quire/attention/cuda/codes.cuh"
#include "quire/attention/cuda/fragments.cuh"
#include "quire/attention/cuda/items_supply.cuh"

#if QUIRE_WGMMA

namespace quire::attention::cuda {

// Widens a tile of codes at `from` to a tile of fp16 at `to`, both as Shared<F, D> has them. A
// whole warpgroup calls it. Eight lanes take the same 16 codes of eight rows, which lie in
// different banks.
template <int D>
__device__ __forceinline__ void widen_tile(std::uint32_t from, std::uint32_t to, int thread) {
  constexpr int kPieces = D / 16, kRows = 8 * kGroupThreads / (8 * kPieces);
  const int piece = thread / 8 % kPieces, row = thread % 8 + thread / (8 * kPieces) * 8;
  const int swap = D == 64 ? row / 2 % 4 : row % 8;
  const std::uint32_t source = from + row * D + (piece ^ swap) * 16;
  const std::uint32_t column = to + piece / 4 * kTokens * 128 + row * 128;
  const std::uint32_t first = column + (piece % 4 * 2 ^ row % 8) * 16;
  const std::uint32_t second = column + (piece % 4 * 2 + 1 ^ row % 8) * 16;
#pragma unroll 4
  for (int i = 0; i < kTokens / kRows; ++i) {
    const uint4 codes = load_shared_16(source + i * kRows * D);
    store_shared_16(first + i * kRows * 128, widen_8(codes.x, codes.y));
    store_shared_16(second + i * kRows * 128, widen_8(codes.z, codes.w));
  }
}

}  // namespace quire::attention::cuda

#endif
