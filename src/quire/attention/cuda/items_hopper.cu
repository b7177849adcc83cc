// All items on Hopper, by CTAs that stay: some compute items of many columns, two warpgroups of 64
// columns each on the same tiles; in the others each warpgroup computes items of few by itself. Two
// warps bring tiles of keys and of values by the copy engine, block by block, swizzled as the
// tensor core wants them, and two bring queries; they run ahead into the next item. A warpgroup
// issues the scores of tile i before the values of tile i - 1 and computes the softmax of the
// former while the latter run; warpgroups with the same tiles take turns at the tensor core
// (FlashAttention-3, Shah et al., arXiv 2407.08608).
//
// A tile of 128 tokens, both warpgroups, head size 128: 2048 cycles of the tensor core, 1024 of the
// special function unit for the exponentials. Items of few columns wait for memory instead.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/copy_engine.cuh"
#include "quire/attention/cuda/fragments.cuh"
#include "quire/attention/cuda/items_supply.cuh"
#include "quire/attention/cuda/kernels.h"
#include "quire/attention/cuda/parts.cuh"
#include "quire/attention/cuda/wgmma.cuh"
#include "quire/attention/device_plan.h"
#include "quire/kernels/cuda/launch.cuh"

namespace quire::attention::cuda {
namespace {

constexpr int kThreads = (kGroups + 1) * kGroupThreads;  // the last warpgroup serves the others
constexpr int kSmallestBox = 8;                          // tokens: a swizzle takes eight rows

#if QUIRE_WGMMA

constexpr float kNothing = -1e30f;

// What one of a lane's two columns has seen so far.
struct Column {
  int part;
  float largest, sum;
};

// The 64 columns of a warpgroup: a warp has 16, a lane columns g and g + 8 of them. `kMany`,
// `kFew`: which kinds of items there are.
template <int D, bool kMany, bool kFew>
class Columns {
 public:
  // `many`: both warpgroups have the same tiles.
  __device__ Columns(const AttentionArgs& args, Shared<D>& shared, const Cursor<D>& cursor,
                     bool many, int group)
      : args_(args),
        shared_(shared),
        keys_(cursor),
        many_(many),
        group_(group),
        thread_(static_cast<int>(threadIdx.x) % kGroupThreads) {
    if (many_ && group_ == 1) {
      pass(kTurn, kGroups * kGroupThreads);
    }
  }

  __device__ void attend_all(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      attend(i);
    }
  }

 private:
  // The item of round `index`.
  __device__ void attend(int index) {
    start(index);
    float score[kTokens / 8][4];
    Left weight[kTokens / 16] = {};
    float shrink[2] = {1, 1};
    int first = first_token_;
    shared_.full[keys_.slot()].await(keys_.round());
    issue_scores(score);
    await_products<0>();
    end_scores(score);
    if (busy()) {
      soften(score, first, shrink);
      pack(weight, score);
    }
    keys_.advance(2);
    for (first += kTokens; first < last_token_; first += kTokens) {
      shared_.full[keys_.slot()].await(keys_.round());
      if (many()) {
        meet(kTurn + group_, kGroups * kGroupThreads);
      }
      issue_scores(score);
      await_values(first - kTokens);
      issue_values(weight);
      if (many()) {
        pass(kTurn + 1 - group_, kGroups * kGroupThreads);
      }
      await_products<1>();
      end_scores(score);
      if (busy()) {
        soften(score, first, shrink);
      }
      await_products<0>();
      end_values();
      if (busy()) {
        pack(weight, score);
        rescale(shrink);
      }
      keys_.advance(2);
    }
    shared_.queries_free[group_][buffer_].arrive();
    await_values(first - kTokens);
    issue_values(weight);
    await_products<0>();
    end_values();
    if (busy()) {
      finish();
    }
  }

  // Barriers of a part of the CTA: 1 + group for one warpgroup, and whose turn it is.
  static constexpr int kOwn = 1, kTurn = kOwn + kGroups;

  [[nodiscard]] __device__ bool many() const { return !kFew || (kMany && many_); }
  // Warps without columns have nothing to do beside products, in which all warps take part. Where
  // the code is for many columns too, leaving it out would cost those more than it saves.
  [[nodiscard]] __device__ bool busy() const { return kMany || busy_; }

  // One of the lane's columns, in the warpgroup.
  [[nodiscard]] __device__ int index_of(int half) const {
    return thread_ / 32 * 16 + thread_ % 32 / 4 + 8 * half - skipped();
  }
  // Rows of the products before the first column. Few columns are one warp's; those of the two
  // warpgroups should not be warps of the same quarter of the multiprocessor.
  [[nodiscard]] __device__ int skipped() const { return !many() && group_ == 1 ? 16 : 0; }
  [[nodiscard]] __device__ Brief::Column column_of(int half) const {
    const int index = index_of(half);
    if (!many() && (index < 0 || index >= kFewColumnsOfOneKernel)) {
      return {0, INT_MAX, kNoPart};
    }
    return shared_.columns[group_][buffer_ * kFewColumnsOfOneKernel + index];
  }

