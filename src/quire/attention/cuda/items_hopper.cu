// All items on Hopper, by CTAs that stay: those of one kernel compute items of many columns, two
// warpgroups of 64 columns each on the same tiles; in those of another each warpgroup computes
// items of few by itself (few_columns.cuh, or here where they are to have the bits that their rows
// have among many). Where a step has both, the kernels share the multiprocessors. Two warps bring
// tiles of keys and of values by the copy engine, block by block, swizzled as the tensor core wants
// them, and two bring queries; they run ahead into the next item. A warpgroup issues the scores of
// tile i before the values of tile i - 1; warpgroups with the same tiles take turns at the tensor
// core, so that one computes its softmax while the products of the other run (FlashAttention-3,
// Shah et al., arXiv 2407.08608). The compiler waits for both products before a softmax; where it
// was made to start that beside the second one, a step took 5 % longer.
//
// A tile of 128 tokens, both warpgroups, head size 128: 2048 cycles of the tensor core, 1024 of the
// special function unit for the exponentials. Items of few columns wait for memory instead.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdint>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/copy_engine.cuh"
#include "quire/attention/cuda/few_columns.cuh"
#include "quire/attention/cuda/fragments.cuh"
#include "quire/attention/cuda/items_supply.cuh"
#include "quire/attention/cuda/kernels.h"
#include "quire/attention/cuda/merge.cuh"
#include "quire/attention/cuda/parts.cuh"
#include "quire/attention/cuda/tile_map.h"
#include "quire/attention/cuda/wgmma.cuh"
#include "quire/attention/device_plan.h"
#include "quire/kernels/cuda/element.cuh"
#include "quire/kernels/cuda/launch.cuh"

