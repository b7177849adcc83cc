// The pools over the driver's allocators: what they say must be what the driver says.
#include "quire/device/cuda/memory.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/device/cuda/device_guard.h"
#include "quire/device/cuda/gpu_test_util.h"
#include "quire/device/device_properties.h"
#include "quire/device/memory_pool.h"
#include "quire/result.h"

namespace quire::device::cuda {
namespace {

using test::Bytes;
using test::GpuTest;
using test::must;
using test::random_bytes;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

class DeviceContextTest : public GpuTest {};
class CudaMemoryTest : public GpuTest {};

TEST_F(DeviceContextTest, KnowsItsDevice) {
  const DeviceProperties& properties = context_->properties();
  EXPECT_GE(properties.compute_major, 8);
  EXPECT_FALSE(properties.name.empty());
  EXPECT_GT(properties.multiprocessors, 0);
  EXPECT_GT(properties.l2_bytes, kMiB);
  EXPECT_GE(properties.shared_bytes_per_block, 48 * 1024);
  EXPECT_GT(properties.total_bytes, 1024 * kMiB);
}

TEST_F(DeviceContextTest, OrdinalsThatDoNotExistAreDeviceErrors) {
  for (const int ordinal : {-1, 999}) {
    const auto context = DeviceContext::create(ordinal);
    ASSERT_FALSE(context.ok());
    EXPECT_EQ(context.error().code, ErrorCode::kDevice);
    EXPECT_NE(context.error().message.find("cuda:" + std::to_string(ordinal)), std::string::npos);
  }
}

TEST_F(DeviceContextTest, AFailedCallIsNamedAndForgotten) {
  const Status status = copy_async(nullptr, context_.get(), 16, stream());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kDevice);
  EXPECT_NE(status.error().message.find("cudaMemcpyAsync failed: "), std::string::npos);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST_F(CudaMemoryTest, BlocksAreAligned) {
  for (MemoryPool* pool : {&context_->device_pool(), &context_->pinned_pool()}) {
    std::vector<PoolBlock> held;
    for (const std::int64_t bytes : {1, 7, 255, 257, 5000, 123'457, 3'000'001}) {
      held.push_back(must(pool->allocate(bytes)));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(held.back().data()) % 256, 0U) << bytes;
    }
  }
}

TEST_F(CudaMemoryTest, ReservedBytesAreTheDrivers) {
  MemoryPool pool(make_device_memory(0));
  const std::int64_t before = must(context_->driver_memory()).free_bytes;
  {
    const auto a = must(pool.allocate(64 * kMiB)), b = must(pool.allocate(31 * kMiB));
    EXPECT_EQ(pool.stats().reserved_bytes, 96 * kMiB);
    EXPECT_EQ(before - must(context_->driver_memory()).free_bytes, 96 * kMiB);
  }
  EXPECT_EQ(before - must(context_->driver_memory()).free_bytes, 96 * kMiB);
  must(pool.shrink(64 * kMiB));
  EXPECT_EQ(before - must(context_->driver_memory()).free_bytes, pool.stats().reserved_bytes);
  must(pool.shrink(0));
  EXPECT_EQ(must(context_->driver_memory()).free_bytes, before);
}

TEST_F(CudaMemoryTest, ChurnReusesMoreThan99PercentAndLeaksNothing) {
  const std::int64_t before = must(context_->driver_memory()).free_bytes;
  {
    MemoryPool pool(make_device_memory(0));
    std::mt19937 random(7);
    std::vector<PoolBlock> held(8);
    for (int i = 0; i < 20'000; ++i) {
      held[random() % held.size()] = must(pool.allocate(4 * kMiB << (random() % 3)));
    }
    EXPECT_LT(pool.stats().driver_allocations * 100, pool.stats().requests);
  }
  EXPECT_EQ(must(context_->driver_memory()).free_bytes, before);
}

TEST_F(CudaMemoryTest, MoreThanTheDeviceHasIsOutOfBlocksWithNumbers) {
  MemoryPool pool(make_device_memory(0));
  const std::int64_t bytes = context_->properties().total_bytes * 2;
  const auto block = pool.allocate(bytes);
  ASSERT_FALSE(block.ok());
  EXPECT_EQ(block.error().code, ErrorCode::kOutOfBlocks);
  EXPECT_GE(block.error().needed_bytes, bytes);
  EXPECT_GT(block.error().free_bytes, 0);
  EXPECT_LT(block.error().free_bytes, bytes);
  EXPECT_EQ(pool.stats(), PoolStats{});
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

// A context whose k-th allocation fails: two device buffers, one pinned.
TEST_F(CudaMemoryTest, FailureAtEachAllocationLeaksNothing) {
  const std::int64_t before = must(context_->driver_memory()).free_bytes;
  for (std::int64_t k = 0; k <= 2; ++k) {
    for (std::int64_t pinned = 0; pinned <= 1; ++pinned) {
      auto context = must(DeviceContext::create(
          0, {.device_budget = {.allocations = k}, .pinned_budget = {.allocations = pinned}}));
      const auto build = [&]() -> Status {
        QUIRE_TRY(auto a, DeviceBuffer<float>::make(context->device_pool(), 4'000'000));
        QUIRE_TRY(auto host, PinnedBuffer<float>::make(context->pinned_pool(), 4'000'000));
        QUIRE_TRY(auto b, DeviceBuffer<float>::make(context->device_pool(), 9'000'000));
        return {};
      };
      const Status status = build();
      EXPECT_EQ(status.ok(), k == 2 && pinned == 1);
      if (!status.ok()) {
        EXPECT_EQ(status.error().code, ErrorCode::kOutOfBlocks);
      }
      EXPECT_EQ(context->device_pool().stats().used_bytes, 0);
      EXPECT_EQ(context->pinned_pool().stats().used_bytes, 0);
    }
  }
  // Streams take driver memory of their own, which the driver may keep: no more than one step.
  EXPECT_LE(before - must(context_->driver_memory()).free_bytes, 2 * kMiB);
}

TEST_F(CudaMemoryTest, ManagedMemoryIsSeenFromBothSides) {
  MemoryPool pool(make_managed_memory(0));
  const auto block = must(pool.allocate(kMiB));
  const Bytes bytes = random_bytes(kMiB, 1);
  std::memcpy(block.data(), bytes.data(), bytes.size());
  const auto copy = must(DeviceBuffer<std::uint8_t>::make(context_->device_pool(), bytes.size()));
  must(copy_async(copy.data(), block.data(), bytes.size(), stream()));
  must(fill_async(block.data(), 0x5A, bytes.size(), stream()));
  EXPECT_EQ(download(copy.data(), bytes.size()), bytes);
  EXPECT_EQ(std::to_integer<int>(block.data()[kMiB - 1]), 0x5A);
  EXPECT_EQ(pool.allocate(context_->properties().total_bytes * 2).error().code,
            ErrorCode::kOutOfBlocks);
}

TEST_F(CudaMemoryTest, AGuardRestoresTheDeviceBefore) {
  int before = -1, after = -2;
  must(test::must(DeviceContext::create(0))->make_current());
  cudaGetDevice(&before);
  {
    const auto guard = must(DeviceGuard::enter(0));
  }
  cudaGetDevice(&after);
  EXPECT_EQ(before, after);
  EXPECT_EQ(DeviceGuard::enter(999).error().code, ErrorCode::kDevice);
}

}  // namespace
}  // namespace quire::device::cuda
