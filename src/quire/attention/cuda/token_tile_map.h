// Where the copy engine finds tiles of keys and values: a tensor map (CUDA Driver API, "Tensor Map
// Object Management").
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <numeric>

#include "quire/attention/cuda/args.h"
#include "quire/attention/device_plan.h"

namespace quire::attention::cuda {

// Returns the tokens of a box of the copy engine: the most that divide a block and a tile.
[[nodiscard]] constexpr int box_of(std::int32_t block_tokens) {
  return std::gcd(block_tokens, kTokenTile);
}

// Returns whether blocks of this size suit the copy engine, and the driver knows it.
[[nodiscard]] bool can_make_map(std::int32_t block_tokens);

// Makes a map with the dimensions element or code, slot, key or value, block, KV head. Only where
// can_make_map.
[[nodiscard]] cudaError_t make_map(const DeviceKV& kv, std::int32_t kv_heads, CUtensorMap& map);

}  // namespace quire::attention::cuda