namespace quire::attention::cuda {
namespace {

constexpr int kThreads = (kGroups + 1) * kGroupThreads;  // the last warpgroup serves the others

#if QUIRE_WGMMA

// What one of a lane's two columns has seen so far.
struct Column {
  int part;
  float largest, sum;
};

// The 64 columns of a warpgroup: a warp has 16, a lane columns g and g + 8 of them. With `kMany`
// both warpgroups have the same tiles; without, a warpgroup's columns are few, and it merges the
// rows whose last part it brings if `merges`.
template <DType T, int D, bool kMany>
class Columns {
 public:
  __device__ Columns(const AttentionArgs& args, Shared<D>& shared, const Cursor<D>& cursor,
                     int group, bool merges)
      : args_(args),
        shared_(shared),
        keys_(cursor),
        group_(group),
        merges_(merges),
        thread_(static_cast<int>(threadIdx.x) % kGroupThreads) {
    if (kMany && group_ == 1) {
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
      if (kMany) {
        meet(kTurn + group_, kGroups * kGroupThreads);
      }
      issue_scores(score);
      await_values(first - kTokens);
      issue_values(weight);
      await_products<1>();
      if (kMany) {
        pass(kTurn + 1 - group_, kGroups * kGroupThreads);
      }
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
    if (merges_) {
      merge(index);
    }
  }

  // Barriers of a part of the CTA: 1 + group for one warpgroup, and whose turn it is.
  static constexpr int kOwn = 1, kTurn = kOwn + kGroups;

  // Warps without columns, of few, have nothing to do beside products, in which all warps take
  // part.
  [[nodiscard]] __device__ bool busy() const { return kMany || busy_; }
  // Nor has a warp with columns for the second half if that has none.
  [[nodiscard]] __device__ bool empty(int half) const { return !kMany && half == 1 && !both_; }

  // One of the lane's columns, in the warpgroup.
  [[nodiscard]] __device__ int index_of(int half) const {
    return thread_ / 32 * 16 + thread_ % 32 / 4 + 8 * half - skipped();
  }
  // Rows of the products before the first column. Few columns are one warp's; those of the two
  // warpgroups should not be warps of the same quarter of the multiprocessor.
  [[nodiscard]] __device__ int skipped() const { return !kMany && group_ == 1 ? 16 : 0; }
  [[nodiscard]] __device__ Brief::Column column_of(int half) const {
    const int index = index_of(half);
    if (!kMany && (index < 0 || index >= kFewColumnsOfOneKernel)) {
      return {0, INT_MAX, kNoPart, kNoRow};
    }
    return shared_.columns[group_][buffer_ * kFewColumnsOfOneKernel + index];
  }

  __device__ void start(int index) {
    const int buffers = kMany ? 1 : kQueryBuffers;
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
      if (!kMany && told.part >= 0) {
        rows_[half] = told.row;
        num_parts_[half] = args_.work.parts[told.row].count;  // not needed soon
      }
      begin = max(begin, told.begin);
      end = min(end, told.end);
      there = there || told.part != kNoPart;
    }
    all_begin_ = __reduce_max_sync(0xffffffffu, begin);
    all_end_ = __reduce_min_sync(0xffffffffu, end);
    busy_ = __any_sync(0xffffffffu, there);
    both_ = __any_sync(0xffffffffu, column_[1].part != kNoPart);
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
      multiply<T>(score, describe(q + k / 4 * kGroupColumns * 128 + k % 4 * 32, 16, 1024),
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
      add_product<T>(out_, weight[k], describe(values + k * 16 * 128, kTokens * 128, 1024));
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
      if (empty(half)) {
        break;
      }
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
      if (empty(half)) {
        break;
      }
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
      to[k] = {Element<T>::round_pair(weight[2 * k][0], weight[2 * k][1]),
               Element<T>::round_pair(weight[2 * k][2], weight[2 * k][3]),
               Element<T>::round_pair(weight[2 * k + 1][0], weight[2 * k + 1][1]),
               Element<T>::round_pair(weight[2 * k + 1][2], weight[2 * k + 1][3])};
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
      if (empty(half)) {
        break;
      }
      const Column& mine = column_[half];
      float sum = mine.sum;
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const bool there = mine.part != kNoPart;
      const int column = (kMany ? group_ * kGroupColumns : 0) + index_of(half);
      const int head = first_head_ + column % (args_.heads / args_.kv_heads);
      const PartWriter<T> writer(args_, there ? mine.part : 0, head, mine.largest, sum);
      if (there && t == 0) {
        writer.put_stats();
      }
      if (__any_sync(0xffffffffu, there && writer.whole())) {
#pragma unroll
        for (int d = 0; d < D / 8; d += 4) {
          float row[8];
          gather(row, half, d, t);
          if (there && writer.whole()) {
            writer.template put_whole<8>((d + t) * 8, row);
          }
        }
      }
      if (__any_sync(0xffffffffu, there && !writer.whole())) {
#pragma unroll
        for (int d = 0; d < D / 8; d += 2) {
          float piece[4];
          pair_up(piece, half, d, t);
          if (there && !writer.whole()) {
            writer.put_part((d + t % 2) * 8 + t / 2 * 4, piece);
          }
        }
      }
    }
  }

