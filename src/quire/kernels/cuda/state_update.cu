// update_states(): the gated delta rule and state spaces, row after row.
//
// A matrix [keys, values] of a head goes through the rows in registers. A block has 32 columns and
// four warps that compute. Sixteen lanes share four columns: each has a part of the keys. A fifth
// warp brings rows to shared memory while those before are computed.
//
// Reading shared memory binds such a kernel before products do: its bytes go to each lane. So a key
// that a lane reads meets four columns.
#include <cuda_pipeline.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "quire/kernels/cuda/launch.cuh"
#include "quire/kernels/cuda/state_ops.h"
#include "quire/kernels/state_parts.h"

namespace quire::kernels::cuda {
namespace {

constexpr int kWarpThreads = 32;
constexpr int kWarps = 4;
constexpr int kThreads = (kWarps + 1) * kWarpThreads;
constexpr int kLaneColumns = 4;
constexpr int kWarpColumns = kWarpThreads / kKeyParts * kLaneColumns;
constexpr int kColumns = kWarps * kWarpColumns;  // of a block
constexpr int kStagedRows = 16;
constexpr unsigned kAllLanes = 0xffffffffu;

// Rows of a head in shared memory.
template <int kMost>
struct Stage {
  struct Row {
    float keys[kMost], queries[kMost], values[kColumns];
  };
  Row rows[kStagedRows];
  float gates[kStagedRows][2];  // beta, decay
};

// Copies pieces of a row that lie at the same place in each. kPiece: floats of a copy.
template <int kMost, int kPiece>
struct Pieces {
  using Row = typename Stage<kMost>::Row;
  static constexpr int kRow = sizeof(Row) / sizeof(float);
  static constexpr int kMine = (kRow / kPiece + kWarpThreads - 1) / kWarpThreads;

  const float* from[kMine];  // of the next row
  int to[kMine], zeros[kMine];
  bool is_there[kMine];

  // Finds the pieces of a lane, of row 0.
  __device__ Pieces(const StateUpdateParams& params, int key, int query, int value, int columns,
                    int lane) {
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      to[i] = (i * kWarpThreads + lane) * kPiece;
      is_there[i] = to[i] < kRow;
      const bool of_keys = to[i] < kMost, of_values = to[i] >= 2 * kMost;
      const int at = to[i] - (of_keys ? 0 : of_values ? 2 * kMost : kMost);
      zeros[i] = at < (of_values ? columns : params.key_dim) ? 0 : kPiece * sizeof(float);
      from[i] = params.x + (of_keys ? key : of_values ? value : query) + (zeros[i] == 0 ? at : 0);
    }
  }
  __device__ void skip(std::int64_t floats) {
#pragma unroll
    for (auto& piece : from) {
      piece += floats;
    }
  }
  // Asks for the next rows.
  __device__ __forceinline__ void load(Row* rows, int count, int channels) {
#pragma unroll 4
    for (int row = 0; row < count; ++row) {
      auto* const numbers = reinterpret_cast<float*>(rows + row);
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        if (is_there[i]) {
          __pipeline_memcpy_async(numbers + to[i], from[i], kPiece * sizeof(float), zeros[i]);
        }
        from[i] += channels;
      }
    }
  }
};

// Brings the rows of a run to shared memory, stage after stage: the work of one warp.
template <int kMost, int kPiece>
__device__ void bring_rows(const StateUpdateParams& params, const StateRows& run, int head,
                           int first_column, Stage<kMost>* stages) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int key_head =
      params.keys_in_turn ? head % params.key_heads : head / (params.heads / params.key_heads);
  Pieces<kMost, kPiece> pieces(params, params.key + key_head * params.key_dim,
                               params.query + key_head * params.key_dim,
                               params.value + head * params.value_dim + first_column,
                               min(params.value_dim - first_column, kColumns), lane);
  pieces.skip(std::int64_t{run.first_row} * params.channels);
  const float* gate =
      params.gates + (std::int64_t{run.first_row + lane / 2} * 2 + lane % 2) * params.heads + head;
  static_assert(kStagedRows * 2 == kWarpThreads);
  const int end = run.first_row + run.num_rows;
  const auto bring = [&](Stage<kMost>& stage, int rows) {
    pieces.load(stage.rows, rows, params.channels);
    if (lane / 2 < rows) {
      __pipeline_memcpy_async(&stage.gates[lane / 2][lane % 2], gate, sizeof(float));
    }
    gate += std::int64_t{2} * kStagedRows * params.heads;
    __pipeline_commit();
  };
  bring(stages[0], min(end - run.first_row, kStagedRows));
  for (int first = run.first_row, next = 1; first < end; first += kStagedRows, next ^= 1) {
    __pipeline_wait_prior(0);
    __syncthreads();  // the others have left the stage that is filled next
    if (const int left = end - first - kStagedRows; left > 0) {
      bring(stages[next], min(left, kStagedRows));
    }
  }
}

