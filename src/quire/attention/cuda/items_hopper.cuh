// All items on Hopper, by CTAs that stay. Those of some compute items of many columns, two
// warpgroups of 64 columns each on the same tiles (many_columns.cuh). In the others each warpgroup
// computes items of few by itself (few_columns.cuh). It uses few_like_many.cuh where they are to
// have the bits that their rows have among many, or many_columns.cuh over plain KV. Two warps bring
// tiles of keys and of values by the copy engine, block by block, swizzled as the tensor core wants
// them. Two bring queries. They run ahead into the next item (items_supply.cuh). Codes are brought
// as they are stored. Warpgroups of few columns widen them in registers; those of many write tiles
// of numbers for the tensor core. CTAs of many columns may be pairs, clusters, that bring each tile
// once for both. The power that copies take lowers the clock of the products. For
// items_hopper_*.cu, one for each dtype, format and head size: five kernels compile for long.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/copy_engine.cuh"
#include "quire/attention/cuda/few_columns.cuh"
#include "quire/attention/cuda/few_like_many.cuh"
#include "quire/attention/cuda/items_supply.cuh"
#include "quire/attention/cuda/kernels.h"
#include "quire/attention/cuda/many_columns.cuh"
#include "quire/attention/cuda/merge.cuh"
#include "quire/attention/cuda/token_tile_map.h"
#include "quire/attention/cuda/wgmma.cuh"
#include "quire/attention/device_plan.h"
#include "quire/kernels/cuda/element.cuh"
#include "quire/kernels/cuda/launch.cuh"
#include "quire/tensor/kv_format.h"

namespace quire::attention::cuda {

// Items of few columns that a kernel computes: none, each by itself, or to the bits that its rows
// have among many.
enum class Few : std::uint8_t { kNone, kAlone, kLikeMany };

// Threads of a CTA; the last warpgroup serves the others.
inline constexpr int kHopperThreads = (kGroups + 1) * kGroupThreads;

#if QUIRE_WGMMA

// Writes the rows that see nothing. One warp of each of the CTAs calls it.
template <DType T, int D>
__device__ void clear_unseen(const AttentionArgs& args, int ctas) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = static_cast<int>(blockIdx.x); i < args.work.num_rows * args.heads; i += ctas) {
    if (const int row = i / args.heads; args.work.partials[row].count == 0) {
      write_row<T, D>(args, row, i % args.heads, lane, {});
    }
  }
}

// Starts the barriers. One thread calls it; `readers` warpgroups read a slot.
template <KVFormat F, int D>
__device__ void start_barriers(Shared<F, D>& shared, int readers) {
  for (int slot = 0; slot < kSlots<F, D>; ++slot) {
    shared.full[slot].start(1);
    shared.free[slot].start(readers * kGroupWarps);
  }
  for (int i = 0; i < kGroups * kQueryBuffers; ++i) {
    shared.queries_full[i / kQueryBuffers][i % kQueryBuffers].start(32);
    shared.queries_free[i / kQueryBuffers][i % kQueryBuffers].start(kGroupThreads);
  }
  if constexpr (F != KVFormat::kPlain) {
    for (int tile = 0; tile < kWideTilesOfMany; ++tile) {
      shared.wide_full[tile].start(kGroupWarps);
      shared.wide_free[tile].start(kGroups * kGroupWarps);
    }
  }
  publish_barriers();
}

// Brings tiles of many columns, or their keys or values. One warp runs it.
template <KVFormat F, int D, Parts P>
__device__ __forceinline__ void feed_many(const AttentionArgs& args, const TokenTileMap& tiles,
                                          const Queue& queue, Shared<F, D>& shared) {
  if (queue.paired()) {
    feed<F, D, true, P>(args, tiles, queue, ring_of_many<F, D, P>(), shared);
  } else {
    feed<F, D, false, P>(args, tiles, queue, ring_of_many<F, D, P>(), shared);
  }
}

