// Products of up to 64 rows at a time with quantised weights. A block has a slice of the inputs of
// 128 outputs. Its rows wait in shared memory, some units ahead, and each warp multiplies two tiles
// of outputs with all of them. The eight slices of the same outputs are a cluster. Each block adds
// up an eighth of the rows, in order, out of the shared memory of all.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "quire/kernels/cuda/coded_products.h"
#include "quire/kernels/cuda/codes.cuh"
#include "quire/kernels/cuda/element.cuh"
#include "quire/kernels/cuda/launch.cuh"
#include "quire/kernels/device_codes.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {
namespace {

using tensor::DType;

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpLanes;
constexpr int kTiles = 2;  // of a warp
constexpr int kOutputs = kWarps * kTiles * kTileOutputs;
constexpr int kColumns = 8;  // rows of activations of a tensor core's product
constexpr int kStages = 3;   // units of rows in shared memory
constexpr int kRowVectors = kUnitInputs * 2 / kVectorBytes;
constexpr int kSumStride = kOutputs + 4;  // so that the sums of a warp lie in different banks
static_assert(kOutputs == kThreads, "a thread adds up one output");

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes to shared memory behind the thread's back, or zeros.
__device__ __forceinline__ void copy_or_zero(std::uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from),
               "r"(there ? kVectorBytes : 0)
               : "memory");
}

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void meet_cluster() {
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;\n" ::
          : "memory");
}

// Returns a float of the shared memory of another block of the cluster.
__device__ __forceinline__ float read_of(int block, std::uint32_t address) {
  float value;
  asm volatile(
      "{.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [there];}\n"
      : "=f"(value)
      : "r"(address), "r"(block)
      : "memory");
  return value;
}
#else
// No such kernel is launched there.
__device__ __forceinline__ void meet_cluster() {}
__device__ __forceinline__ float read_of(int, std::uint32_t) { return 0; }
#endif

// kBlocks: of kColumns rows.
template <CodeFormat kFormat, DType T, int kBlocks>
struct ManyRows {
  static constexpr int kRows = kBlocks * kColumns;
  static constexpr int kStageBytes = kRows * kUnitInputs * 2;
  static constexpr int kSumBytes = kRows * kSumStride * 4;
  static constexpr int kBytes =
      kStages * kStageBytes > kSumBytes ? kStages* kStageBytes : kSumBytes;
  using Unit = LaneUnit<kFormat>;
  using Sums = float[kTiles][kBlocks][4];

  // Where vector `vector` of a row lies in a stage. Neighbouring rows have their halves swapped, so
  // that the lanes of a load meet every bank once.
  __device__ __forceinline__ static int place(int row, int vector) {
    return (row * kRowVectors + (vector ^ (row % 2 * 4))) * kVectorBytes;
  }

  // Asks for a unit of the rows.
  __device__ static void ask(const CodedProduct& product, std::int64_t first_row, int unit,
                             std::uint32_t stage) {
    const std::int64_t inputs = product.weights.inputs;
#pragma unroll
    for (int i = 0; i < kRows * kRowVectors / kThreads; ++i) {
      const int index = i * kThreads + static_cast<int>(threadIdx.x);
      const int row = index / kRowVectors, vector = index % kRowVectors;
      const std::int64_t input = std::int64_t{unit} * kUnitInputs + vector * kLaneInputs;
      const bool there = first_row + row < product.rows && input < inputs;
      copy_or_zero(stage + static_cast<std::uint32_t>(place(row, vector)),
                   there ? product.x + (first_row + row) * inputs + input : product.x, there);
    }
  }

  __device__ __forceinline__ static void add_unit(const Unit (&units)[kTiles],
                                                  const std::byte* stage, int lane, Sums& sums) {
#pragma unroll
    for (int group = 0; group < kUnitGroups; ++group) {
      std::uint32_t a[kTiles][2][4];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        units[tile].template operands<T>(group, a[tile]);
      }
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const uint4 values = *reinterpret_cast<const uint4*>(
            stage + place(block * kColumns + lane / 4, group * 4 + lane % 4));
        [[maybe_unused]] float inputs[4] = {};
        if constexpr (Unit::kHasMinimum) {
          sum_inputs<T>(inputs, values);
        }
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          add_group<kFormat, T>(sums[tile][block], a[tile], units[tile], group, values);
          if constexpr (Unit::kHasMinimum) {
            add_minimums<kFormat>(sums[tile][block], units[tile], group, inputs);
          }
        }
      }
    }
  }

  // Adds the slices in order and writes an eighth of the rows.
  __device__ static void finish(const CodedProduct& product, const Sums& sums, int slice,
                                std::int64_t first_row, std::byte* shared) {
    auto* mine = reinterpret_cast<float*>(shared);
    const float* const scales = output_scales(product.weights);
    const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
    const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
    __syncthreads();  // nobody multiplies any more
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int output = (warp * kTiles + tile) * kTileOutputs + lane / 4 + i / 2 * 8;
          const int column = block * kColumns + lane % 4 * 2 + i % 2;
          mine[column * kSumStride + output] = sums[tile][block][i];
        }
      }
    }
    meet_cluster();
    constexpr int kOwnRows = kRows / kSlices;
    const int thread = static_cast<int>(threadIdx.x);
    const std::int64_t output = std::int64_t{blockIdx.y} * kOutputs + thread;
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int column = slice * kOwnRows + i;
      const std::uint32_t from = shared_address(mine + column * kSumStride + thread);
      float sum = read_of(0, from);