  // Who brings the last part of a row merges them all; a warpgroup shares what that is of an item.
  __device__ void merge(int index) {
    int(&merging)[kFewColumnsOfOneKernel] = shared_.merging[group_][index % 2];
    if (busy()) {
      __threadfence();
      __syncwarp();
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = index_of(half);
      if (thread_ % 4 == 0 && column >= 0 && column < kFewColumnsOfOneKernel) {
        const int head = first_head_ + column % (args_.heads / args_.kv_heads);
        const bool last =
            column_[half].part >= 0 && is_last_part(args_, rows_[half], head, num_parts_[half]);
        merging[column] = last ? rows_[half] : kNoRow;
      }
    }
    meet(kOwn + group_, kGroupThreads);
#pragma unroll 1
    for (int column = thread_ / 32; column < kFewColumnsOfOneKernel; column += kGroupWarps) {
      if (const int row = merging[column]; row != kNoRow) {
        merge_parts<T, D>(args_, row, first_head_ + column % (args_.heads / args_.kv_heads),
                          thread_ % 32, out_);
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

  // Of two tiles of eight dimensions an even lane gets four of the first and an odd one of the
  // second: what four lanes write fills whole sectors of 32 bytes. Half sectors take three times
  // as long.
  __device__ void pair_up(float (&piece)[4], int half, int first, int t) const {
    const bool odd = t % 2 == 1;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float low = out_[first][2 * half + c], high = out_[first + 1][2 * half + c];
      const float other = __shfl_xor_sync(0xffffffffu, odd ? low : high, 1);
      piece[c] = odd ? other : low;
      piece[2 + c] = odd ? high : other;
    }
  }

  const AttentionArgs& args_;
  Shared<D>& shared_;
  Cursor<D> keys_;
  const int group_;
  const bool merges_;
  const int thread_;
  int buffer_ = 0;
  int first_token_ = 0, first_seen_ = 0, last_token_ = 0, first_head_ = 0;
  bool busy_ = false, both_ = false;  // the warp has columns, also of the second half
  int all_begin_ = 0, all_end_ = 0;   // what all of them see
  Column column_[2];
  int rows_[2] = {}, num_parts_[2] = {};  // of columns that are merged here
  float out_[D / 8][4];
};

#endif  // QUIRE_WGMMA

#if QUIRE_WGMMA

// Rows that see nothing, by one warp of each of the CTAs.
template <DType T, int D>
__device__ void clear_unseen(const AttentionArgs& args, int ctas) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = static_cast<int>(blockIdx.x); i < args.work.num_rows * args.heads; i += ctas) {
    if (const int row = i / args.heads; args.work.parts[row].count == 0) {
      write_row<T, D>(args, row, i % args.heads, lane, {});
    }
  }
}

#endif  // QUIRE_WGMMA

template <DType T, int D, Kind K>
__global__ void __launch_bounds__(kThreads, 1)
    items_hopper(const __grid_constant__ AttentionArgs args,
                 const __grid_constant__ CUtensorMap map, int box_tokens, Turn turn) {
#if QUIRE_WGMMA
  extern __shared__ __align__(1024) unsigned char bytes[];
  static_assert(sizeof(Shared<D>) <= kSharedBytes<D>);
  auto& shared = *reinterpret_cast<Shared<D>*>(bytes);
  constexpr bool kMany = K == Kind::kMany;
  const DevicePlan::Crew crew = *args.work.crew;
  if (static_cast<int>(blockIdx.x) >= (kMany ? crew.many_workers : crew.few_workers)) {
    return;
  }
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kSlots<D>; ++slot) {
      shared.full[slot].start(1);
      shared.free[slot].start(kMany ? kGroups * kGroupWarps : kGroupWarps);
    }
    for (int i = 0; i < kGroups * kQueryBuffers; ++i) {
      shared.queries_full[i / kQueryBuffers][i % kQueryBuffers].start(32);
      shared.queries_free[i / kQueryBuffers][i % kQueryBuffers].start(kGroupThreads);
    }
    publish_barriers();
  }
  __syncthreads();
  if (turn != Turn::kFirst) {
    kernels::cuda::allow_next();
  }
  const bool merges = !kMany && turn == Turn::kAlone && args.work.merges;
  if (group == kGroups) {
    keep_registers<56>();
    const int task = static_cast<int>(threadIdx.x) / 32 % kGroupWarps, served = task % kGroups;
    const Queue queue(args, crew, kMany, served);
    if (task >= kGroups) {
      brief<D, kMany>(args, turn, queue, served, shared);
      if (merges && served == 1) {
        clear_unseen<T, D>(args, crew.few_workers);
      }
    } else if (served == 0 || !kMany) {
      feed(args, {map, box_tokens}, turn, queue, ring_of<D>(queue, kMany, served), shared);
    }
  } else {
    take_registers<224>();
    const Queue queue(args, crew, kMany, group);
    begin_turn(turn);
    const Cursor<D> ring = ring_of<D>(queue, kMany, group);
    if constexpr (K == Kind::kFew) {
      FewColumns<T, D>(args, shared, ring, group, merges).attend_all(queue.rounds());
    } else {
      Columns<T, D, kMany>(args, shared, ring, group, merges).attend_all(queue.rounds());
    }
  }
  if (turn == Turn::kSecond) {
    kernels::cuda::await_previous();
  }
#endif
}

