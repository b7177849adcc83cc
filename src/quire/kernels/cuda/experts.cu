#include <cuda_runtime.h>

#include <cstdint>

#include "quire/kernels/cuda/experts.h"
#include "quire/kernels/cuda/launch.cuh"
#include "quire/kernels/cuda/sums.cuh"

namespace quire::kernels::cuda {
namespace {

constexpr int kWarpThreads = 32;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpThreads;
constexpr int kRoutedRows = 4;  // rows of a block, which share a look at the weights
constexpr int kChoiceThreads = 128;
constexpr int kGroupThreads = 512;
constexpr int kGroupWarps = kGroupThreads / kWarpThreads;
constexpr int kVector = 4;

unsigned blocks_for(std::int64_t count, std::int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

// Returns the factor that norms a row, to every lane.
__device__ float norm_scale(const float4* row, const RouterParams& params, int lane) {
  float squares = 0;
#pragma unroll 4
  for (int i = lane; i < params.width / kVector; i += kWarpThreads) {
    const float4 x = row[i];
    squares = __fmaf_rn(x.x, x.x, squares);
    squares = __fmaf_rn(x.y, x.y, squares);
    squares = __fmaf_rn(x.z, x.z, squares);
    squares = __fmaf_rn(x.w, x.w, squares);
  }
  return 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(params.width) + params.epsilon);
}

// Makes the logits of an expert to a warp, for the rows of its block.
__global__ void __launch_bounds__(kThreads) route_kernel(const RouterParams params) {
  begin_kernel();
  __shared__ float scales[kRoutedRows];
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const std::int64_t first = std::int64_t{blockIdx.x} * kRoutedRows;
  const auto row_at = [&](int row) {
    return reinterpret_cast<const float4*>(params.x +
                                           min(first + row, params.rows - 1) * params.width);
  };
  if (warp < kRoutedRows) {
    scales[warp] = norm_scale(row_at(warp), params, lane);
  }
  __syncthreads();
  const int expert = static_cast<int>(blockIdx.y) * kWarps + warp;
  if (expert >= params.experts) {
    return;
  }
  const auto* const norm = reinterpret_cast<const float4*>(params.norm);
  const auto* const weights =
      reinterpret_cast<const float4*>(params.weights + std::int64_t{expert} * params.width);
  float sums[kRoutedRows] = {};
#pragma unroll 2
  for (int i = lane; i < params.width / kVector; i += kWarpThreads) {
    const float4 weight = weights[i], factor = norm[i];
#pragma unroll
    for (int row = 0; row < kRoutedRows; ++row) {
      const float4 x = row_at(row)[i];
      const float scale = scales[row];
      sums[row] = __fmaf_rn(__fmul_rn(__fmul_rn(x.x, scale), factor.x), weight.x, sums[row]);
      sums[row] = __fmaf_rn(__fmul_rn(__fmul_rn(x.y, scale), factor.y), weight.y, sums[row]);
      sums[row] = __fmaf_rn(__fmul_rn(__fmul_rn(x.z, scale), factor.z), weight.z, sums[row]);
      sums[row] = __fmaf_rn(__fmul_rn(__fmul_rn(x.w, scale), factor.w), weight.w, sums[row]);
    }
  }
#pragma unroll
  for (int row = 0; row < kRoutedRows; ++row) {
    const float sum = warp_sum(sums[row]);
    if (lane == 0 && first + row < params.rows) {
      params.logits[(first + row) * params.experts + expert] =
          params.bias == nullptr ? sum : __fadd_rn(sum, params.bias[expert]);
    }
  }
}

// Tells whether expert `a` ranks before expert `b`.
__device__ bool ranks_before(const float* scores, int a, int b) {
  const float x = scores[a], y = scores[b];
  if (isnan(x) || isnan(y)) {
    return isnan(x) && (!isnan(y) || a < b);
  }
  return x > y || (x == y && a < b);
}

// The scores of a row and what becomes of them.
struct RowChoice {
  float values[kMostExperts];  // logits or sigmoids
  float scores[kMostExperts];  // by which experts are chosen
  float ranks[kMostExperts];   // of groups
  bool is_kept[kMostExperts];  // of a group that is chosen
  bool is_chosen[kMostExperts];
  int ids[kMostExperts];  // of the chosen, ascending
  double terms[kMostExperts];
  double most, divisor;
};

// Sets `ranks`.
__device__ void rank_groups(const ExpertChoiceParams& params, RowChoice& row) {
  const int size = params.experts / params.groups;
  for (int group = static_cast<int>(threadIdx.x); group < params.groups; group += kChoiceThreads) {
    int most = group * size, next = -1;  // experts
    for (int id = most + 1; id < (group + 1) * size; ++id) {
      if (ranks_before(row.scores, id, most)) {
        next = most;
        most = id;
      } else if (next < 0 || ranks_before(row.scores, id, next)) {
        next = id;
      }
    }
    const float second = next < 0 ? -INFINITY : row.scores[next];
    row.ranks[group] = params.by_sigmoid ? __fadd_rn(row.scores[most], second) : row.scores[most];
  }
  __syncthreads();
}

// Tells whether fewer than `chosen_groups` other groups rank before that of an expert.
__device__ bool is_of_kept_group(const ExpertChoiceParams& params, const RowChoice& row, int id) {
  if (params.groups == 1) {
    return true;
  }
  const int group = id / (params.experts / params.groups);
  int before = 0;
  for (int other = 0; other < params.groups; ++other) {
    before += ranks_before(row.ranks, other, group) ? 1 : 0;
  }
  return before < params.chosen_groups;
}

// Sets `ids`. An expert that fewer than `chosen` others rank before is chosen, of those whose
// groups are kept.
__device__ void find_chosen(const ExpertChoiceParams& params, RowChoice& row) {
  if (params.groups > 1) {
    rank_groups(params, row);
  }
  for (int id = static_cast<int>(threadIdx.x); id < params.experts; id += kChoiceThreads) {
    row.is_kept[id] = is_of_kept_group(params, row, id);
  }
  __syncthreads();
  for (int id = static_cast<int>(threadIdx.x); id < params.experts; id += kChoiceThreads) {
    int before = 0;
    for (int other = 0; other < params.experts; ++other) {
      before += row.is_kept[other] && ranks_before(row.scores, other, id) ? 1 : 0;
    }
    row.is_chosen[id] = row.is_kept[id] && before < params.chosen;
  }
  __syncthreads();
  for (int id = static_cast<int>(threadIdx.x); id < params.experts; id += kChoiceThreads) {
    int at = 0;
    for (int other = 0; other < id; ++other) {
      at += row.is_chosen[other] ? 1 : 0;
    }
    if (row.is_chosen[id]) {
      row.ids[at] = id;
    }
  }
  __syncthreads();
}

// Sets `terms`, of which weights are made, and `divisor`. Terms are of all experts for a softmax of
// all, else of the chosen. One thread adds them up, so that the sum has one order.
__device__ void find_terms(const ExpertChoiceParams& params, RowChoice& row) {
  const bool of_all = !params.by_sigmoid && !params.of_chosen;
  const int count = of_all ? params.experts : params.chosen;
  if (threadIdx.x == 0) {
    row.most = row.values[row.ids[0]];
    for (int i = 1; i < params.chosen; ++i) {
      const double value = row.values[row.ids[i]];
      row.most = row.most < value ? value : row.most;
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kChoiceThreads) {
    const double value = row.values[of_all ? i : row.ids[i]];
    row.terms[i] = params.by_sigmoid ? value : exp(value - row.most);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    double sum = 0;
    for (int i = 0; i < count; ++i) {
      sum += row.terms[i];
    }
    row.divisor = !params.by_sigmoid ? sum : params.of_chosen ? sum + params.sum_epsilon : 1;
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kChoiceThreads)
    choose_experts_kernel(const ExpertChoiceParams params) {
  begin_kernel();
  __shared__ RowChoice row;
  const float* const logits = params.logits + std::int64_t{blockIdx.x} * params.experts;
  for (int id = static_cast<int>(threadIdx.x); id < params.experts; id += kChoiceThreads) {
    const float logit = logits[id];
    const float value = params.by_sigmoid
                            ? static_cast<float>(1.0 / (1.0 + exp(-static_cast<double>(logit))))
                            : logit;
    row.values[id] = value;
    row.scores[id] = params.bias == nullptr ? value : __fadd_rn(value, params.bias[id]);
  }
  __syncthreads();
  find_chosen(params, row);
  find_terms(params, row);
  const bool of_all = !params.by_sigmoid && !params.of_chosen;
  for (int i = static_cast<int>(threadIdx.x); i < params.chosen; i += kChoiceThreads) {
    const std::int64_t to = std::int64_t{blockIdx.x} * params.chosen + i;
    const double term = row.terms[of_all ? row.ids[i] : i];
    params.ids[to] = row.ids[i];
    params.weights[to] = static_cast<float>(term / row.divisor * params.weight_scale);
  }
}

// Returns the sum over a block to every thread.
__device__ int sum_of_block(int x) {
  __shared__ int sums[kGroupWarps];
  x = __reduce_add_sync(0xffffffffu, x);
  if (threadIdx.x % kWarpThreads == 0) {
    sums[threadIdx.x / kWarpThreads] = x;
  }
  __syncthreads();
  int total = 0;
  for (const int sum : sums) {
    total += sum;
  }
  __syncthreads();
  return total;
}

// Returns how many threads before this one say yes. Increases `total` by how many do in all.
__device__ int count_before(bool says_yes, int& total) {
  __shared__ int counts[kGroupWarps];
  const unsigned votes = __ballot_sync(0xffffffffu, says_yes);
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const unsigned lane = threadIdx.x % kWarpThreads;
  if (lane == 0) {
    counts[warp] = __popc(votes);
  }
  __syncthreads();
  int before = total + __popc(votes & ((1u << lane) - 1));
  for (int i = 0; i < kGroupWarps; ++i) {
    before += i < warp ? counts[i] : 0;
    total += counts[i];
  }
  __syncthreads();
  return before;
}

// Gives the rows of an expert to a block their places. Every block counts the rows of all experts.
__global__ void __launch_bounds__(kGroupThreads) group_rows_kernel(const GroupParams params) {
  begin_kernel();
  __shared__ int counts[kMostExperts];
  const int thread = static_cast<int>(threadIdx.x), expert = static_cast<int>(blockIdx.x);
  const int places = static_cast<int>(params.rows) * params.chosen;
  for (int id = thread; id < params.experts; id += kGroupThreads) {
    counts[id] = 0;
  }
  __syncthreads();
  for (int i = thread; i < places; i += kGroupThreads) {
    atomicAdd(&counts[params.ids[i]], 1);
  }
  __syncthreads();
  const auto groups_of = [&](int count) {
    return (count + params.block_rows - 1) / params.block_rows;
  };
  int before = 0, groups_before = 0;
  for (int id = thread; id < expert; id += kGroupThreads) {
    before += counts[id];
    groups_before += groups_of(counts[id]);
  }
  before = sum_of_block(before);
  groups_before = sum_of_block(groups_before);
  const int own = counts[expert];
  for (int i = thread; i < groups_of(own); i += kGroupThreads) {
    params.groups[groups_before + i] = {expert, before + i * params.block_rows,
                                        min(params.block_rows, own - i * params.block_rows)};
  }
  if (expert == params.experts - 1) {
    const auto all = static_cast<int>(most_expert_rows(places, params.experts, params.block_rows));
    for (int i = groups_before + groups_of(own) + thread; i < all; i += kGroupThreads) {
      params.groups[i] = {};
    }
  }
  int done = before;
  for (int first = 0; first < places && done < before + own; first += kGroupThreads) {
    const int i = first + thread;
    const bool is_mine = i < places && params.ids[i] == expert;
    const int place = count_before(is_mine, done);
    if (is_mine) {
      params.row_of[place] = i / params.chosen;
      params.places_of[i] = place;
    }
  }
}

__global__ void __launch_bounds__(kThreads) add_expert_bias_kernel(const ExpertBiasParams params) {
  begin_kernel();
  const ExpertRows group = params.groups[blockIdx.x];
  const float* const bias = params.bias + std::int64_t{group.expert} * params.width;
  for (int row = 0; row < group.count; ++row) {
    float* const out = params.out + std::int64_t{group.first + row} * params.width;
    for (int i = static_cast<int>(threadIdx.x); i < params.width; i += kThreads) {
      out[i] = __fadd_rn(out[i], bias[i]);
    }
  }
}

__global__ void __launch_bounds__(kThreads) sum_experts_kernel(const ExpertSumParams params) {
  begin_kernel();
  const std::int64_t row = blockIdx.x;
  const int at = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (at >= params.width / kVector) {
    return;
  }
  float4 sum = {};
  for (int i = 0; i < params.chosen; ++i) {
    const std::int64_t place = params.places_of[row * params.chosen + i];
    const float weight = params.weights[row * params.chosen + i];
    const float4 product =
        reinterpret_cast<const float4*>(params.products + place * params.width)[at];
    sum.x = __fmaf_rn(weight, product.x, sum.x);
    sum.y = __fmaf_rn(weight, product.y, sum.y);
    sum.z = __fmaf_rn(weight, product.z, sum.z);
    sum.w = __fmaf_rn(weight, product.w, sum.w);
  }
  float4& out = reinterpret_cast<float4*>(params.out + row * params.width)[at];
  if (params.accumulate) {
    sum = {__fadd_rn(out.x, sum.x), __fadd_rn(out.y, sum.y), __fadd_rn(out.z, sum.z),
           __fadd_rn(out.w, sum.w)};
  }
  out = sum;
}

__global__ void __launch_bounds__(kThreads) add_shared_kernel(const SharedSumParams params) {
  begin_kernel();
  const int i = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (i >= params.width) {
    return;
  }
  const std::int64_t at = std::int64_t{blockIdx.x} * params.width + i;
  const double logit = params.gates == nullptr ? 0 : params.gates[blockIdx.x];
  const float factor =
      params.gates == nullptr ? 1.0f : static_cast<float>(1.0 / (1.0 + exp(-logit)));
  params.out[at] = __fadd_rn(params.out[at], __fmul_rn(params.x[at], factor));
}

}  // namespace

cudaError_t route(const RouterParams& params, cudaStream_t stream) {
  if (params.rows == 0) {
    return cudaSuccess;
  }
  const dim3 blocks(blocks_for(params.rows, kRoutedRows), blocks_for(params.experts, kWarps));
  return launch_early(route_kernel, {blocks, kThreads}, stream, params);
}

cudaError_t choose_experts(const ExpertChoiceParams& params, cudaStream_t stream) {
  if (params.rows == 0) {
    return cudaSuccess;
  }
  return launch_early(choose_experts_kernel, {static_cast<unsigned>(params.rows), kChoiceThreads},
                      stream, params);
}

cudaError_t group_rows(const GroupParams& params, cudaStream_t stream) {
  if (params.rows == 0) {
    return cudaSuccess;
  }
  return launch_early(group_rows_kernel, {static_cast<unsigned>(params.experts), kGroupThreads},
                      stream, params);
}

cudaError_t add_expert_bias(const ExpertBiasParams& params, cudaStream_t stream) {
  if (params.num_groups == 0) {
    return cudaSuccess;
  }
  return launch_early(add_expert_bias_kernel, {static_cast<unsigned>(params.num_groups), kThreads},
                      stream, params);
}

cudaError_t sum_experts(const ExpertSumParams& params, cudaStream_t stream) {
  if (params.rows == 0) {
    return cudaSuccess;
  }
  const dim3 blocks(static_cast<unsigned>(params.rows),
                    blocks_for(params.width / kVector, kThreads));
  return launch_early(sum_experts_kernel, {blocks, kThreads}, stream, params);
}

cudaError_t add_shared(const SharedSumParams& params, cudaStream_t stream) {
  if (params.rows == 0) {
    return cudaSuccess;
  }
  const dim3 blocks(static_cast<unsigned>(params.rows), blocks_for(params.width, kThreads));
  return launch_early(add_shared_kernel, {blocks, kThreads}, stream, params);
}

}  // namespace quire::kernels::cuda
