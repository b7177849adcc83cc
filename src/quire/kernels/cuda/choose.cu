// One block reads one row several times. The first time it looks for the peak. Then it looks for
// the least likely token that top-k and top-p leave, digit by digit of the logits taken as integers
// (radix select). The last time it looks for the token at which the running sum exceeds the uniform
// number. The most likely tokens, whose log probabilities are wanted, are found as those that top-k
// leaves.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "quire/kernels/cuda/choose.h"

namespace quire::kernels::cuda {
namespace {

using Unsigned64 = unsigned long long;  // type that atomicAdd knows

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kDigits = 256;
constexpr int kCopies = 8;  // copies of a histogram, so that lanes seldom meet
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr float kUnits = 17592186044416.0f;  // 2^44
static_assert(kMostLogprobs <= kThreads, "a thread for each of the most likely tokens");

// Returns a key that is greater for greater logits and the same for equal ones: adding 0 makes -0
// to 0.
__device__ __forceinline__ std::uint32_t key_of(float logit) {
  const std::uint32_t bits = __float_as_uint(logit + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float logit_of(std::uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// The least likely tokens that are left: all with a greater key, and of those with this key the
// first `ties` by id.
struct Border {
  std::uint32_t key = 0;
  Unsigned64 ties = ~0ull;
};

struct Shared {
  Unsigned64 histogram[kCopies][kDigits];
  Unsigned64 by_warp[kWarps];
  Unsigned64 ties_by_warp[kWarps];
  Unsigned64 found_before;
  int found_digit;
};

__device__ Unsigned64 warp_prefix(Unsigned64 x, int lane) {
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const Unsigned64 other = __shfl_up_sync(kAllLanes, x, lanes);
    x += lane >= lanes ? other : 0;
  }
  return x;
}

__device__ Unsigned64 warp_sum(Unsigned64 x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    x += __shfl_xor_sync(kAllLanes, x, lanes);
  }
  return x;
}

struct Row {
  const float* logits;
  int vocab;
  Choice choice;
  Shared& shared;
  float peak = 0;
  int thread = static_cast<int>(threadIdx.x);
  int warp = static_cast<int>(threadIdx.x) / 32;
  int lane = static_cast<int>(threadIdx.x) % 32;

  // Returns the weight in units, or 0 where min-p forbids the token.
  __device__ Unsigned64 weight(float logit, bool with_min_p) const {
    const auto exponent = static_cast<float>((logit - peak) / choice.temperature);
    const float x = expf(exponent);
    return with_min_p && x < choice.min_p ? 0 : __float2ull_rz(x * kUnits);
  }

  // Packs a token into a number that is greater for likelier tokens and, among equal ones, for the
  // lower id.
  __device__ Unsigned64 packed(int id) const {
    return Unsigned64{key_of(logits[id])} << 32 | ~static_cast<std::uint32_t>(id);
  }

  // Returns the most likely token, packed; 0 where none can be chosen.
  __device__ Unsigned64 find_peak() {
    Unsigned64 best = 0;
    bool bad = false;
    for (int i = thread; i < vocab; i += kThreads) {
      bad |= !(logits[i] < INFINITY);
      best = max(best, packed(i));
    }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      best = max(best, __shfl_xor_sync(kAllLanes, best, lanes));
    }
    if (lane == 0) {
      shared.by_warp[warp] = best;
    }
    const bool any_bad = __syncthreads_or(bad) != 0;
    for (int i = 0; i < kWarps; ++i) {
      best = max(best, shared.by_warp[i]);
    }
    __syncthreads();
    peak = logit_of(static_cast<std::uint32_t>(best >> 32));
    return any_bad || peak == -INFINITY ? 0 : best;
  }

  // Returns the sum over the block to every thread.
  __device__ Unsigned64 sum(Unsigned64 x) {
    x = warp_sum(x);
    if (lane == 0) {
      shared.by_warp[warp] = x;
    }
    __syncthreads();
    Unsigned64 total = 0;
    for (int i = 0; i < kWarps; ++i) {
      total += shared.by_warp[i];
    }
    __syncthreads();
    return total;
  }

  // Returns where the sum of value(key, logit), from the greatest key downward, first reaches
  // `goal`. `goal` is at least 1 and at most the sum of all. value is the same for equal keys.
  template <class Value>
  __device__ Border find_border(Unsigned64 goal, const Value& value) {
    std::uint32_t prefix = 0, mask = 0;
    Unsigned64 above = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
      for (int i = thread; i < kCopies * kDigits; i += kThreads) {
        shared.histogram[i / kDigits][i % kDigits] = 0;
      }
      __syncthreads();
      for (int i = thread; i < vocab; i += kThreads) {
        const float logit = logits[i];
        const std::uint32_t key = key_of(logit);
        if ((key & mask) == prefix) {
          if (const Unsigned64 x = value(key, logit); x > 0) {
            atomicAdd(&shared.histogram[lane % kCopies][key >> shift & (kDigits - 1)], x);
          }
        }
      }
      __syncthreads();
      find_digit(goal - above);
      above += shared.found_before;
      prefix |= static_cast<std::uint32_t>(shared.found_digit) << shift;
      mask |= std::uint32_t{kDigits - 1} << shift;
      __syncthreads();
    }
    const Unsigned64 each = value(prefix, logit_of(prefix));
    return {prefix, (goal - above + each - 1) / each};
  }