// Brings tiles of few columns. One warp runs it for each half of a CTA. Each copy takes long to
// issue. With kLikeMany, where one half has the CTA to itself, its warp brings keys, and the other
// warp values. Their slots are always the same, since the ring of a whole CTA has an even number.
template <KVFormat F, int D, bool kLikeMany>
__device__ __forceinline__ void feed_few(const AttentionArgs& args, const TokenTileMap& tiles,
                                         const Queue& queue, int served, Shared<F, D>& shared) {
  if constexpr (kLikeMany && F != KVFormat::kPlain) {
    if (const Queue first(args, 0); first.alone()) {
      const Cursor<D> ring = ring_of_few<F, D, kLikeMany>(first, 0);
      if (served == 0) {
        feed<F, D, false, Parts::kKeys, true>(args, tiles, first, ring, shared);
      } else {
        feed<F, D, false, Parts::kValues, true>(args, tiles, first, ring, shared);
      }
      return;
    }
  }
  feed<F, D, false, Parts::kBoth>(args, tiles, queue, ring_of_few<F, D, kLikeMany>(queue, served),
                                  shared);
}

// Serves the other warpgroups: with one warp for the tiles of each, and one for its queries. With
// `merges` the others merge the rows whose last partial they bring.
template <DType T, KVFormat F, int D, bool kLikeMany>
__device__ __forceinline__ void serve(const AttentionArgs& args, const TokenTileMap& tiles,
                                      bool merges, Shared<F, D>& shared) {
  const int task = static_cast<int>(threadIdx.x) / 32 % kGroupWarps, served = task % kGroups;
  const Queue queue(args, served);
  if (task < kGroups) {
    if (!queue.many()) {
      feed_few<F, D, kLikeMany>(args, tiles, queue, served, shared);
    } else if constexpr (F == KVFormat::kPlain) {
      if (served == 0) {
        feed_many<F, D, Parts::kBoth>(args, tiles, queue, shared);
      }
    } else if (served == 0) {
      feed_many<F, D, Parts::kKeys>(args, tiles, queue, shared);
    } else {
      feed_many<F, D, Parts::kValues>(args, tiles, queue, shared);
    }
  } else if (queue.many()) {
    brief<F, D, true>(args, queue, served, shared);
  } else {
    brief<F, D, false>(args, queue, served, shared);
    if (merges && served == 1) {
      clear_unseen<T, D>(args, queue.workers());
    }
  }
}

#endif  // QUIRE_WGMMA

template <DType T, KVFormat F, int D, bool kMany, Few kFew>
__global__ void __launch_bounds__(kHopperThreads, 1)
    items_hopper(const __grid_constant__ AttentionArgs args,
                 const __grid_constant__ CUtensorMap map, int box_tokens) {
#if QUIRE_WGMMA
  extern __shared__ __align__(1024) unsigned char bytes[];
  static_assert(sizeof(Shared<F, D>) <= kSharedBytes<F, D>);
  auto& shared = *reinterpret_cast<Shared<F, D>*>(bytes);
  using Kind = DevicePlan::Queue::Kind;
  const Kind kind = kind_of_cta(args);
  if (kind == Kind::kNone) {
    return;
  }
  const bool many = kMany && (kFew == Few::kNone || kind != Kind::kFew);
  constexpr bool kPairs = kMany && kFew != Few::kNone;
  const bool paired = kPairs && kind == Kind::kPair;
  const int group = uniform(static_cast<int>(threadIdx.x) / kGroupThreads);
  if (threadIdx.x == 0) {
    const int readers = many && F == KVFormat::kPlain ? kGroups : 1;
    start_barriers<F, D>(shared, readers * (paired ? 2 : 1));
  }
  if constexpr (kPairs) {
    meet_cluster();
  } else {
    __syncthreads();
  }
  kernels::cuda::allow_next();
  const bool merges = !kMany && args.work.merges && !args.work.merges_apart;
  if (group == kGroups) {
    keep_registers<56>();
    serve<T, F, D, kFew == Few::kLikeMany>(args, {map, box_tokens}, merges, shared);
  } else {
    take_registers<224>();
    kernels::cuda::await_previous();
    // One after the other: as two branches they need more registers than there are.
    if constexpr (kMany) {
      const Cursor<D> ring = F == KVFormat::kPlain ? ring_of_many<F, D, Parts::kBoth>()
                             : group == 0          ? ring_of_many<F, D, Parts::kKeys>()
                                                   : ring_of_many<F, D, Parts::kValues>();
      Columns<T, F, D, true>(args, shared, ring, group, paired)
          .attend_all(uniform(Queue(args, group).rounds(true)));
    }
    const Queue few(args, group);
    if constexpr (kFew == Few::kAlone) {
      FewColumns<T, F, D>(args, shared, ring_of_few<F, D, false>(few, group), group, merges)
          .attend_all(uniform(few.rounds(false)));
    } else if constexpr (kFew == Few::kLikeMany && F != KVFormat::kPlain) {
      FewLikeMany<T, F, D>(args, shared, ring_of_few<F, D, true>(few, group), group, merges)
          .attend_all(uniform(few.rounds(false)));
    } else if constexpr (kFew == Few::kLikeMany) {
      Columns<T, F, D, false>(args, shared, ring_of_few<F, D, true>(few, group), group, merges)
          .attend_all(uniform(few.rounds(false)));
    }
  }
  if (paired) {
    meet_cluster();  // the other CTA may still write here and arrive
  }
#endif
}