// Enough CTAs for any crew of one kernel.
cudaError_t count_ctas(int items, int kv_heads, int& ctas) {
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) {
    return error;
  }
  if (const cudaError_t error =
          cudaDeviceGetAttribute(&ctas, cudaDevAttrMultiProcessorCount, device);
      error != cudaSuccess) {
    return error;
  }
  ctas = std::min(ctas, items * kv_heads);
  return cudaSuccess;
}

template <DType T, int D, Kind K>
cudaError_t launch(const AttentionArgs& args, Turn turn, cudaStream_t stream) {
  CUtensorMap map;
  int ctas = 0;
  if (const cudaError_t error = make_map(args.kv, args.kv_heads, map); error != cudaSuccess) {
    return error;
  }
  if (const cudaError_t error = count_ctas(
          K == Kind::kMany ? args.work.num_many : args.work.num_few, args.kv_heads, ctas);
      error != cudaSuccess) {
    return error;
  }
  const auto kernel = items_hopper<T, D, K>;
  if (const cudaError_t error = cudaFuncSetAttribute(
          kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<D>);
      error != cudaSuccess) {
    return error;
  }
  return kernels::cuda::launch_early(kernel, {ctas, kThreads, kSharedBytes<D>}, stream, args, map,
                                     box_of(args.kv.block_tokens), turn);
}

template <DType T, int D>
cudaError_t launch_few(const AttentionArgs& args, Turn turn, cudaStream_t stream) {
  return args.work.like_many ? launch<T, D, Kind::kFewLikeMany>(args, turn, stream)
                             : launch<T, D, Kind::kFew>(args, turn, stream);
}

template <DType T, int D>
cudaError_t launch(const AttentionArgs& args, cudaStream_t stream) {
  if (args.work.num_few == 0) {
    return launch<T, D, Kind::kMany>(args, Turn::kAlone, stream);
  }
  if (args.work.num_many == 0) {
    return launch_few<T, D>(args, Turn::kAlone, stream);
  }
  if (const cudaError_t error = launch<T, D, Kind::kMany>(args, Turn::kFirst, stream);
      error != cudaSuccess) {
    return error;
  }
  return launch_few<T, D>(args, Turn::kSecond, stream);
}

}  // namespace

bool hopper_takes(std::int32_t head_dim, std::int32_t block_tokens) {
  int device = 0, major = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) {
    return false;
  }
  return major == 9 && (head_dim == 64 || head_dim == 128) && can_make_map(block_tokens);
}

// Items of few columns end at much the same time, and there a kernel more is dear. Of many columns
// a row has few parts beside its work.
bool hopper_merges(const AttentionArgs& args) {
  return args.work.num_many == 0 && args.work.num_few > 0;
}

cudaError_t launch_items_hopper(const AttentionArgs& args, cudaStream_t stream) {
  if (args.work.num_few + args.work.num_many == 0) {
    return cudaSuccess;
  }
  return kernels::cuda::launch_for_dtype(args.kv.dtype, [&]<DType T>() {
    return args.kv.head_dim == 64 ? launch<T, 64>(args, stream) : launch<T, 128>(args, stream);
  });
}

}  // namespace quire::attention::cuda