  __device__ void start(int index) {
    const int buffers = many() ? 1 : kQueryBuffers;
    buffer_ = index % buffers;
    shared_.queries_full[group_][buffer_].await(index / buffers);
    const Brief& brief = shared_.brief[group_][buffer_];
    first_token_ = brief.first_token;
    first_seen_ = brief.first_seen;
    last_token_ = brief.last_token;
    first_head_ = brief.first_head;
    int begin = 0, end = INT_MAX;
    bool there = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Brief::Column told = column_of(half);
      column_[half] = {told.part, kNothing, 0};
      begin = max(begin, told.begin);
      end = min(end, told.end);
      there = there || told.part != kNoPart;
    }
    all_begin_ = __reduce_max_sync(0xffffffffu, begin);
    all_end_ = __reduce_min_sync(0xffffffffu, end);
    busy_ = __any_sync(0xffffffffu, there);
#pragma unroll
    for (auto& tile : out_) {
      tile[0] = tile[1] = tile[2] = tile[3] = 0;
    }
  }

  // Products of the queries with all tokens of a tile.
  __device__ void issue_scores(float (&score)[kTokens / 8][4]) {
    // Around few columns lie rows that belong to others: what comes of them is not used.
    const std::uint32_t q = shared_address(shared_.queries[group_]) +
                            (buffer_ * kFewColumnsOfOneKernel - skipped()) * 128;
    const std::uint32_t keys = shared_address(shared_.slots[keys_.slot()]);
    settle(score);
    begin_products();
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      multiply(score, describe(q + k / 4 * kGroupColumns * 128 + k % 4 * 32, 16, 1024),
               describe(keys + k / 4 * kTokens * 128 + k % 4 * 32, 16, 1024), k > 0);
    }
    end_products();
  }

  __device__ void end_scores(float (&score)[kTokens / 8][4]) {
    settle(score);
    release(shared_.free[keys_.slot()]);
  }

  // Of the tile before the one at keys_.
  __device__ void issue_values(const Left (&weight)[kTokens / 16]) {
    const std::uint32_t values = shared_address(shared_.slots[keys_.slot_before()]);
    settle(out_);
    begin_products();
#pragma unroll
    for (int k = 0; k < kTokens / 16; ++k) {
      add_product(out_, weight[k], describe(values + k * 16 * 128, kTokens * 128, 1024));
    }
    end_products();
  }

  __device__ void end_values() {
    settle(out_);
    release(shared_.free[keys_.slot_before()]);
  }

  // Values from token `first` on are there; those of tokens that no row sees are zero.
  __device__ void await_values(int first) {
    const int slot = keys_.slot_before();
    shared_.full[slot].await(keys_.round_before());
    if (first >= first_seen_ && first + kTokens <= last_token_) {
      return;
    }
    for (int at = thread_; at < kTokens * (D / 8); at += kGroupThreads) {
      const int token = first + at / 8 % kTokens;
      if (token < first_seen_ || token >= last_token_) {
        *reinterpret_cast<uint4*>(shared_.slots[slot] + at * 8) = {};
      }
    }
    publish_shared();
    meet(kOwn + group_, kGroupThreads);
  }

  // This warp has read it.
  __device__ void release(PhaseBarrier& free) const {
    __syncwarp();
    if (thread_ % 32 == 0) {
      free.arrive();
    }
  }

  // Scores become probabilities relative to the largest one so far; what was summed before is to
  // shrink so much.
  __device__ void soften(float (&score)[kTokens / 8][4], int first, float (&shrink)[2]) {
    if (first < all_begin_ || first + kTokens > all_end_) {
      hide(score, first);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Column& mine = column_[half];
      float low = score[0][2 * half], high = score[0][2 * half + 1];
#pragma unroll
      for (int n = 1; n < kTokens / 8; ++n) {
        low = fmaxf(low, score[n][2 * half]);
        high = fmaxf(high, score[n][2 * half + 1]);
      }
      float largest = fmaxf(low, high);
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      largest = fmaxf(largest * args_.scale_log2, mine.largest);
      shrink[half] = exp2_approx(mine.largest - largest);
      mine.largest = largest;
      low = mine.sum * shrink[half];
      high = 0;
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) {
        float& x = score[n][2 * half];
        float& y = score[n][2 * half + 1];
        x = exp2_approx(__fmaf_rn(x, args_.scale_log2, -largest));
        y = exp2_approx(__fmaf_rn(y, args_.scale_log2, -largest));
        low += x;
        high += y;
      }
      mine.sum = low + high;
    }
  }

  // What a column does not see scores -inf.
  __device__ void hide(float (&score)[kTokens / 8][4], int first) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Token n * 8 + c of this lane is seen where begin <= it < end.
      const Brief::Column seen = column_of(half);
      const int begin = seen.begin - first - thread_ % 4 * 2;
      const int end = seen.end - first - thread_ % 4 * 2;
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          if (n * 8 + c < begin || n * 8 + c >= end) {
            score[n][2 * half + c] = -INFINITY;
          }
        }
      }
    }
  }

  // Weights of 16 tokens each as operands.
  __device__ static void pack(Left (&to)[kTokens / 16], const float (&weight)[kTokens / 8][4]) {
#pragma unroll
    for (int k = 0; k < kTokens / 16; ++k) {
      to[k] = {pack_bf16(weight[2 * k][0], weight[2 * k][1]),
               pack_bf16(weight[2 * k][2], weight[2 * k][3]),
               pack_bf16(weight[2 * k + 1][0], weight[2 * k + 1][1]),
               pack_bf16(weight[2 * k + 1][2], weight[2 * k + 1][3])};
    }
  }

  __device__ void rescale(const float (&shrink)[2]) {
#pragma unroll
    for (auto& tile : out_) {
      tile[0] *= shrink[0];
      tile[1] *= shrink[0];
      tile[2] *= shrink[1];
      tile[3] *= shrink[1];
    }
  }

  __device__ void finish() const {
    const int t = thread_ % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Column& mine = column_[half];
      float sum = mine.sum;
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const bool there = mine.part != kNoPart;
      const int column = (many() ? group_ * kGroupColumns : 0) + index_of(half);
      const int head = first_head_ + column % (args_.heads / args_.kv_heads);
      const PartWriter writer(args_, there ? mine.part : 0, head, mine.largest, sum);
      if (there && t == 0) {
        writer.put_stats();
      }
#pragma unroll
      for (int d = 0; d < D / 8; d += 4) {
        float row[8];
        gather(row, half, d, t);
        if (there) {
          writer.put<8>((d + t) * 8, row);
        }
      }
    }
  }

  // Four lanes hold two dimensions each of four tiles of eight; lane t gets tile first + t whole.
  __device__ void gather(float (&row)[8], int half, int first, int t) const {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      // Lane t gives what lane t ^ step wants, and gets dimensions 2 * (t ^ step) of its tile.
      const int other = t ^ step;
      float x[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float mine = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          mine = other == i ? out_[first + i][2 * half + c] : mine;
        }
        x[c] = __shfl_xor_sync(0xffffffffu, mine, step);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        row[2 * i] = other == i ? x[0] : row[2 * i];
        row[2 * i + 1] = other == i ? x[1] : row[2 * i + 1];
      }
    }
  }

  const AttentionArgs& args_;
  Shared<D>& shared_;
  Cursor<D> keys_;
  const bool many_;
  const int group_, thread_;
  int buffer_ = 0;
  int first_token_ = 0, first_seen_ = 0, last_token_ = 0, first_head_ = 0;
  bool busy_ = false;                // the warp has columns
  int all_begin_ = 0, all_end_ = 0;  // what all of them see
  Column column_[2];
  float out_[D / 8][4];
};

