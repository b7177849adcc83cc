// The update kernel against its CPU reference: bit for bit, and nothing around it.
#include "quire/kv_cache/cuda/update_kv_cache.h"

#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>

#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/cuda_stream.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/kv_cache.h"
#include "quire/kv_cache/cuda/kv_test_util.h"
#include "quire/kv_cache/kv_update.h"
#include "quire/result.h"

namespace quire::kv_cache::cuda {
namespace {

using device::cuda::copy_async;
using device::cuda::CudaStream;
using device::cuda::DeviceBuffer;
using device::cuda::fill_async;
using test::Bytes;
using test::must;
using test::random_bytes;

constexpr std::size_t kGuard = 512;  // canary bytes around the cache

struct Case {
  KVDType dtype = KVDType::kFloat16;
  int heads = 1, dim = 64, tokens = 1, position = 0, capacity = 16;
  std::size_t shift = 0;  // bytes that all addresses are off a 256-byte boundary
};

class UpdateKernelTest : public test::KVGpuTest {
 protected:
  // Runs `c` on random bytes on device and reference; both are compared whole, guards included.
  // Returns what the launch said.
  Status run(const Case& c, CUstream_st* on, bool device_position = false) {
    const std::size_t row = static_cast<std::size_t>(c.heads) * c.dim * kv_dtype_bytes(c.dtype);
    const std::size_t part = row * c.capacity, rows_part = row * std::max(c.tokens, 1);
    Bytes cache = random_bytes(3 * kGuard + 2 * part + c.shift, ++seed_);
    const Bytes rows = random_bytes(2 * rows_part + c.shift, ++seed_);
    const auto device_cache = upload(cache), device_rows = upload(rows);
    Bytes place(8);
    *reinterpret_cast<std::int32_t*>(place.data()) = c.position;
    const auto device_place = upload(place);
    const auto update_of = [&](std::uint8_t* to, const std::uint8_t* from, std::uint8_t* at) {
      KVUpdate update = {.dtype = c.dtype,
                         .cache_keys = to + kGuard + c.shift,
                         .cache_values = to + 2 * kGuard + part + c.shift,
                         .new_keys = from + c.shift,
                         .new_values = from + c.shift + rows_part,
                         .position = c.position,
                         .num_tokens = c.tokens,
                         .num_heads = c.heads,
                         .head_dim = c.dim,
                         .capacity = {c.capacity}};
      if (device_position) {
        update.device_position = reinterpret_cast<const std::int32_t*>(at);
        update.device_refusals = reinterpret_cast<std::int32_t*>(at + 4);
      }
      return update;
    };
    const Status status = update_kv_cache(
        update_of(device_cache.data(), device_rows.data(), device_place.data()), on);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    if (status.ok()) {
      update_kv_reference(update_of(cache.data(), rows.data(), place.data()));
    }
    EXPECT_TRUE(download(device_cache.data(), cache.size()) == cache)
        << kv_dtype_name(c.dtype) << " heads " << c.heads << " dim " << c.dim << " tokens "
        << c.tokens << " at " << c.position << " shift " << c.shift;
    EXPECT_EQ(download(device_place.data(), 8), place);
    return status;
  }