// Returns whether pieces of four floats lie on vectors of memory.
__device__ bool has_vectors(const StateUpdateParams& params) {
  const int all = params.channels | params.query | params.key | params.key_dim | params.value |
                  params.value_dim;
  return all % 4 == 0 && reinterpret_cast<std::uintptr_t>(params.x) % 16 == 0;
}

// Runs four columns and a part of the keys through the rows of a sequence. Keys of up to kMost
// numbers; those behind key_dim are zeros, and change nothing.
template <int kMost, bool kScan>
struct Columns {
  static constexpr int kVectors = kMost / kKeyParts / kPartVector;  // of a part
  static constexpr int kKeys = kVectors * kPartVector;
  using Keys = float[kKeys];

  const StateUpdateParams& params;
  const StateRows& run;
  const int head, first_column;  // of the lane
  const int in_block;            // the place of that column
  const int lane, part;
  float state[kLaneColumns][kKeys];

  // Calls visit(numbers of the lane's columns, where they lie in a state's matrix) for each key.
  template <class Visit>
  __device__ __forceinline__ void visit_keys(const Visit& visit) {
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const int key = (i / kPartVector * kKeyParts + part) * kPartVector + i % kPartVector;
      if (key < params.key_dim) {
        visit([&](int column) -> float& { return state[column][i]; },
              std::int64_t{key} * params.value_dim + first_column);
      }
    }
  }
  [[nodiscard]] __device__ float* matrix_of(std::int32_t index) const {
    return reinterpret_cast<float*>(params.states.data + index * params.states.stride) +
           params.matrix + std::int64_t{head} * params.key_dim * params.value_dim;
  }
  // Returns whether a key's numbers are a vector of memory.
  [[nodiscard]] __device__ bool has_vectors(const float* matrix) const {
    return params.value_dim % kLaneColumns == 0 &&
           reinterpret_cast<std::uintptr_t>(matrix) % sizeof(float4) == 0;
  }
  __device__ void load_state() {
#pragma unroll
    for (auto& column : state) {
#pragma unroll
      for (float& number : column) {
        number = 0;
      }
    }
    if (run.from < 0 || first_column >= params.value_dim) {
      return;
    }
    const float* const from = matrix_of(run.from);
    if (has_vectors(from)) {
      visit_keys([&](const auto& number, std::int64_t at) {
        const float4 numbers = *reinterpret_cast<const float4*>(from + at);
        number(0) = numbers.x;
        number(1) = numbers.y;
        number(2) = numbers.z;
        number(3) = numbers.w;
      });
      return;
    }
    visit_keys([&](const auto& number, std::int64_t at) {
#pragma unroll
      for (int column = 0; column < kLaneColumns; ++column) {
        number(column) = first_column + column < params.value_dim ? from[at + column] : 0.0f;
      }
    });
  }
  __device__ void store_state(std::int32_t index) {
    float* const to = matrix_of(index);
    if (first_column >= params.value_dim) {
      return;
    }
    if (has_vectors(to)) {
      visit_keys([&](const auto& number, std::int64_t at) {
        *reinterpret_cast<float4*>(to + at) = {number(0), number(1), number(2), number(3)};
      });
      return;
    }
    visit_keys([&](const auto& number, std::int64_t at) {
#pragma unroll
      for (int column = 0; column < kLaneColumns; ++column) {
        if (first_column + column < params.value_dim) {
          to[at + column] = number(column);
        }
      }
    });
  }

  // The lane adds up one sum of its columns: what the keys of column `owned` read, or where
  // `owns_output` its output.
  [[nodiscard]] __device__ bool owns_output() const { return part % 2 == 1; }
  [[nodiscard]] __device__ int owned() const { return part / 2 % 2 * 2 + part / 4 % 2; }
  // Returns the lane that has what the keys of a column read.
  [[nodiscard]] __device__ int reader_of(int column) const {
    return lane / kKeyParts * kKeyParts + column / 2 * 2 + column % 2 * 4;
  }

  // Halves the sums of a lane: it keeps one half, to which it adds that of its neighbour.
  template <int kLeft>
  __device__ __forceinline__ void halve(const float (&sums)[2 * kLeft], int bit,
                                        float (&left)[kLeft]) const {
    const bool keeps_second = (part & bit) != 0;
#pragma unroll
    for (int i = 0; i < kLeft; ++i) {
      const float kept = keeps_second ? sums[kLeft + i] : sums[i];
      const float sent = keeps_second ? sums[i] : sums[kLeft + i];
      left[i] = __fadd_rn(kept, __shfl_xor_sync(kAllLanes, sent, bit));
    }
  }
  // Returns the sum that the lane owns, of all parts.
  __device__ __forceinline__ float add_parts(const float (&reads)[kLaneColumns],
                                             const float (&outs)[kLaneColumns]) const {
    static_assert(kLaneColumns == 4 && kKeyParts == 16);
    const float all[8] = {reads[0], reads[1], reads[2], reads[3],
                          outs[0],  outs[1],  outs[2],  outs[3]};
    float four[4], two[2], one[1];
    halve<4>(all, 1, four);
    halve<2>(four, 2, two);
    halve<1>(two, 4, one);
    return __fadd_rn(one[0], __shfl_xor_sync(kAllLanes, one[0], 8));
  }

  struct Row {
    Keys keys, queries;
    float beta, decay, value;  // the value of the column that the lane owns
  };
  __device__ __forceinline__ void read_keys(const float (&row)[kMost], Keys& keys) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float4 vector = reinterpret_cast<const float4*>(row)[i * kKeyParts + part];
      keys[i * 4] = vector.x;
      keys[i * 4 + 1] = vector.y;
      keys[i * 4 + 2] = vector.z;
      keys[i * 4 + 3] = vector.w;
    }
  }
  __device__ __forceinline__ void read_row(const Stage<kMost>& stage, int i, Row& row) const {
    read_keys(stage.rows[i].keys, row.keys);
    read_keys(stage.rows[i].queries, row.queries);
    row.beta = stage.gates[i][0];
    row.decay = stage.gates[i][1];
    row.value = stage.rows[i].values[in_block + owned()];
  }

  // Sums of a row that are added and written while the next one is computed.
  struct Output {
    float sums[kLaneColumns] = {};  // of the lane's keys
    float value = 0;
    float* to = nullptr;  // null: there is none, or another lane writes it
  };

  // Returns where the lane writes its output of a row; null where it writes none.
  [[nodiscard]] __device__ float* output_of(int row) const {
    const int column = first_column + owned();
    return owns_output() && part < kKeyParts / 2 && column < params.value_dim
               ? params.out + (std::int64_t{row} * params.heads + head) * params.value_dim + column
               : nullptr;
  }

  // Updates the state by a row, and writes the output of the row before it. Reads row `i` of the
  // stage, which is the next one, into `next`.
  __device__ __forceinline__ void update(const Row& row, const Stage<kMost>& stage, int i,
                                         Row& next, Output& last) {
    float reads[kLaneColumns] = {};
#pragma unroll
    for (int key = 0; key < kKeys; ++key) {
#pragma unroll
      for (int column = 0; column < kLaneColumns; ++column) {
        float& mine = state[column][key];
        mine = __fmul_rn(mine, row.decay);
        reads[column] = kScan ? 0.0f : __fmaf_rn(mine, row.keys[key], reads[column]);
      }
    }
    const float sum = add_parts(reads, last.sums);
    read_row(stage, i, next);
    write(last, sum);
    const float mine_changes =
        kScan ? __fmul_rn(row.value, row.beta) : __fmul_rn(row.beta, __fsub_rn(row.value, sum));
    float change[kLaneColumns];
#pragma unroll
    for (int column = 0; column < kLaneColumns; ++column) {
      change[column] = __shfl_sync(kAllLanes, mine_changes, reader_of(column));
      last.sums[column] = 0;
    }
#pragma unroll
    for (int key = 0; key < kKeys; ++key) {
#pragma unroll
      for (int column = 0; column < kLaneColumns; ++column) {
        float& mine = state[column][key];
        mine = __fmaf_rn(change[column], row.keys[key], mine);
        last.sums[column] = __fmaf_rn(mine, row.queries[key], last.sums[column]);
      }
    }
    last.value = row.value;
  }
  // Writes the output of the last row.
  __device__ void finish(const Output& last) const {
    constexpr float kNoReads[kLaneColumns] = {};
    write(last, add_parts(kNoReads, last.sums));
  }
  // Writes an output of which the lane has the sum.
  __device__ __forceinline__ void write(const Output& of, float sum) const {
    if (of.to != nullptr) {
      *of.to = kScan ? __fmaf_rn(of.value, params.skip[head], sum) : sum;
    }
  }
};

