// Items of many query columns on Hopper. A warp feeds two warpgroups of 64 columns each: the copy
// engine brings tiles of keys and of values, block by block, swizzled as the tensor core wants
// them. A warpgroup issues the scores of tile i before the values of tile i - 1 and computes the
// softmax of the former while the latter run; the warpgroups take turns at the tensor core
// (FlashAttention-3, Shah et al., arXiv 2407.08608).
//
// A tile of 128 tokens, both warpgroups, head size 128: 2048 cycles of the tensor core, 1024 of the
// special function unit for the exponentials.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <numeric>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/copy_engine.cuh"
#include "quire/attention/cuda/fragments.cuh"
#include "quire/attention/cuda/kernels.h"
#include "quire/attention/cuda/parts.cuh"
#include "quire/attention/cuda/wgmma.cuh"
#include "quire/attention/device_plan.h"

namespace quire::attention::cuda {
namespace {

constexpr int kTokens = kStepTokens;  // of a tile
constexpr int kGroupThreads = 128;
constexpr int kGroupColumns = 64;
constexpr int kGroups = kManyColumns / kGroupColumns;
constexpr int kThreads = (kGroups + 1) * kGroupThreads;  // the last warpgroup feeds the others
constexpr int kSmallestBox = 8;                          // tokens: a swizzle takes eight rows

template <int D>
constexpr int kStages = D == 64 ? 4 : 2;

#if QUIRE_WGMMA

constexpr float kNothing = -1e30f;

// Rows of D elements in columns of 64 elements, each [rows][64], 16-byte pieces swapped by row % 8.
template <int D>
struct Shared {
  std::uint16_t queries[kGroups][kGroupColumns * D];
  std::uint16_t keys[kStages<D>][kTokens * D];
  std::uint16_t values[kStages<D>][kTokens * D];
  PhaseBarrier keys_full[kStages<D>], values_full[kStages<D>];
  PhaseBarrier keys_free[kStages<D>], values_free[kStages<D>];
};

// What all warps of a CTA know.
struct Work {
  DevicePlan::Item item;
  int kv_head;
  int heads_per_group;  // query heads of a KV head
  int tiles;

  __device__ Work(const AttentionArgs& args)
      : item(args.work.many[blockIdx.x]),
        kv_head(static_cast<int>(blockIdx.y)),
        heads_per_group(args.heads / args.kv_heads),
        tiles((item.last_token - item.first_token + kTokens - 1) / kTokens) {}

  // Warpgroups that have columns.
  [[nodiscard]] __device__ int groups() const {
    return item.num_rows * heads_per_group > kGroupColumns ? 2 : 1;
  }
};

// One warp: a lane to each box of a tile.
template <int D>
__device__ void feed(const AttentionArgs& args, const CUtensorMap& map, int box_tokens,
                     const Work& work, Shared<D>& shared) {
  const DevicePlan::Item& item = work.item;
  const int lane = static_cast<int>(threadIdx.x) % 32, boxes = kTokens / box_tokens;
  const int column = lane / boxes, row = lane % boxes * box_tokens;
  const bool copies = column < D / 64;
  // A box without a token that some row sees is read as the nearest one with.
  const int lowest = item.first_seen & -box_tokens, highest = (item.last_token - 1) & -box_tokens;
  for (int i = 0; i < work.tiles; ++i) {
    const int stage = i % kStages<D>, round = i / kStages<D>;
    const int token = min(max(item.first_token + i * kTokens + row, lowest), highest);
    const TokenPlace place = place_of(token, args.kv.block_tokens, args.kv.block_shift);
    const int block = __ldg(args.work.blocks + item.first_block + place.block);
    const auto fetch = [&](std::uint16_t* to, PhaseBarrier& free, PhaseBarrier& full, int what) {
      free.await(round + 1);
      if (lane == 0) {
        full.arrive_expecting(kTokens * D * 2);
      }
      __syncwarp();
      if (copies) {
        copy_box(to + column * kTokens * 64 + row * 64, map,
                 {column * 64, place.slot, what, block, work.kv_head}, full);
      }
    };
    fetch(shared.keys[stage], shared.keys_free[stage], shared.keys_full[stage], 0);
    fetch(shared.values[stage], shared.values_free[stage], shared.values_full[stage], 1);
  }
}

// What one of a lane's two columns has seen so far.
struct Column {
  int begin = 0, end = INT_MAX;  // tokens that it sees
  int part = kNoPart;
  int head = 0;
  float largest = kNothing, sum = 0;
};

// The 64 columns of a warpgroup: a warp has 16, a lane columns g and g + 8 of them.
template <int D>
class Columns {
 public:
  __device__ Columns(const AttentionArgs& args, const Work& work, Shared<D>& shared, int group)
      : args_(args),
        work_(work),
        shared_(shared),
        group_(group),
        thread_(static_cast<int>(threadIdx.x) % kGroupThreads) {}