  std::uint64_t seed_ = 0;
};

// Cases that every program meets: one token, prefill, decode, element types, positions.

TEST_F(UpdateKernelTest, SingleTokenSingleHead) { must(run({}, stream())); }

TEST_F(UpdateKernelTest, MultipleTokensPrefill) {
  must(run({.heads = 8, .dim = 128, .tokens = 100, .capacity = 128}, stream()));
  must(run({.heads = 8, .dim = 128, .tokens = 1000, .capacity = 1000}, stream()));
}

TEST_F(UpdateKernelTest, UpdateAtNonZeroPosition) {
  for (const int position : {1, 7, 14, 15}) {
    must(run({.heads = 2, .position = position}, stream()));
  }
}

TEST_F(UpdateKernelTest, MultipleHeads) {
  for (const int heads : {1, 2, 3, 8, 32, 64}) {
    must(run({.heads = heads, .dim = 128, .tokens = 3, .position = 5}, stream()));
  }
}

TEST_F(UpdateKernelTest, EveryDTypeHeadCountAndDimIsBitExact) {
  for (const KVDType dtype :
       {KVDType::kFloat32, KVDType::kFloat16, KVDType::kBFloat16, KVDType::kFloat8E4M3}) {
    for (int heads = 1; heads <= 64; heads += heads < 8 ? 1 : 7) {
      for (const int dim : {32, 33, 64, 72, 80, 96, 112, 127, 128, 160, 192, 256}) {
        must(run({dtype, heads, dim, 3, 5}, stream()));
      }
    }
  }
}

TEST_F(UpdateKernelTest, AddressesOffTheVectorBoundaryAreBitExact) {
  for (const KVDType dtype : {KVDType::kFloat32, KVDType::kFloat16, KVDType::kFloat8E4M3}) {
    for (std::size_t shift = kv_dtype_bytes(dtype); shift < 16;
         shift += static_cast<std::size_t>(kv_dtype_bytes(dtype))) {
      Case c = {dtype, 3, 64, 4, 2};
      c.shift = shift;
      must(run(c, stream()));
    }
  }
}

TEST_F(UpdateKernelTest, ShapesOfAllWidthsAreBitExact) {
  const KVCacheConfig config = test::config_of(1, 64, 5, 80);
  const Bytes rows = rows_of(config, 37, 1);
  const auto device_rows = upload(rows);
  for (const int vector_bytes : {1, 2, 4, 16}) {
    for (const int per_thread : {1, 2, 4}) {
      KVCache cache(config);
      KVUpdate update = {.cache_keys = cache.keys(0),
                         .cache_values = cache.values(0),
                         .new_keys = device_rows.data(),
                         .new_values = device_rows.data() + rows.size() / 2,
                         .position = 9,
                         .num_tokens = 37,
                         .num_heads = 5,
                         .head_dim = 80,
                         .capacity = {64}};
      must(launch_update({update, {vector_bytes, per_thread}}, stream()));
      Bytes expected(static_cast<std::size_t>(cache.size_bytes()));
      update.cache_keys = expected.data();
      update.cache_values = expected.data() + config.layer_bytes();
      update.new_keys = rows.data();
      update.new_values = rows.data() + rows.size() / 2;
      update_kv_reference(update);
      EXPECT_TRUE(contents(cache) == expected) << vector_bytes << " x " << per_thread;
    }
  }
}

TEST_F(UpdateKernelTest, AnyStream) {
  const CudaStream other = must(CudaStream::create());
  cudaStream_t blocking = nullptr;
  ASSERT_EQ(cudaStreamCreate(&blocking), cudaSuccess);
  for (CUstream_st* const on : {static_cast<CUstream_st*>(nullptr), other.get(), blocking,
                                cudaStreamLegacy, cudaStreamPerThread}) {
    must(run({.heads = 4, .tokens = 5, .position = 3}, on));
  }
  ASSERT_EQ(cudaStreamDestroy(blocking), cudaSuccess);
}

TEST_F(UpdateKernelTest, HostRefusesOverflowAndTouchesNothing) {
  for (const auto& [position, tokens] : {std::tuple{16, 1}, {15, 2}, {0, 17}, {2147483647, 1}}) {
    const Status status = run({.tokens = tokens, .position = position}, stream());
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kOverflow);
  }
}

TEST_F(UpdateKernelTest, KernelRefusesOverflowAndTouchesNothing) {
  for (const auto& [position, tokens] :
       {std::tuple{16, 1}, {15, 2}, {0, 17}, {2147483647, 1}, {-1, 1}}) {
    must(run({.heads = 8, .tokens = tokens, .position = position}, stream(), true));
  }
}

TEST_F(UpdateKernelTest, PositionOnTheDeviceIsTaken) {
  for (const int position : {0, 3, 13}) {
    must(run({.heads = 8, .tokens = 3, .position = position}, stream(), true));
  }
}

// A captured decode step, replayed: the position grows on the device, the graph stays.
TEST_F(UpdateKernelTest, AGraphIsReplayedWhileThePositionGrows) {
  const KVCacheConfig config = test::config_of(1, 8, 2, 64);
  const KVCache cache(config);
  const Bytes rows = rows_of(config, 1, 5);
  const auto device_rows = upload(rows);
  const auto place = upload(Bytes(8));
  auto* const position = reinterpret_cast<std::int32_t*>(place.data());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t step = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  must(update_kv_cache({.cache_keys = cache.keys(0),
                        .cache_values = cache.values(0),
                        .new_keys = device_rows.data(),
                        .new_values = device_rows.data() + rows.size() / 2,
                        .num_tokens = 1,
                        .num_heads = 2,
                        .head_dim = 64,
                        .capacity = {8},
                        .device_position = position,
                        .device_refusals = position + 1},
                       stream()));
  ASSERT_EQ(cudaStreamEndCapture(stream(), &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&step, graph, 0), cudaSuccess);
  for (std::int32_t i = 0; i < 10; ++i) {
    must(copy_async(position, &i, sizeof(i), stream()));
    ASSERT_EQ(cudaGraphLaunch(step, stream()), cudaSuccess);
  }
  const Bytes all = contents(cache);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_TRUE(std::equal(rows.begin(), rows.begin() + 256, all.begin() + i * 256)) << i;
  }
  std::int32_t refusals = 0;
  must(copy_async(&refusals, position + 1, sizeof(refusals), stream()));
  wait();
  EXPECT_EQ(refusals, 2);
  cudaGraphExecDestroy(step);
  cudaGraphDestroy(graph);
}