  // Finds the digit at which the histogram, summed from above, reaches `goal`, and the sum above
  // that digit.
  __device__ void find_digit(Unsigned64 goal) {
    const int digit = kDigits - 1 - thread;
    Unsigned64 mine = 0;
    if (digit >= 0) {
      for (int copy = 0; copy < kCopies; ++copy) {
        mine += shared.histogram[copy][digit];
      }
    }
    Unsigned64 reached = warp_prefix(mine, lane);
    if (lane == 31) {
      shared.by_warp[warp] = reached;
    }
    __syncthreads();
    for (int i = 0; i < warp; ++i) {
      reached += shared.by_warp[i];
    }
    if (mine > 0 && reached >= goal && reached - mine < goal) {
      shared.found_digit = digit;
      shared.found_before = reached - mine;
    }
    __syncthreads();
  }

  // Finds the border that leaves the `count` likeliest tokens. Precondition: count is in [1,
  // vocab].
  __device__ Border cut_by_top_k(std::int32_t count) {
    return find_border(static_cast<Unsigned64>(count), [](std::uint32_t, float) { return 1ull; });
  }

  __device__ Border cut_by_top_p(Border border) {
    Unsigned64 above = 0;
    for (int i = thread; i < vocab; i += kThreads) {
      above += key_of(logits[i]) > border.key ? weight(logits[i], false) : 0;
    }
    // Without top-k the border is below every key and has no ties.
    const Unsigned64 at = border.key == 0 ? 0 : weight(logit_of(border.key), false) * border.ties;
    const Unsigned64 all = sum(above) + at;
    const auto goal = static_cast<Unsigned64>(ceil(choice.top_p * static_cast<double>(all)));
    return find_border(min(max(goal, 1ull), all), [&](std::uint32_t key, float logit) {
      return key >= border.key ? weight(logit, false) : 0;
    });
  }

  // Ids of a warp, and of what is left in them the ties that it may take and the target of its sum.
  struct IdRange {
    int first = 0, end = 0;
    Unsigned64 ties = 0, target = 0;
  };
  __device__ IdRange my_range() const {
    const int ids = (vocab + kThreads - 1) / kThreads * 32;
    return {warp * ids, min(warp * ids + ids, vocab)};
  }

  // Returns whether this lane's token, a tie, is among the first `left` of those that lanes show;
  // these are used up. One warp.
  __device__ bool takes_tie(bool tie, Unsigned64& left) const {
    const unsigned ties = __ballot_sync(kAllLanes, tie);
    const bool taken = tie && __popc(ties & ((1u << lane) - 1)) < left;
    left -= min(static_cast<Unsigned64>(__popc(ties)), left);
    return taken;
  }