  __device__ void attend() {
    find_columns();
    fetch_queries();
#pragma unroll
    for (auto& tile : out_) {
      tile[0] = tile[1] = tile[2] = tile[3] = 0;
    }
    float score[kTokens / 8][4];
    Left weight[kTokens / 16];
    float shrink[2];
    shared_.keys_full[0].await(0);
    issue_scores(score, 0);
    await_products<0>();
    settle(score);
    release(shared_.keys_free[0]);
    soften(score, work_.item.first_token, shrink);
    pack(weight, score);
    if (turns_ && group_ == 1) {
      pass(kTurn, kGroups * kGroupThreads);
    }
    for (int i = 1; i < work_.tiles; ++i) {
      const int stage = i % kStages<D>, before = (i - 1) % kStages<D>;
      shared_.keys_full[stage].await(i / kStages<D>);
      if (turns_) {
        meet(kTurn + group_, kGroups * kGroupThreads);
      }
      issue_scores(score, stage);
      await_values(i - 1);
      issue_values(weight, before);
      if (turns_) {
        pass(kTurn + 1 - group_, kGroups * kGroupThreads);
      }
      await_products<1>();
      settle(score);
      release(shared_.keys_free[stage]);
      soften(score, work_.item.first_token + i * kTokens, shrink);
      await_products<0>();
      settle(out_);
      release(shared_.values_free[before]);
      pack(weight, score);
      rescale(shrink);
    }
    await_values(work_.tiles - 1);
    issue_values(weight, (work_.tiles - 1) % kStages<D>);
    await_products<0>();
    settle(out_);
    finish();
  }

 private:
  // Barriers of a part of the CTA: 1 + group for one warpgroup, and whose turn it is.
  static constexpr int kOwn = 1, kTurn = kOwn + kGroups;

  __device__ void find_columns() {
    turns_ = work_.groups() == kGroups;
    int begin = 0, end = INT_MAX;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int index = group_ * kGroupColumns + thread_ / 32 * 16 + thread_ % 32 / 4 + 8 * half;
      const int row = index / work_.heads_per_group;
      if (row < work_.item.num_rows) {
        const DevicePlan::Row& seen = args_.work.rows[work_.item.first_row + row];
        column_[half].begin = seen.visible_begin;
        column_[half].end = seen.visible_end;
        column_[half].part = seen.part;
        column_[half].head =
            work_.kv_head * work_.heads_per_group + index - row * work_.heads_per_group;
      }
      begin = max(begin, column_[half].begin);
      end = min(end, column_[half].end);
    }
    all_begin_ = __reduce_max_sync(0xffffffffu, begin);
    all_end_ = __reduce_min_sync(0xffffffffu, end);
  }

  __device__ void fetch_queries() {
    std::uint16_t* to = shared_.queries[group_];
#pragma unroll
    for (int i = 0; i < kGroupColumns * D / 8 / kGroupThreads; ++i) {
      const int at = thread_ + i * kGroupThreads, column = at / (D / 8), piece = at % (D / 8);
      const int index = group_ * kGroupColumns + column, row = index / work_.heads_per_group;
      uint4 words = {};
      if (row < work_.item.num_rows) {
        const std::int64_t query = args_.work.rows[work_.item.first_row + row].query;
        const int head =
            work_.kv_head * work_.heads_per_group + index - row * work_.heads_per_group;
        words = load_16(args_.q + (query * args_.heads + head) * D + piece * 8);
      }
      const int place = piece / 8 * kGroupColumns * 64 + column * 64 + (piece % 8 ^ column % 8) * 8;
      *reinterpret_cast<uint4*>(to + place) = words;
    }
    publish_shared();
    meet(kOwn + group_, kGroupThreads);
  }

  // Products of the queries with all tokens of a tile.
  __device__ void issue_scores(float (&score)[kTokens / 8][4], int stage) {
    const std::uint32_t q = shared_address(shared_.queries[group_]);
    const std::uint32_t keys = shared_address(shared_.keys[stage]);
    settle(score);
    begin_products();
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      multiply(score, describe(q + k / 4 * kGroupColumns * 128 + k % 4 * 32, 16, 1024),
               describe(keys + k / 4 * kTokens * 128 + k % 4 * 32, 16, 1024), k > 0);
    }
    end_products();
  }