// Counts CTAs: enough for any CTA group of one kernel.
inline cudaError_t count_ctas(int items, int kv_heads, int& ctas) {
  if (const cudaError_t error = kernels::cuda::count_processors(ctas); error != cudaSuccess) {
    return error;
  }
  ctas = std::min(ctas, items * kv_heads);
  return cudaSuccess;
}

template <DType T, KVFormat F, int D, bool kMany, Few kFew>
cudaError_t launch_kernel(const AttentionArgs& args, cudaStream_t stream) {
  // int4 needs no map: runs of tokens are copied as they lie.
  CUtensorMap map = {};
  int ctas = 0;
  if (F != KVFormat::kInt4) {
    if (const cudaError_t error = make_map(args.kv, args.kv_heads, map); error != cudaSuccess) {
      return error;
    }
  }
  if (const cudaError_t error =
          count_ctas(args.work.num_many + args.work.num_few, args.kv_heads, ctas);
      error != cudaSuccess) {
    return error;
  }
  const auto kernel = items_hopper<T, F, D, kMany, kFew>;
  if (const cudaError_t error = cudaFuncSetAttribute(
          kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<F, D>);
      error != cudaSuccess) {
    return error;
  }
  const unsigned cluster = kMany && kFew != Few::kNone ? 2 : 1;
  return kernels::cuda::launch_early(
      kernel,
      {(ctas + cluster - 1) / cluster * cluster, kHopperThreads, kSharedBytes<F, D>, cluster},
      stream, args, map,
      F == KVFormat::kInt4 ? tensor::kInt4RunTokens : box_of(args.kv.block_tokens));
}

template <DType T, KVFormat F, int D, bool kMany>
cudaError_t launch_with_few(const AttentionArgs& args, cudaStream_t stream) {
  return args.work.like_many ? launch_kernel<T, F, D, kMany, Few::kLikeMany>(args, stream)
                             : launch_kernel<T, F, D, kMany, Few::kAlone>(args, stream);
}

template <DType T, KVFormat F, int D>
cudaError_t launch_items_hopper(const AttentionArgs& args, cudaStream_t stream) {
  if (args.work.num_few == 0) {
    return launch_kernel<T, F, D, true, Few::kNone>(args, stream);
  }
  return args.work.num_many == 0 ? launch_with_few<T, F, D, false>(args, stream)
                                 : launch_with_few<T, F, D, true>(args, stream);
}

}  // namespace quire::attention::cuda
