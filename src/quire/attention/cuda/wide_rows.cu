// Items of heads whose queries and sums do not fit the registers of a warp. A CTA takes 16 columns,
// (row, head) pairs of one KV head. Its warps share the tokens of a tile for scores, and the
// dimensions of a head for sums. Scores and probabilities go through shared memory between them.
#include <cuda_pipeline.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/fragments.cuh"
#include "quire/attention/cuda/partials.cuh"
#include "quire/attention/cuda/wide_rows.h"
#include "quire/attention/device_plan.h"
#include "quire/tensor/kv_format.h"

namespace quire::attention::cuda {
namespace {

constexpr int kColumns = 16;  // of a CTA
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kTokens = 8 * kWarps;              // of a tile: eight to a warp
constexpr int kLanes = kThreads / kColumns;      // threads that share a column's softmax
constexpr int kTokensOfLane = kTokens / kLanes;  // neighbours
static_assert(kTokensOfLane == 4);

// A column of an item: a head of a row, and what it sees.
struct Column {
  int begin = 0, end = 0;  // tokens
  int partial = kNoPartial;
  int head = 0;
};

// Rows are longer than their numbers by 16 bytes, so that eight rows at one place lie in different
// banks.
template <int D>
struct Room {
  static constexpr int kStride = D + 8, kWeightStride = kTokens + 8, kScoreStride = kTokens + 4;
  alignas(16) std::uint16_t queries[kColumns * kStride];
  alignas(16) std::uint16_t keys[kTokens * kStride];
  alignas(16) std::uint16_t values[kTokens * kStride];
  alignas(16) std::uint16_t weights[kColumns * kWeightStride];
  alignas(16) float scores[kColumns * kScoreStride];
  Column columns[kColumns];
  float shrink[kColumns];
  float2 stats[kColumns];  // largest exponent and sum, at the end
};

template <DType T, int D>
class WideColumns {
 public:
  __device__ WideColumns(const AttentionArgs& args, const DevicePlan::WorkItem& item, int kv_head,
                         Room<D>& room)
      : args_(args), item_(item), kv_head_(kv_head), room_(room) {}

  // Computes the item's columns from `first_column` on.
  __device__ void attend(int first_column) {
    load_columns(first_column);
    fetch(room_.keys, 0, item_.first_token);
    for (int first = item_.first_token; first < item_.last_token; first += kTokens) {
      fetch(room_.values, args_.kv.v_offset, first);
      __pipeline_wait_prior(1);  // keys are there
      __syncthreads();
      weigh();
      __syncthreads();
      if (first + kTokens < item_.last_token) {
        fetch(room_.keys, 0, first + kTokens);
      } else {
        __pipeline_commit();
      }
      soften(first);
      __pipeline_wait_prior(1);  // values are there
      __syncthreads();
      add_values();
      __syncthreads();
    }
    finish();
  }

 private:
  static constexpr int kStride = Room<D>::kStride;
  static constexpr int kMine = D / kWarps;  // dimensions of a warp

  [[nodiscard]] __device__ static int thread() { return static_cast<int>(threadIdx.x); }
  [[nodiscard]] __device__ static int warp() { return thread() / 32; }
  [[nodiscard]] __device__ static int lane() { return thread() % 32; }

  // Reads the columns and their queries; those that are not there are zeros.
  __device__ void load_columns(int first_column) {
    const int group = args_.heads / args_.kv_heads;
    constexpr int kPieces = D / 8;
    for (int i = thread(); i < kColumns * kPieces; i += kThreads) {
      const int place = i / kPieces, piece = i % kPieces;
      const int index = first_column + place, row = index / group;
      Column column;
      uint4 numbers = {};
      if (row < item_.num_rows) {
        const DevicePlan::Row& seen = args_.work.rows[item_.first_row + row];
        column = {seen.visible_begin, seen.visible_end, seen.partial,
                  kv_head_ * group + index - row * group};
        numbers = *reinterpret_cast<const uint4*>(
            args_.q + (std::int64_t{seen.query} * args_.heads + column.head) * D + piece * 8);
      }
      *reinterpret_cast<uint4*>(room_.queries + place * kStride + piece * 8) = numbers;
      if (piece == 0) {
        room_.columns[place] = column;
      }
    }
  }