#endif  // QUIRE_WGMMA

// `kMany`, `kFew`: which items there are. Code for one kind alone needs fewer registers.
template <int D, bool kMany, bool kFew>
__global__ void __launch_bounds__(kThreads, 1)
    items_hopper(const __grid_constant__ AttentionArgs args,
                 const __grid_constant__ CUtensorMap map, int box_tokens) {
#if QUIRE_WGMMA
  extern __shared__ __align__(1024) unsigned char bytes[];
  static_assert(sizeof(Shared<D>) <= kSharedBytes<D>);
  auto& shared = *reinterpret_cast<Shared<D>*>(bytes);
  const DevicePlan::Crew crew = *args.work.crew;
  if (static_cast<int>(blockIdx.x) >= crew.many_workers + crew.few_workers) {
    return;
  }
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const bool many = !kFew || (kMany && static_cast<int>(blockIdx.x) < crew.many_workers);
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kSlots<D>; ++slot) {
      shared.full[slot].start(1);
      shared.free[slot].start(many ? kGroups * kGroupWarps : kGroupWarps);
    }
    for (int i = 0; i < kGroups * kQueryBuffers; ++i) {
      shared.queries_full[i / kQueryBuffers][i % kQueryBuffers].start(32);
      shared.queries_free[i / kQueryBuffers][i % kQueryBuffers].start(kGroupThreads);
    }
    publish_barriers();
  }
  __syncthreads();
  kernels::cuda::begin_kernel();
  if (group == kGroups) {
    keep_registers<56>();
    const int task = static_cast<int>(threadIdx.x) / 32 % kGroupWarps, served = task % kGroups;
    const Queue queue(args, crew, served);
    if (task >= kGroups) {
      brief(args, queue, many, served, shared);
    } else if (served == 0 || !many) {
      feed(args, map, box_tokens, queue, ring_of<D>(queue, many, served), shared);
    }
  } else {
    take_registers<224>();
    const Queue queue(args, crew, group);
    const Cursor<D> cursor = kFew ? ring_of<D>(queue, many, group) : Cursor<D>(0, kSlots<D>);
    Columns<D, kMany, kFew>(args, shared, cursor, many, group).attend_all(queue.rounds());
  }
