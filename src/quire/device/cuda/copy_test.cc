// Copies between all kinds of memory, and the order of streams.
#include "quire/device/cuda/copy.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "quire/device/cuda/cuda_stream.h"
#include "quire/device/cuda/device_context.h"
#include "quire/device/cuda/gpu_test_util.h"
#include "quire/device/cuda/memory.h"
#include "quire/device/memory_pool.h"

namespace quire::device::cuda {
namespace {

using test::Bytes;
using test::GpuTest;
using test::must;
using test::random_bytes;

constexpr std::array kNames = {"device", "pinned", "pageable", "managed"};

class CopyTest : public GpuTest {
 protected:
  CopyTest() : managed_(make_managed_memory(0)) {}

  // Returns memory of one kind, kept until the test ends.
  void* memory(std::size_t kind, std::size_t bytes) {
    if (kind == 2) {
      pageable_.push_back(std::make_unique<Bytes>(bytes));
      return pageable_.back()->data();
    }
    MemoryPool* const pools[] = {&context_->device_pool(), &context_->pinned_pool(), nullptr,
                                 &managed_};
    blocks_.push_back(must(pools[kind]->allocate(static_cast<std::int64_t>(bytes))));
    return blocks_.back().data();
  }

 private:
  MemoryPool managed_;
  std::vector<PoolBlock> blocks_;
  std::vector<std::unique_ptr<Bytes>> pageable_;
};

TEST_F(CopyTest, EveryDirectionIsBitExact) {
  std::uint64_t seed = 0;
  for (std::size_t from = 0; from < kNames.size(); ++from) {
    for (std::size_t to = 0; to < kNames.size(); ++to) {
      for (const std::size_t bytes :
           {std::size_t{1}, std::size_t{255}, std::size_t{4096}, (std::size_t{1} << 20) + 3}) {
        const Bytes content = random_bytes(bytes, ++seed);
        void* const source = memory(from, bytes);
        void* const target = memory(to, bytes);
        must(copy_async(source, content.data(), bytes, stream()));
        must(fill_async(memory(0, bytes), 0xEE, bytes, stream()));
        must(copy_async(target, source, bytes, stream()));
        EXPECT_EQ(download(target, bytes), content)
            << kNames[from] << " to " << kNames[to] << ", " << bytes;
      }
    }
  }
}

TEST_F(CopyTest, ZeroBytesAreNoCall) {
  EXPECT_TRUE(copy_async(nullptr, nullptr, 0, stream()).ok());
  EXPECT_TRUE(fill_async(nullptr, 0, 0, stream()).ok());
  EXPECT_TRUE(copy_peer_async({}, stream()).ok());
}

TEST_F(CopyTest, PeerCopyWorksWithinADevice) {
  const Bytes content = random_bytes(100'000, 3);
  const auto source = upload(content);
  void* const target = memory(0, content.size());
  must(copy_peer_async({.to = target, .from = source.data(), .bytes = content.size()}, stream()));
  EXPECT_EQ(download(target, content.size()), content);
}

// 64 copies in a ring of buffers with one wait at the end: each needs the one before it.
TEST_F(CopyTest, AStreamKeepsTheOrder) {
  constexpr std::size_t kBytes = std::size_t{1} << 22;
  const Bytes content = random_bytes(kBytes, 9);
  void* ring[] = {memory(1, kBytes), memory(0, kBytes), memory(0, kBytes), memory(1, kBytes)};
  must(copy_async(ring[0], content.data(), kBytes, stream()));
  for (int i = 0; i < 64; ++i) {
    must(copy_async(ring[(i + 1) % 4], ring[i % 4], kBytes, stream()));
    must(fill_async(ring[i % 4], static_cast<unsigned char>(i), kBytes, stream()));
  }
  EXPECT_EQ(download(ring[0], kBytes), content);
}

TEST_F(CopyTest, AnEventOrdersTwoStreams) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  const CudaStream& copies = context_->copy_stream();
  const Event written = must(Event::create());
  void* const source = memory(1, kBytes);
  void* const middle = memory(0, kBytes);
  void* const target = memory(1, kBytes);
  must(fill_async(middle, 0, kBytes, stream()));
  must(fill_async(source, 0x11, kBytes, stream()));
  wait();
  must(copy_async(middle, source, kBytes, copies.get()));
  must(copies.record(written));
  must(context_->compute_stream().wait(written));
  must(copy_async(target, middle, kBytes, stream()));
  wait();
  EXPECT_TRUE(must(written.done()));
  EXPECT_EQ(static_cast<std::uint8_t*>(target)[kBytes - 1], 0x11);
}

TEST_F(CopyTest, TimedEventsMeasure) {
  const Event start = must(Event::create(true)), end = must(Event::create(true));
  void* const data = memory(0, std::size_t{64} << 20);
  must(context_->compute_stream().record(start));
  must(fill_async(data, 1, std::size_t{64} << 20, stream()));
  must(context_->compute_stream().record(end));
  must(end.synchronize());
  EXPECT_GT(must(end.milliseconds_since(start)), 0.0F);
}

// Both directions at once take less than one after the other: two copy engines, two streams.
TEST_F(CopyTest, CopiesOnTwoStreamsOverlap) {
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  void* const host[] = {memory(1, kBytes), memory(1, kBytes)};
  void* const device[] = {memory(0, kBytes), memory(0, kBytes)};
  const auto milliseconds = [&](const CudaStream& down) {
    const CudaStream& up = context_->compute_stream();
    const Event start = must(Event::create(true)), end = must(Event::create(true));
    const Event begun = must(Event::create()), returned = must(Event::create());
    must(up.record(start));
    must(up.record(begun));
    must(down.wait(begun));
    must(copy_async(device[0], host[0], kBytes, up.get()));
    must(copy_async(host[1], device[1], kBytes, down.get()));
    must(down.record(returned));
    must(up.wait(returned));
    must(up.record(end));
    must(end.synchronize());
    return must(end.milliseconds_since(start));
  };
  (void)milliseconds(context_->copy_stream());  // warm
  const float serial = milliseconds(context_->compute_stream());
  const float both = milliseconds(context_->copy_stream());
  RecordProperty("serial_ms", std::to_string(serial));
  RecordProperty("overlapped_ms", std::to_string(both));
  EXPECT_LT(both, 0.9F * serial);
}

}  // namespace
}  // namespace quire::device::cuda