TEST_F(UpdateKernelTest, BadArgumentsAreReturnedAndTouchNothing) {
  for (const Case& c : {Case{.tokens = 0}, Case{.tokens = -3}, Case{.position = -1}}) {
    const Status status = run(c, stream());
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  }
}

// A stream that captures forbids work on the default stream: a launch that the driver refuses.
TEST_F(UpdateKernelTest, ALaunchThatFailsIsReturnedAndTheNextWorks) {
  cudaStream_t capturing = nullptr;
  ASSERT_EQ(cudaStreamCreate(&capturing), cudaSuccess);
  const auto cache = upload(Bytes(4096)), rows = upload(Bytes(4096));
  const auto* const from = reinterpret_cast<const float*>(rows.data());
  auto* const to = reinterpret_cast<float*>(cache.data());
  ASSERT_EQ(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeRelaxed), cudaSuccess);
  const Status status = launch_update_kv_cache(to, to + 512, from, from, 0, 1, 1, 64);
  cudaGraph_t graph = nullptr;
  (void)cudaStreamEndCapture(capturing, &graph);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kDevice);
  EXPECT_NE(status.error().message.find("launch of update_kv_cache failed: "), std::string::npos);
  EXPECT_EQ(cudaStreamDestroy(capturing), cudaSuccess);
  (void)cudaGetLastError();
  must(run({}, nullptr));
}

TEST_F(UpdateKernelTest, TypedOverloadsOfTheDocument) {
  const KVCacheConfig config = test::config_of(1, 16, 2, 64);
  const KVCache cache(config);
  const Bytes rows = rows_of(config, 2, 8);
  const auto device_rows = upload(rows);
  const auto* const new_keys = reinterpret_cast<const half*>(device_rows.data());
  const auto* const new_values = new_keys + 2 * 2 * 64;
  must(launch_update_kv_cache(cache.keys(0), cache.values(0), new_keys, new_values, 0, 2, 2, 64,
                              stream()));
  half* const keys = cache.keys(0);
  half* const values = cache.values(0);
  must(launch_update_kv_cache(keys, values, new_keys, new_values, 4, 2, 2, 64, stream()));
  must(launch_update_kv_cache(keys, values, new_keys, new_values, 8, 2, 2, 64, KVCapacity{16},
                              stream()));
  EXPECT_EQ(launch_update_kv_cache(keys, values, new_keys, new_values, 15, 2, 2, 64, KVCapacity{16},
                                   stream())
                .error()
                .code,
            ErrorCode::kOverflow);
  const Bytes all = contents(cache);
  for (const std::size_t position : {0, 4, 8}) {
    EXPECT_TRUE(std::equal(rows.begin(), rows.begin() + 512, all.begin() + position * 256));
  }
  auto* const fp8 = reinterpret_cast<__nv_fp8_e4m3*>(keys);
  EXPECT_EQ(launch_update_kv_cache(cache.keys(0), cache.values(0), fp8, fp8, 0, 1, 2, 64).ok(),
            false);
}

