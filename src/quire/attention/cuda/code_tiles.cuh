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
template <KVFormat F, int D>
__device__ __forceinline__ void widen_bytes(std::uint32_t from, std::uint32_t to, int thread) {
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
    store_shared_16(first + i * kRows * 128, widen_8<F>(codes.x, codes.y));
    store_shared_16(second + i * kRows * 128, widen_8<F>(codes.z, codes.w));
  }
}

// Widens a tile of int4 keys or values so. A warp takes a run of 32 tokens, whose rows keep their
// places. Eight lanes take the words of 64 channels of a token. Channels of keys change places with
// those of queries (see brief() in items_supply.cuh): of each four words the first halves come
// first. Rows of a step are two apart in half a warp, in different banks.
template <int D, bool kValues>
__device__ __forceinline__ void widen_int4_tile(std::uint32_t from, std::uint32_t to, int thread) {
  constexpr int kPieceBytes = kRunTokens * 16;
  const int run = thread / 32, word = thread % 8, place = thread / 8 % 2 * 2 + thread / 16 % 2;
  const std::uint32_t codes =
      from + run * (kRunTokens * D / 2) + word / 4 * kPieceBytes + place * 16 + word % 4 * 4;
  const std::uint32_t scales = from + kTokens * D / 2 + run * (4 * D);
#pragma unroll
  for (int column = 0; column < D / 64; ++column) {
    std::uint32_t s[4] = {}, m[4] = {};
    if constexpr (!kValues) {  // of the lane's eight channels
      const std::uint32_t at = scales + column * 128 + word * 16;
      const uint4 scale = load_shared_16(at), minimum = load_shared_16(at + 2 * D);
      s[0] = scale.x, s[1] = scale.y, s[2] = scale.z, s[3] = scale.w;
      m[0] = minimum.x, m[1] = minimum.y, m[2] = minimum.z, m[3] = minimum.w;
    }
#pragma unroll 4
    for (int i = 0; i < kRunTokens / 4; ++i) {
      if constexpr (kValues) {  // of the token, in the group of the lane's channels
        const int token = kernels::cuda::int4_token(place + 4 * i);
        const std::uint32_t at = scales + (column * 2 + word / 4) * 128 + token * 2;
        s[0] = s[1] = s[2] = s[3] = twice(load_shared_2(at));
        m[0] = m[1] = m[2] = m[3] = twice(load_shared_2(at + 2 * kRunTokens));
      }
      const Int4Pair pairs[4] = {{s[0], m[0]}, {s[1], m[1]}, {s[2], m[2]}, {s[3], m[3]}};
      const int row = run * kRunTokens + place + 4 * i;
      const std::uint32_t at = to + column * kTokens * 128 + row * 128;
      const uint4 numbers =
          widen_int4(load_shared_4(codes + column * 2 * kPieceBytes + i * 64), pairs);
      if constexpr (kValues) {
        store_shared_16(at + (word ^ row % 8) * 16, numbers);
      } else {
        const int piece = word / 4 * 4 + word % 4 / 2;
        store_shared_8(at + (piece ^ row % 8) * 16 + word % 2 * 8, {numbers.x, numbers.y});
        store_shared_8(at + (piece + 2 ^ row % 8) * 16 + word % 2 * 8, {numbers.z, numbers.w});
      }
    }
  }
}

// Widens a tile of keys or of values.
template <KVFormat F, int D>
__device__ __forceinline__ void widen_tile(std::uint32_t from, std::uint32_t to, bool keys,
                                           int thread) {
  if constexpr (kTokenScales<F>) {
    widen_bytes<F, D>(from, to, thread);
  } else if (keys) {
    widen_int4_tile<D, false>(from, to, thread);
  } else {
    widen_int4_tile<D, true>(from, to, thread);
  }
}

}  // namespace quire::attention::cuda

#endif