  // Begins to copy keys or values of a tile. Tokens that no row sees are read as the nearest one
  // that some row sees.
  __device__ void fetch(std::uint16_t* to, std::ptrdiff_t offset, int first) const {
    const std::uint16_t* const head = args_.kv.data + kv_head_ * args_.kv.head_stride + offset;
    const std::int32_t* const blocks = args_.work.blocks + item_.first_block;
    constexpr int kPieces = D / 8;
    for (int i = thread(); i < kTokens * kPieces; i += kThreads) {
      const int row = i / kPieces, piece = i % kPieces;
      const int token = min(max(first + row, item_.first_seen), item_.last_token - 1);
      const TokenPlace place = place_of(token, args_.kv.block_tokens, args_.kv.block_shift);
      const std::uint16_t* const block = head + __ldg(blocks + place.block) * args_.kv.block_stride;
      __pipeline_memcpy_async(to + row * kStride + piece * 8, block + place.slot * D + piece * 8,
                              16);
    }
    __pipeline_commit();
  }

  // Returns the operand of 16 columns and 16 neighbours of `rows`, from number `at` on.
  [[nodiscard]] __device__ static Left left_of(const std::uint16_t* rows, int stride, int at) {
    std::uint32_t a[4];
    load_matrices(a, shared_address(rows + lane() % 16 * stride + at + lane() / 16 * 8));
    return {a[0], a[1], a[2], a[3]};
  }

  // Multiplies the queries by the warp's eight keys, to exponents of 2.
  __device__ void weigh() {
    float score[4] = {};
    const std::uint16_t* const keys =
        room_.keys + (warp() * 8 + lane() % 8) * kStride + lane() / 8 * 8;
#pragma unroll 6
    for (int at = 0; at < D; at += 32) {
      std::uint32_t b[4];  // 32 numbers of a key
      load_matrices(b, shared_address(keys + at));
      mma<T>(score, left_of(room_.queries, kStride, at), b[0], b[1]);
      mma<T>(score, left_of(room_.queries, kStride, at + 16), b[2], b[3]);
    }
    const float cap = args_.cap_log2, step = cap == 0 ? 0 : cap_step(cap);
#pragma unroll
    for (float& x : score) {
      x *= args_.scale_log2;
      x = cap == 0 ? x : soft_capped(x, cap, step);
    }
    float* const to =
        room_.scores + lane() / 4 * Room<D>::kScoreStride + warp() * 8 + lane() % 4 * 2;
    *reinterpret_cast<float2*>(to) = {score[0], score[1]};
    *reinterpret_cast<float2*>(to + 8 * Room<D>::kScoreStride) = {score[2], score[3]};
  }

  // Turns the scores of a tile into probabilities relative to the largest so far.
  __device__ void soften(int first) {
    const int place = thread() / kLanes, token = thread() % kLanes * kTokensOfLane;
    const Column& column = room_.columns[place];
    const float4 four =
        *reinterpret_cast<const float4*>(room_.scores + place * Room<D>::kScoreStride + token);
    float x[kTokensOfLane] = {four.x, four.y, four.z, four.w};
    float largest = largest_;
#pragma unroll
    for (int i = 0; i < kTokensOfLane; ++i) {
      const int at = first + token + i;
      x[i] = at >= column.begin && at < column.end ? x[i] : -INFINITY;
      largest = fmaxf(largest, x[i]);
    }
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    }
    const float shrink = exp2_approx(largest_ - largest);
    largest_ = largest;
    sum_ *= shrink;
#pragma unroll
    for (float& p : x) {
      p = exp2_approx(p - largest);
      sum_ += p;
    }
    *reinterpret_cast<uint2*>(room_.weights + place * Room<D>::kWeightStride + token) = {
        Element<T>::round_pair(x[0], x[1]), Element<T>::round_pair(x[2], x[3])};
    if (token == 0) {
      room_.shrink[place] = shrink;
    }
  }