// Offsets past 2^32 bytes: 9.2 GB of cache, and the places where a wrapped index would write.
TEST_F(UpdateKernelTest, OffsetsAre64Bit) {
  KVCacheConfig config = test::config_of(1, 70'000, 64, 256, KVDType::kFloat32);
  if (must(context_->driver_memory()).free_bytes < config.size_bytes() + (1LL << 30)) {
    GTEST_SKIP() << "needs 10 GiB of device memory";
  }
  KVCache cache(config);
  cache.advance_position(69'990);
  const Bytes rows = rows_of(config, 10, 2);
  const auto device_rows = upload(rows);
  const auto* const from = reinterpret_cast<const float*>(device_rows.data());
  must(launch_update_kv_cache(cache.keys(0), cache.values(0), from, from + 10 * 64 * 256,
                              cache.position(), 10, 64, 256, stream()));
  const std::size_t row = row_bytes(config), half = rows.size() / 2;
  const auto* const keys = static_cast<std::uint8_t*>(cache.keys(0).data);
  const auto* const values = static_cast<std::uint8_t*>(cache.values(0).data);
  EXPECT_TRUE(download(keys + 69'990 * row, half) == Bytes(rows.begin(), rows.begin() + half));
  EXPECT_TRUE(download(values + 69'990 * row, half) == Bytes(rows.begin() + half, rows.end()));
  EXPECT_TRUE(download(keys + 69'989 * row, row) == Bytes(row));
  for (const std::uint8_t* const part : {keys, values}) {
    EXPECT_TRUE(download(part + (69'990 * row) % (std::size_t{1} << 32), half) == Bytes(half));
  }
}

// More than 2^31 elements in one launch.
TEST_F(UpdateKernelTest, CountsAre64Bit) {
  constexpr int kTokens = 140'000;
  KVCacheConfig config = test::config_of(1, kTokens, 64, 256, KVDType::kFloat8E4M3);
  config.zero_fill = false;
  const std::size_t row = row_bytes(config), part = row * kTokens;
  if (must(context_->driver_memory()).free_bytes < static_cast<std::int64_t>(4 * part)) {
    GTEST_SKIP() << "needs 10 GiB of device memory";
  }
  const KVCache cache(config);
  const auto rows = must(DeviceBuffer<std::uint8_t>::make(context_->device_pool(), part));
  must(fill_async(rows.data(), 0x11, part, stream()));
  must(fill_async(rows.data() + part / 2, 0x22, row, stream()));
  must(fill_async(rows.data() + part - row, 0x33, row, stream()));
  must(fill_async(cache.keys(0).data, 0, 2 * part, stream()));
  must(launch_update_kv_cache(cache.keys(0), cache.values(0), static_cast<const void*>(rows.data()),
                              rows.data(), 0, kTokens, 64, 256, stream()));
  for (const KVLayerView& view : {cache.keys(0), cache.values(0)}) {
    const auto* const data = static_cast<std::uint8_t*>(view.data);
    EXPECT_TRUE(download(data, row) == Bytes(row, 0x11));
    EXPECT_TRUE(download(data + part / 2, row) == Bytes(row, 0x22));
    EXPECT_TRUE(download(data + part - row, row) == Bytes(row, 0x33));
  }
}

}  // namespace
}  // namespace quire::kv_cache::cuda
