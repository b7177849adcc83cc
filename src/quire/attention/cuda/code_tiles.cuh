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

// Returns one half of a word, twice.
__device__ __forceinline__ std::uint32_t one_of(std::uint32_t word, int half) {
  return __byte_perm(word, 0, half == 0 ? 0x1010 : 0x3232);
}

// Widens a tile of int4 keys or values so. A warp takes a run of 32 tokens. Eight lanes take the
// words of 64 channels of a token, so that they store a row of 128 bytes.
template <int D, bool kValues>
__device__ __forceinline__ void widen_int4_tile(std::uint32_t from, std::uint32_t to, int thread) {
  constexpr int kPieceBytes = kRunTokens * 16;
  const int run = thread / 32, word = thread % 8, place = thread % 32 / 8;
  const std::uint32_t codes =
      from + run * (kRunTokens * D / 2) + word / 4 * kPieceBytes + place * 16 + word % 4 * 4;
  const std::uint32_t scales = from + kTokens * D / 2 + run * (4 * D);
#pragma unroll
  for (int column = 0; column < D / 64; ++column) {
    // Keys: scales of the lane's eight channels. Values: those of 2 x 8 tokens, of which the lane
    // takes every other, in the group of its channels.
    const std::uint32_t at = scales + (kValues ? (column * 2 + word / 4) * 128 + place / 2 * 16
                                               : column * 128 + word * 16);
    constexpr int kToMinimums = kValues ? 2 * kRunTokens : 2 * D;
    uint4 s = load_shared_16(at), m = load_shared_16(at + kToMinimums);
#pragma unroll 1
    for (int octet = 0; octet < 2; ++octet) {
      if (kValues && octet > 0) {
        s = load_shared_16(at + 32);
        m = load_shared_16(at + 32 + kToMinimums);
      }
      const std::uint32_t scale[4] = {s.x, s.y, s.z, s.w}, minimum[4] = {m.x, m.y, m.z, m.w};
#pragma unroll
      for (int i = 0; i < kRunTokens / 8; ++i) {
        const int at_place = place + 4 * octet + 8 * i;
        const int row = run * kRunTokens + kernels::cuda::int4_token(at_place);
        const std::uint32_t found =
            load_shared_4(codes + column * 2 * kPieceBytes + (octet + 2 * i) * 64);
        const std::uint32_t stored =
            to + column * kTokens * 128 + row * 128 + (word ^ row % 8) * 16;
        if constexpr (kValues) {
          const Int4Pair pair(one_of(scale[i], place % 2), one_of(minimum[i], place % 2));
          store_shared_16(stored, widen_int4(found, pair));
        } else {
          const Int4Pair pairs[4] = {{scale[0], minimum[0]},
                                     {scale[1], minimum[1]},
                                     {scale[2], minimum[2]},
                                     {scale[3], minimum[3]}};
          store_shared_16(stored, widen_int4(found, pairs));
        }
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