#endif
}

// Tokens of a box of the copy engine: the most that divide a block and a tile.
int box_of(std::int32_t block_tokens) { return std::gcd(block_tokens, kTokens); }

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// From the driver, so that nothing links against it; null where it has none.
EncodeTiled find_encode_tiled() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                             12000, cudaEnableDefault, &result);
  return error == cudaSuccess && result == cudaDriverEntryPointSuccess
             ? reinterpret_cast<EncodeTiled>(found)
             : nullptr;
}

EncodeTiled encode_tiled() {
  static const EncodeTiled found = find_encode_tiled();
  return found;
}

// Dimensions: element, slot, key or value, block, KV head. How many blocks there are is not known
// here, so that dimension is as long as can be.
cudaError_t make_map(const DeviceKV& kv, std::int32_t kv_heads, CUtensorMap& map) {
  const auto bytes = [](std::ptrdiff_t elements) { return static_cast<cuuint64_t>(elements) * 2; };
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(kv.head_dim),
                              static_cast<cuuint64_t>(kv.block_tokens), 2, cuuint64_t{1} << 31,
                              static_cast<cuuint64_t>(kv_heads)};
  const cuuint64_t strides[] = {bytes(kv.head_dim), bytes(kv.v_offset), bytes(kv.block_stride),
                                bytes(kv.head_stride)};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_of(kv.block_tokens)), 1, 1, 1};
  const cuuint32_t steps[] = {1, 1, 1, 1, 1};
  const CUresult result =
      encode_tiled()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, kv.data, sizes, strides, box, steps,
                     CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

// Enough CTAs for any crew.
cudaError_t count_ctas(const AttentionArgs& args, int& ctas) {
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) {
    return error;
  }
  if (const cudaError_t error =
          cudaDeviceGetAttribute(&ctas, cudaDevAttrMultiProcessorCount, device);
      error != cudaSuccess) {
    return error;
  }
  ctas = std::min(ctas, (args.work.num_many + args.work.num_few) * args.kv_heads);
  return cudaSuccess;
}

template <int D, bool kMany, bool kFew>
cudaError_t launch(const AttentionArgs& args, cudaStream_t stream) {
  CUtensorMap map;
  int ctas = 0;
  if (const cudaError_t error = make_map(args.kv, args.kv_heads, map); error != cudaSuccess) {
    return error;
  }
  if (const cudaError_t error = count_ctas(args, ctas); error != cudaSuccess) {
    return error;
  }
  const auto kernel = items_hopper<D, kMany, kFew>;
  if (const cudaError_t error = cudaFuncSetAttribute(
          kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<D>);
      error != cudaSuccess) {
    return error;
  }
  return kernels::cuda::launch_early(kernel, {ctas, kThreads, kSharedBytes<D>}, stream, args, map,
                                     box_of(args.kv.block_tokens));
}

template <int D>
cudaError_t launch(const AttentionArgs& args, cudaStream_t stream) {
  if (args.work.num_few == 0) {
    return launch<D, true, false>(args, stream);
  }
  return args.work.num_many == 0 ? launch<D, false, true>(args, stream)
                                 : launch<D, true, true>(args, stream);
}

}  // namespace

bool hopper_takes(std::int32_t head_dim, std::int32_t block_tokens) {
  int device = 0, major = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) {
    return false;
  }
  return major == 9 && (head_dim == 64 || head_dim == 128) &&
         box_of(block_tokens) >= kSmallestBox && encode_tiled() != nullptr;
}

cudaError_t launch_items_hopper(const AttentionArgs& args, cudaStream_t stream) {
  if (args.work.num_few + args.work.num_many == 0) {
    return cudaSuccess;
  }
  return args.kv.head_dim == 64 ? launch<64>(args, stream) : launch<128>(args, stream);
}

}  // namespace quire::attention::cuda