  // Adds the values of a tile, in the warp's dimensions.
  __device__ void add_values() {
    const float low = room_.shrink[lane() / 4], high = room_.shrink[lane() / 4 + 8];
#pragma unroll
    for (auto& eight : out_) {
      eight[0] *= low;
      eight[1] *= low;
      eight[2] *= high;
      eight[3] *= high;
    }
#pragma unroll
    for (int k = 0; k < kTokens; k += 16) {
      const Left a = left_of(room_.weights, Room<D>::kWeightStride, k);
      const std::uint16_t* const values =
          room_.values + (k + lane() % 16) * kStride + warp() * kMine + lane() / 16 * 8;
#pragma unroll
      for (int d = 0; d < kMine / 16; ++d) {
        std::uint32_t b[4];  // dimensions 0..7: two halves of the 16 tokens; then 8..15
        load_transposed(b, shared_address(values + d * 16));
        mma<T>(out_[2 * d], a, b[0], b[1]);
        mma<T>(out_[2 * d + 1], a, b[2], b[3]);
      }
    }
  }

  // Writes what the item has of its columns.
  __device__ void finish() {
    float total = sum_;
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) {
      total += __shfl_xor_sync(0xffffffffu, total, step);
    }
    if (thread() % kLanes == 0) {
      room_.stats[thread() / kLanes] = {largest_, total};
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int place = lane() / 4 + 8 * half;
      const Column& column = room_.columns[place];
      if (column.partial == kNoPartial) {
        continue;
      }
      const float2 stats = room_.stats[place];
      const PartialWriter<T> writer(args_, place_of_head(column.partial, args_.heads, column.head),
                                    stats.x, stats.y);
      if (warp() == 0 && lane() % 4 == 0) {
        writer.put_stats();
      }
#pragma unroll
      for (int n = 0; n < kMine / 8; ++n) {
        writer.template put<2>(warp() * kMine + n * 8 + lane() % 4 * 2,
                               {out_[n][2 * half], out_[n][2 * half + 1]});
      }
    }
  }

  const AttentionArgs& args_;
  const DevicePlan::WorkItem& item_;
  const int kv_head_;
  Room<D>& room_;
  float largest_ = kNothing, sum_ = 0;  // of the column whose softmax the thread shares
  float out_[kMine / 8][4] = {};
};

template <DType T, int D>
__global__ void __launch_bounds__(kThreads)
    wide_rows(const __grid_constant__ AttentionArgs args, const DevicePlan::WorkItem* items,
              int shares) {
  extern __shared__ __align__(16) unsigned char bytes[];
  const DevicePlan::WorkItem item = items[static_cast<int>(blockIdx.x) / shares];
  const int first_column = static_cast<int>(blockIdx.x) % shares * kColumns;
  if (first_column >= item.num_rows * (args.heads / args.kv_heads)) {
    return;
  }
  WideColumns<T, D>(args, item, static_cast<int>(blockIdx.y), *reinterpret_cast<Room<D>*>(bytes))
      .attend(first_column);
}

// Launches items of up to `columns` columns each.
template <DType T, int D>
cudaError_t launch_items(const AttentionArgs& args, const DevicePlan::WorkItem* items, int count,
                         int columns, cudaStream_t stream) {
  if (count == 0) {
    return cudaSuccess;
  }
  constexpr int kBytes = static_cast<int>(sizeof(Room<D>));
  if (const cudaError_t error = cudaFuncSetAttribute(
          wide_rows<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
      error != cudaSuccess) {
    return error;
  }
  const int shares = (columns + kColumns - 1) / kColumns;
  const dim3 grid(static_cast<unsigned>(count * shares), static_cast<unsigned>(args.kv_heads));
  wide_rows<T, D><<<grid, kThreads, kBytes, stream>>>(args, items, shares);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_wide_rows(const AttentionArgs& args, cudaStream_t stream) {
  if (args.kv.format != tensor::KVFormat::kPlain) {
    return cudaErrorInvalidValue;
  }
  return launch_for_wide(args.kv, [&]<DType T, int D>() {
    const cudaError_t error =
        launch_items<T, D>(args, args.work.few, args.work.num_few, kFewColumns, stream);
    return error != cudaSuccess
               ? error
               : launch_items<T, D>(args, args.work.many, args.work.num_many, kManyColumns, stream);
  });
}

}  // namespace quire::attention::cuda
