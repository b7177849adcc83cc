// How much each token of a run is looked at: what a probe of a forward pass asks for.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "quire/attention/cuda/args.h"

namespace quire::attention::cuda {

// One entry's share of the probabilities that its rows give its tokens. Device memory.
struct MassArgs {
  DeviceKV kv;
  const std::int32_t* blocks = nullptr;  // block ids of the run
  std::int32_t first_token = 0, num_tokens = 0;
  std::int32_t stored_from = 0;                   // position that the key of token 0 is rotated to
  std::int32_t window_tokens = 0;                 // 0: none
  const std::uint16_t* q = nullptr;               // [queries, heads, stored head_dim], rotated
  const std::int32_t* query_rows = nullptr;       // [queries] row of the batch
  const std::int32_t* query_ends = nullptr;       // [queries] sees the tokens before it
  const std::int32_t* query_positions = nullptr;  // [queries] relative to the run
  std::int32_t num_queries = 0;
  std::int32_t heads = 0, kv_heads = 0;
  float scale_log2 = 0, cap_log2 = 0;
  const float* lse = nullptr;  // [rows, heads] natural log, over all entries
  double* mass = nullptr;      // [num_tokens], increased
};

[[nodiscard]] cudaError_t add_mass(const MassArgs& args, cudaStream_t stream);

}  // namespace quire::attention::cuda