template <int kMost, bool kScan>
__global__ void __launch_bounds__(kThreads, 3) update_kernel(const StateUpdateParams params) {
  begin_kernel();
  extern __shared__ float4 memory[];
  auto* const stages = reinterpret_cast<Stage<kMost>*>(memory);
  const StateRows run = params.states.runs[blockIdx.x / params.heads];
  if (run.num_rows == 0) {
    return;
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int head = static_cast<int>(blockIdx.x) % params.heads;
  const int first_column = static_cast<int>(blockIdx.y) * kColumns;
  const int end = run.first_row + run.num_rows;
  if (warp == kWarps) {
    if (has_vectors(params)) {
      bring_rows<kMost, 4>(params, run, head, first_column, stages);
    } else {
      bring_rows<kMost, 1>(params, run, head, first_column, stages);
    }
    return;
  }
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int in_block = warp * kWarpColumns + lane / kKeyParts * kLaneColumns;
  Columns<kMost, kScan> columns{.params = params,
                                .run = run,
                                .head = head,
                                .first_column = first_column + in_block,
                                .in_block = in_block,
                                .lane = lane,
                                .part = lane % kKeyParts};
  columns.load_state();
  typename Columns<kMost, kScan>::Output last;
  typename Columns<kMost, kScan>::Row even, odd;
  float* to = columns.output_of(run.first_row);
  const std::int64_t out_stride = std::int64_t{params.heads} * params.value_dim;
  int capture = run.first_capture;
  const int end_capture = run.first_capture + run.num_captures;
  int next_capture = capture < end_capture ? params.states.captures[capture].row : end;
  const auto step = [&](const Stage<kMost>& stage, int i, int row, const auto& mine, auto& next) {
    columns.update(mine, stage, min(i + 1, kStagedRows - 1), next, last);
    last.to = to;
    to = to == nullptr ? nullptr : to + out_stride;
    if (row == next_capture) {
      columns.store_state(params.states.captures[capture++].to);
      next_capture = capture < end_capture ? params.states.captures[capture].row : end;
    }
  };
  for (int first = run.first_row, at = 0; first < end; first += kStagedRows, at ^= 1) {
    __syncthreads();
    const Stage<kMost>& stage = stages[at];
    const int count = min(end - first, kStagedRows);
    columns.read_row(stage, 0, even);
    for (int i = 0; i < count; i += 2) {
      step(stage, i, first + i, even, odd);
      if (i + 1 < count) {
        step(stage, i + 1, first + i + 1, odd, even);
      }
    }
  }
  columns.finish(last);
  columns.store_state(run.to);
}

// Returns the bytes to ask for, so that few blocks are spread evenly over the multiprocessors. They
// start while the kernel before still runs, wherever there is room.
std::size_t spread_bytes(std::size_t needed, std::int64_t blocks, int processors) {
  constexpr std::size_t kOfProcessor = 227 << 10, kOfBlock = 1 << 10;
  const std::int64_t each = (blocks + processors - 1) / processors;
  return std::max(needed, kOfProcessor / static_cast<std::size_t>(each) - kOfBlock);
}

template <int kMost, bool kScan>
cudaError_t launch_update(const StateUpdateParams& params, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(params.states.num_runs * params.heads),
                    static_cast<unsigned>((params.value_dim + kColumns - 1) / kColumns));
  int processors = 0;
  if (const cudaError_t error = count_processors(processors); error != cudaSuccess) {
    return error;
  }
  const std::size_t bytes =
      spread_bytes(2 * sizeof(Stage<kMost>), std::int64_t{blocks.x} * blocks.y, processors);
  if (const cudaError_t error = cudaFuncSetAttribute(update_kernel<kMost, kScan>,
                                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                     static_cast<int>(bytes));
      error != cudaSuccess) {
    return error;
  }
  return launch_early(update_kernel<kMost, kScan>, {blocks, kThreads, bytes}, stream, params);
}

template <int kMost>
cudaError_t launch_for_kind(const StateUpdateParams& params, cudaStream_t stream) {
  return params.of_scan ? launch_update<kMost, true>(params, stream)
                        : launch_update<kMost, false>(params, stream);
}

}  // namespace

cudaError_t update_states(const StateUpdateParams& params, cudaStream_t stream) {
  if (params.states.num_runs == 0) {
    return cudaSuccess;
  }
  if (params.key_dim > kMostKeyDim) {
    return cudaErrorInvalidValue;
  }
  return params.key_dim <= 64 ? launch_for_kind<64>(params, stream)
                              : launch_for_kind<kMostKeyDim>(params, stream);
}

}  // namespace quire::kernels::cuda