  // Writes the first token by id at which the running sum of the remaining weights exceeds its
  // share.
  __device__ void pick(Border border, std::int32_t* chosen) {
    IdRange range = my_range();
    Unsigned64 greater = 0, ties = 0;
    for (int i = range.first + lane; i < range.end; i += 32) {
      const std::uint32_t key = key_of(logits[i]);
      greater += key > border.key ? weight(logits[i], true) : 0;
      ties += key == border.key ? 1 : 0;
    }
    greater = warp_sum(greater);
    ties = warp_sum(ties);
    if (lane == 0) {
      shared.by_warp[warp] = greater;
      shared.ties_by_warp[warp] = ties;
    }
    __syncthreads();
    const Unsigned64 each = border.key == 0 ? 0 : weight(logit_of(border.key), true);
    Unsigned64 all = 0, ties_left = border.ties;
    Unsigned64 before = 0, mine = 0;  // sums before and of this warp's range
    for (int i = 0; i < kWarps; ++i) {
      const Unsigned64 taken = min(shared.ties_by_warp[i], ties_left);
      const Unsigned64 here = shared.by_warp[i] + taken * each;
      if (i == warp) {
        before = all;
        mine = here;
        range.ties = ties_left;
      }
      ties_left -= taken;
      all += here;
    }
    const auto share = static_cast<Unsigned64>(choice.uniform * static_cast<double>(all));
    const Unsigned64 target = min(share, all - 1);
    if (before <= target && target < before + mine) {
      range.target = target - before;
      scan(range, border, each, chosen);
    }
  }

  // Writes the id at which the running sum of the range exceeds its target. One warp calls it.
  __device__ void scan(const IdRange& range, Border border, Unsigned64 each, std::int32_t* chosen) {
    const int end = range.end;
    Unsigned64 ties_left = range.ties;
    Unsigned64 reached = 0;
    for (int base = range.first; base < end; base += 32) {
      const int i = base + lane;
      const std::uint32_t key = i < end ? key_of(logits[i]) : 0;
      const bool tie = i < end && key == border.key;
      const bool taken = takes_tie(tie, ties_left);
      const bool greater = i < end && key > border.key;
      const Unsigned64 x = greater ? weight(logits[i], true) : taken ? each : 0;
      const Unsigned64 sum = reached + warp_prefix(x, lane);
      const unsigned beyond = __ballot_sync(kAllLanes, sum > range.target);
      if (beyond != 0) {
        if (lane == 0) {
          *chosen = base + __ffs(static_cast<int>(beyond)) - 1;
        }
        return;
      }
      reached = __shfl_sync(kAllLanes, sum, 31);
    }
  }

  // Returns the logarithm of the sum of all weights, in units of the logits. Precondition: the
  // temperature is 1.
  __device__ double log_sum() {
    Unsigned64 all = 0;
    for (int i = thread; i < vocab; i += kThreads) {
      all += weight(logits[i], false);
    }
    return peak + log(static_cast<double>(sum(all)) / kUnits);
  }