  __device__ void issue_values(const Left (&weight)[kTokens / 16], int stage) {
    const std::uint32_t values = shared_address(shared_.values[stage]);
    settle(out_);
    begin_products();
#pragma unroll
    for (int k = 0; k < kTokens / 16; ++k) {
      add_product(out_, weight[k], describe(values + k * 16 * 128, kTokens * 128, 1024));
    }
    end_products();
  }

  // Values of tile i are there; those of tokens that no row sees are zero.
  __device__ void await_values(int i) {
    const DevicePlan::Item& item = work_.item;
    const int stage = i % kStages<D>, first = item.first_token + i * kTokens;
    shared_.values_full[stage].await(i / kStages<D>);
    if (first >= item.first_seen && first + kTokens <= item.last_token) {
      return;
    }
    for (int at = thread_; at < kTokens * (D / 8); at += kGroupThreads) {
      const int token = first + at / 8 % kTokens;
      if (token < item.first_seen || token >= item.last_token) {
        *reinterpret_cast<uint4*>(shared_.values[stage] + at * 8) = {};
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
      const int begin = column_[half].begin - first - thread_ % 4 * 2;
      const int end = column_[half].end - first - thread_ % 4 * 2;
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
      const PartWriter writer(args_, there ? mine.part : 0, mine.head, mine.largest, sum);
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
  const Work& work_;
  Shared<D>& shared_;
  const int group_, thread_;
  bool turns_ = false;               // two warpgroups have columns
  int all_begin_ = 0, all_end_ = 0;  // what all columns of the warp see
  Column column_[2];
  float out_[D / 8][4];
};

#endif  // QUIRE_WGMMA

template <int D>
__global__ void __launch_bounds__(kThreads, 1)
    many_rows_hopper(const __grid_constant__ AttentionArgs args,
                     const __grid_constant__ CUtensorMap map, const int box_tokens) {
#if QUIRE_WGMMA
  extern __shared__ __align__(1024) unsigned char bytes[];
  auto& shared = *reinterpret_cast<Shared<D>*>(bytes);
  const Work work(args);
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads, groups = work.groups();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages<D>; ++stage) {
      shared.keys_full[stage].start(1);
      shared.values_full[stage].start(1);
      shared.keys_free[stage].start(groups * kGroupThreads / 32);
      shared.values_free[stage].start(groups * kGroupThreads / 32);
    }
    publish_barriers();
  }
  __syncthreads();
  if (group == kGroups) {
    keep_registers<24>();
    if (threadIdx.x / 32 % (kGroupThreads / 32) == 0) {
      feed(args, map, box_tokens, work, shared);
    }
  } else {
    take_registers<240>();
    if (group < groups) {
      Columns<D>(args, work, shared, group).attend();
    }
  }
#endif
}

// Tokens of a box of the copy engine: the most that divide a block and a tile.
int box_tokens(const DeviceKV& kv) { return std::gcd(kv.block_tokens, kTokens); }

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
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_tokens(kv)), 1, 1, 1};
  const cuuint32_t steps[] = {1, 1, 1, 1, 1};
  const CUresult result =
      encode_tiled()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, kv.data, sizes, strides, box, steps,
                     CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <int D>
constexpr int kSharedBytes = 2 * D * (kManyColumns + 2 * kStages<D> * kTokens) + 4 * kStages<D> * 8;

template <int D>
cudaError_t launch(const AttentionArgs& args, cudaStream_t stream) {
  CUtensorMap map;
  if (const cudaError_t error = make_map(args.kv, args.kv_heads, map); error != cudaSuccess) {
    return error;
  }
  if (const cudaError_t error = cudaFuncSetAttribute(
          many_rows_hopper<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<D>);
      error != cudaSuccess) {
    return error;
  }
  many_rows_hopper<D>
      <<<dim3(args.work.num_many, args.kv_heads), kThreads, kSharedBytes<D>, stream>>>(
          args, map, box_tokens(args.kv));
  return cudaGetLastError();
}

}  // namespace

bool hopper_takes(const AttentionArgs& args) {
  int device = 0, major = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) {
    return false;
  }
  return major == 9 && (args.kv.head_dim == 64 || args.kv.head_dim == 128) &&
         box_tokens(args.kv) >= kSmallestBox && encode_tiled() != nullptr;
}

cudaError_t launch_many_rows_hopper(const AttentionArgs& args, cudaStream_t stream) {
  if (args.work.num_many == 0) {
    return cudaSuccess;
  }
  return args.kv.head_dim == 64 ? launch<64>(args, stream) : launch<128>(args, stream);
}

}  // namespace quire::attention::cuda
