// Helpers of the GPU tests of the contiguous KV cache: a cache on the device beside one in host
// memory that the reference keeps.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "quire/device/cuda/gpu_test_util.h"
#include "quire/kv_cache.h"
#include "quire/kv_cache/kv_update.h"

namespace quire::kv_cache::cuda::test {

using device::cuda::test::Bytes;
using device::cuda::test::must;
using device::cuda::test::random_bytes;

inline KVCacheConfig config_of(int layers, int context, int heads, int dim,
                               KVDType dtype = KVDType::kFloat16) {
  return {.num_layers = layers,
          .max_context_length = context,
          .num_kv_heads = heads,
          .head_dim = dim,
          .dtype = dtype};
}

class KVGpuTest : public device::cuda::test::GpuTest {
 protected:
  // Returns all bytes of a cache.
  Bytes contents(const KVCache& cache) {
    return download(cache.keys(0).data, static_cast<std::size_t>(cache.size_bytes()));
  }

  // Returns random new rows of `n` tokens for one layer: keys, then values.
  Bytes rows_of(const KVCacheConfig& config, int n, std::uint64_t seed) {
    return random_bytes(2 * static_cast<std::size_t>(n) * row_bytes(config), seed);
  }

  static std::size_t row_bytes(const KVCacheConfig& config) {
    return static_cast<std::size_t>(config.layer_bytes() / config.max_context_length);
  }

  // Appends `rows` to `layer` at the cache's position, on the device and in `mirror`, which has the
  // cache's layout.
  void update(const KVCache& cache, int layer, const Bytes& rows, Bytes& mirror) {
    const KVCacheConfig& config = cache.config();
    const int n = static_cast<int>(rows.size() / 2 / row_bytes(config));
    const auto on_device = upload(rows);
    must(launch_update_kv_cache(
        cache.keys(layer), cache.values(layer), static_cast<const void*>(on_device.data()),
        static_cast<const void*>(on_device.data() + rows.size() / 2), cache.position(), n,
        config.num_kv_heads, config.head_dim, stream()));
    wait();
    std::uint8_t* const keys = mirror.data() + 2 * layer * config.layer_bytes();
    update_kv_reference({.dtype = config.dtype,
                         .cache_keys = keys,
                         .cache_values = keys + config.layer_bytes(),
                         .new_keys = rows.data(),
                         .new_values = rows.data() + rows.size() / 2,
                         .position = cache.position(),
                         .num_tokens = n,
                         .num_heads = config.num_kv_heads,
                         .head_dim = config.head_dim,
                         .capacity = {config.max_context_length}});
  }
};

}  // namespace quire::kv_cache::cuda::test