  // Collects the tokens that the border leaves, packed, in any order. `count` is 0 before.
  __device__ void gather(Border border, Unsigned64* tokens, int* count) {
    const IdRange range = my_range();
    Unsigned64 ties = 0;
    for (int i = range.first + lane; i < range.end; i += 32) {
      ties += key_of(logits[i]) == border.key ? 1 : 0;
    }
    ties = warp_sum(ties);
    if (lane == 0) {
      shared.ties_by_warp[warp] = ties;
    }
    __syncthreads();
    Unsigned64 ties_left = border.ties;
    for (int i = 0; i < warp; ++i) {
      ties_left -= min(shared.ties_by_warp[i], ties_left);
    }
    for (int base = range.first; base < range.end; base += 32) {
      const int i = base + lane;
      const std::uint32_t key = i < range.end ? key_of(logits[i]) : 0;  // 0: no token's
      const bool taken = takes_tie(key == border.key, ties_left);
      if (taken || key > border.key) {
        tokens[atomicAdd(count, 1)] = packed(i);
      }
    }
    __syncthreads();
  }
};

__global__ void __launch_bounds__(kThreads) choose_kernel(const ChooseParams params) {
  __shared__ Shared shared;
  const std::int64_t index = blockIdx.x;
  std::int32_t* const chosen = params.chosen + index;
  Row row = {params.logits + index * params.vocab, params.vocab, params.choices[index], shared};
  const Unsigned64 best = row.choice.wanted != 0 ? row.find_peak() : 0;
  if (best == 0 || row.choice.temperature == 0) {
    if (threadIdx.x == 0) {
      *chosen =
          best == 0 ? kNotChosen : static_cast<std::int32_t>(~static_cast<std::uint32_t>(best));
    }
    return;
  }
  Border border;
  if (row.choice.top_k > 0 && row.choice.top_k < params.vocab) {
    border = row.cut_by_top_k(row.choice.top_k);
  }
  if (row.choice.top_p < 1) {
    border = row.cut_by_top_p(border);
  }
  row.pick(border, chosen);
}

__global__ void __launch_bounds__(kThreads) logprobs_kernel(const LogprobParams params) {
  __shared__ Shared shared;
  __shared__ Unsigned64 likeliest[kMostLogprobs];
  __shared__ int gathered;
  const std::int64_t index = blockIdx.x;
  const std::int32_t chosen = params.chosen[index];
  const int wanted = min(params.choices[index].logprobs, params.vocab);
  if (chosen == kNotChosen || wanted < 0) {
    return;
  }
  Row row = {params.logits + index * params.vocab, params.vocab, {.temperature = 1}, shared};
  if (row.find_peak() == 0) {
    if (row.thread == 0) {
      params.chosen[index] = kNotChosen;
    }
    return;
  }
  const double log_sum = row.log_sum();
  TokenLogprob* const out = params.logprobs + index * params.width;
  const auto tell = [&](std::int32_t id, int place) {
    out[place] = {id, static_cast<float>(row.logits[id] - log_sum)};
  };
  if (row.thread == 0) {
    gathered = 0;
    tell(chosen, 0);
  }
  if (wanted == 0) {
    return;
  }
  row.gather(row.cut_by_top_k(wanted), likeliest, &gathered);
  if (row.thread < wanted) {
    const Unsigned64 mine = likeliest[row.thread];
    int place = 1;
    for (int i = 0; i < wanted; ++i) {
      place += likeliest[i] > mine ? 1 : 0;
    }
    tell(static_cast<std::int32_t>(~static_cast<std::uint32_t>(mine)), place);
  }
}

// Returns the logit of this thread's change; null if there is none.
__device__ float* logit_of(const ChangeParams& params, std::int64_t index) {
  if (index >= params.count || params.changes[index].row < 0) {
    return nullptr;
  }
  const LogitChange& change = params.changes[index];
  return params.logits + std::int64_t{change.row} * params.vocab + change.id;
}

__global__ void change_kernel(const ChangeParams params) {
  const std::int64_t index = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (float* const logit = logit_of(params, index); logit != nullptr) {
    if (params.originals != nullptr) {
      params.originals[index] = *logit;
    }
    *logit = changed_logit(*logit, params.changes[index]);
  }
}

__global__ void restore_kernel(const ChangeParams params) {
  const std::int64_t index = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (float* const logit = logit_of(params, index); logit != nullptr) {
    *logit = params.originals[index];
  }
}

cudaError_t launch_for_changes(void (*kernel)(ChangeParams), const ChangeParams& params,
                               cudaStream_t stream) {
  constexpr int kChangeThreads = 256;
  if (params.count == 0) {
    return cudaSuccess;
  }
  const auto blocks = static_cast<unsigned>((params.count + kChangeThreads - 1) / kChangeThreads);
  kernel<<<blocks, kChangeThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

cudaError_t change_logits(const ChangeParams& params, cudaStream_t stream) {
  return launch_for_changes(change_kernel, params, stream);
}

cudaError_t restore_logits(const ChangeParams& params, cudaStream_t stream) {
  return launch_for_changes(restore_kernel, params, stream);
}

cudaError_t choose(const ChooseParams& params, cudaStream_t stream) {
  if (params.rows == 0) {
    return cudaSuccess;
  }
  choose_kernel<<<static_cast<unsigned>(params.rows), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t find_logprobs(const LogprobParams& params, cudaStream_t stream) {
  if (params.rows == 0) {
    return cudaSuccess;
  }
  logprobs_kernel<<<static_cast<unsigned>(params.rows), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace quire::kernels::cuda
