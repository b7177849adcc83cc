// The update kernel of the contiguous KV cache against two floors of the same run: the device's own
// copy of as many bytes, and an empty kernel. All of it in CUDA graphs, so that launches by the
// host do not count; buffers rotate, so that the L2 cache does not answer.
//
// Bar: at least 0.8 of the copy from 4 MiB on; a decode step within 2 us of the empty kernel.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <utility>
#include <vector>

#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kv_cache.h"
#include "quire/kv_cache/cuda/update_kv_cache.h"
#include "quire/result.h"
#include "timing.h"

namespace {

using namespace quire::device::cuda;  // NOLINT(google-build-using-namespace): a program
using quire::KVUpdate;
using quire::bench::microseconds;
using quire::bench::must;
using quire::kv_cache::cuda::launch_update;
using quire::kv_cache::cuda::plan_update;
using quire::kv_cache::cuda::UpdateLaunch;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr int kHeads = 8, kDim = 128;
constexpr std::int64_t kRowBytes = kHeads * kDim * 2;

// Read and written, GB/s.
double gigabytes(std::int64_t bytes, double us) {
  return 2.0 * static_cast<double>(bytes) / us / 1e3;
}

// Update of set `i`: `bytes` of keys and values together, beside the sets before.
KVUpdate update_of(std::byte* cache, const std::byte* rows, std::int64_t bytes, int i) {
  const std::int64_t at = bytes * i;
  return {.cache_keys = cache + at,
          .cache_values = cache + at + bytes / 2,
          .new_keys = rows + at,
          .new_values = rows + at + bytes / 2,
          .num_tokens = static_cast<int>(bytes / 2 / kRowBytes),
          .num_heads = kHeads,
          .head_dim = kDim,
          .capacity = {static_cast<int>(bytes / 2 / kRowBytes)}};
}

// One line; whether the bar is met.
bool bench_size(DeviceContext& context, std::int64_t bytes, std::byte* to, std::byte* from,
                std::int64_t room) {
  CUstream_st* const stream = context.compute_stream().get();
  const int sets = static_cast<int>(std::min<std::int64_t>(room / bytes, 2000));
  const auto timed = [&](int per_thread) {
    return microseconds(context, sets, [&](int i) {
      UpdateLaunch launch = plan_update(update_of(to, from, bytes, i));
      if (per_thread > 0) {
        launch.shape.vectors_per_thread = per_thread;
      }
      must(launch_update(launch, stream));
    });
  };
  const double copy = microseconds(context, sets, [&](int i) {
    must(copy_async(to + bytes * i, from + bytes * i, static_cast<std::size_t>(bytes), stream));
  });
  const double update = timed(0);
  const bool good = bytes < 4 * kMiB || copy / update >= 0.8;
  std::printf("%5lld KiB  copy %7.2f us %6.0f GB/s   update %7.2f us %6.0f GB/s   ratio %.2f%s",
              static_cast<long long>(bytes / 1024), copy, gigabytes(bytes, copy), update,
              gigabytes(bytes, update), copy / update, good ? "" : "  BELOW 0.8");
  std::printf("   vectors a thread 1: %.2f  2: %.2f  4: %.2f us\n", timed(1), timed(2), timed(4));
  return good;
}

__global__ void empty_kernel() {}

bool bench_decode(DeviceContext& context, std::byte* to, std::byte* from) {
  constexpr int kNodes = 1000;
  CUstream_st* const stream = context.compute_stream().get();
  const double empty = microseconds(context, kNodes, [&](int) {
    empty_kernel<<<1, 32, 0, stream>>>();
    must(cudaGetLastError());
  });
  const double update = microseconds(context, kNodes, [&](int i) {
    must(quire::update_kv_cache(update_of(to, from, 2 * kRowBytes, i), stream));
  });
  const bool good = update - empty <= 2.0;
  std::printf(
      "decode: one token of %d x %d float16: empty kernel %.3f us, update %.3f us, over it "
      "%.3f us%s\n",
      kHeads, kDim, empty, update, update - empty, good ? "" : "  ABOVE 2 us");
  return good;
}

}  // namespace

int main() {
  const auto context = must(DeviceContext::create(0));
  const quire::device::DeviceProperties& device = context->properties();
  // Four times the L2 cache of each kind of buffer, and at least 512 MiB.
  const std::int64_t room =
      std::max(512 * kMiB, (4 * device.l2_bytes + 64 * kMiB - 1) / (64 * kMiB) * (64 * kMiB));
  const auto size = static_cast<std::size_t>(room);
  const auto to = must(DeviceBuffer<std::byte>::make(context->device_pool(), size));
  const auto from = must(DeviceBuffer<std::byte>::make(context->device_pool(), size));
  must(fill_async(from.data(), 0x3C, size, context->compute_stream().get()));
  std::printf(
      "%s, %d multiprocessors, L2 %lld MiB; bytes: keys and values together, GB/s: read "
      "and written\n",
      device.name.c_str(), device.multiprocessors, static_cast<long long>(device.l2_bytes / kMiB));
  bool good = true;
  for (const std::int64_t kib : {64, 256, 1024, 4096, 16384, 65536}) {
    good &= bench_size(*context, kib * 1024, to.data(), from.data(), room);
  }
  good &= bench_decode(*context, to.data(), from.data());
  return good ? 0 : 1;
}