#pragma unroll
      for (int other = 1; other < kSlices; ++other) {
        sum += read_of(other, from);
      }
      if (first_row + column < product.rows && output < product.weights.outputs) {
        float* const out = product.out + (first_row + column) * product.weights.outputs + output;
        *out = (product.accumulate ? *out : 0.0f) + scaled<kFormat>(scales, output, sum);
      }
    }
    meet_cluster();  // memory stays until all have read it
  }

  __device__ static void run(const CodedProduct& product, std::byte* shared) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
    const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
    const int slice = static_cast<int>(blockIdx.x) % kSlices;
    const std::int64_t first_row = std::int64_t{blockIdx.x / kSlices} * kRows;
    const int units = static_cast<int>(units_of(product.weights.inputs));
    const std::int64_t last_tile = tiles_of(product.weights.outputs) - 1;
    const uint4* from[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const std::int64_t index = (std::int64_t{blockIdx.y} * kWarps + warp) * kTiles + tile;
      from[tile] = reinterpret_cast<const uint4*>(product.weights.data) +
                   (index < last_tile ? index : last_tile) * units * unit_vectors(kFormat);
    }
    const int begin = slice_start(units, slice), end = slice_start(units, slice + 1);
    Unit ahead[kTiles];
    const auto ask_weights = [&](int unit) {
      if (unit < end) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          ahead[tile].template load<false>(from[tile] + std::int64_t{unit} * unit_vectors(kFormat),
                                           lane);
        }
      }
    };
    const auto ask_rows = [&](int unit) {
      if (unit < end) {
        ask(product, first_row, unit,
            shared_address(shared) +
                static_cast<std::uint32_t>((unit - begin) % kStages * kStageBytes));
      }
      asm volatile("cp.async.commit_group;\n" ::: "memory");
    };
    // The first weights are asked for before the kernel that makes x is done.
    ask_weights(begin);
    begin_kernel();
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      ask_rows(begin + i);
    }
    Sums sums = {};
    for (int unit = begin; unit < end; ++unit) {
      asm volatile("cp.async.wait_group %0;\n" ::"n"(kStages - 2) : "memory");
      __syncthreads();
      ask_rows(unit + kStages - 1);
      Unit now[kTiles];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        now[tile] = ahead[tile];
      }
      ask_weights(unit + 1);
      add_unit(now, shared + (unit - begin) % kStages * kStageBytes, lane, sums);
    }
    finish(product, sums, slice, first_row, shared);
  }
};

template <CodeFormat kFormat, DType T, int kBlocks>
__global__ void __launch_bounds__(kThreads, 2) many_rows_kernel(const CodedProduct product) {
  __shared__ __align__(128) std::byte shared[ManyRows<kFormat, T, kBlocks>::kBytes];
  ManyRows<kFormat, T, kBlocks>::run(product, shared);
}

template <CodeFormat kFormat, DType T, int kBlocks>
cudaError_t launch(const CodedProduct& product, cudaStream_t stream) {
  constexpr std::int64_t kRows = std::int64_t{kBlocks} * kColumns;
  const dim3 blocks(static_cast<unsigned>((product.rows + kRows - 1) / kRows * kSlices),
                    static_cast<unsigned>((product.weights.outputs + kOutputs - 1) / kOutputs));
  return launch_early(many_rows_kernel<kFormat, T, kBlocks>,
                      {.blocks = blocks, .threads = kThreads, .cluster = kSlices}, stream, product);
}

}  // namespace

bool can_share_rows() { return starts_early(); }  // Hopper brought both

cudaError_t multiply_many_rows(const CodedProduct& product, cudaStream_t stream) {
  if (product.rows == 0) {
    return cudaSuccess;
  }
  return launch_for_codes(product.weights.format, [&]<CodeFormat kFormat>() {
    return launch_for_dtype(product.dtype, [&]<DType T>() {
      return product.rows <= 32 ? launch<kFormat, T, 4>(product, stream)
                                : launch<kFormat, T, 8>(product, stream);
    });
  });
}

}  // namespace quire::kernels::cuda
