// Recorded work on a GPU. Oracle: the same work without recording.
#include "quire/device/cuda/graph.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/cuda_stream.h"
#include "quire/device/cuda/gpu_test_util.h"
#include "quire/result.h"

namespace quire::device::cuda {
namespace {

using test::Bytes;
using test::must;

constexpr std::size_t kBytes = 4096;

class GraphTest : public test::GpuTest {
 protected:
  [[nodiscard]] Status fill(unsigned char value) {
    return fill_async(to_.data(), value, kBytes, stream());
  }
  DeviceBuffer<std::byte> to_ =
      must(DeviceBuffer<std::byte>::make(context_->device_pool(), kBytes));
};

TEST_F(GraphTest, RecordingDoesNothingAndEachLaunchDoesItAll) {
  must(fill(1));
  const Graph graph = must(context_->record([&] { return fill(7); }));
  EXPECT_EQ(download(to_.data(), kBytes), Bytes(kBytes, 1));
  must(graph.launch(context_->compute_stream()));
  EXPECT_EQ(download(to_.data(), kBytes), Bytes(kBytes, 7));
  must(fill(2));
  must(graph.launch(context_->compute_stream()));
  EXPECT_EQ(download(to_.data(), kBytes), Bytes(kBytes, 7));
}

TEST_F(GraphTest, ItsLaunchReadsWhatIsThereThen) {
  const auto from = upload(Bytes(kBytes, 3));
  const Graph graph =
      must(context_->record([&] { return copy_async(to_.data(), from.data(), kBytes, stream()); }));
  must(fill_async(from.data(), 9, kBytes, stream()));
  must(graph.launch(context_->compute_stream()));
  EXPECT_EQ(download(to_.data(), kBytes), Bytes(kBytes, 9));
}

TEST_F(GraphTest, AnErrorWhileRecordingIsReturnedAndTheStreamGoesOn) {
  const auto failed = context_->record([&]() -> Status {
    QUIRE_TRY_STATUS(fill(5));
    return {ErrorCode::kDevice, "not today"};
  });
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().message, "not today");
  must(fill(6));
  EXPECT_EQ(download(to_.data(), kBytes), Bytes(kBytes, 6));
}

// A wait cannot be recorded.
TEST_F(GraphTest, WhatCannotBeRecordedIsATypedErrorAndTheStreamGoesOn) {
  const auto failed = context_->record([&] { return context_->compute_stream().synchronize(); });
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, ErrorCode::kDevice);
  must(fill(6));
  EXPECT_EQ(download(to_.data(), kBytes), Bytes(kBytes, 6));
}

TEST_F(GraphTest, OtherThreadsMayOrderTheirStreamsBehindTheComputeStreamMeanwhile) {
  const CudaStream other = must(CudaStream::create());
  std::thread asking([&] {
    must(context_->make_current());
    for (int i = 0; i < 2000; ++i) {
      must(context_->order_after_compute(other));
    }
  });
  for (int i = 0; i < 200; ++i) {
    const Graph graph = must(context_->record([&] { return fill(static_cast<unsigned char>(i)); }));
    must(graph.launch(context_->compute_stream()));
  }
  asking.join();
  must(other.synchronize());
  EXPECT_EQ(download(to_.data(), kBytes), Bytes(kBytes, 199));
}

// Work that becomes part of a graph is done at each of its launches, with memory that is someone
// else's by then.
TEST_F(GraphTest, WorkOfAnotherThreadMeanwhileIsDoneOnceAndNotRecorded) {
  const auto other = upload(Bytes(kBytes, 0));
  std::thread beside;
  const Graph graph = must(context_->record([&]() -> Status {
    std::promise<void> begins;
    auto begun = begins.get_future();
    beside = std::thread([&, begins = std::move(begins)]() mutable {
      must(context_->make_current());
      begins.set_value();
      must(context_->queue_unrecorded(
          [&] { return fill_async(other.data(), 1, kBytes, stream()); }));
    });
    begun.wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // for it to come to the stream
    return fill(7);
  }));
  beside.join();
  EXPECT_EQ(download(other.data(), kBytes), Bytes(kBytes, 1));
  must(fill_async(other.data(), 2, kBytes, stream()));
  must(graph.launch(context_->compute_stream()));
  EXPECT_EQ(download(to_.data(), kBytes), Bytes(kBytes, 7));
  EXPECT_EQ(download(other.data(), kBytes), Bytes(kBytes, 2));
}

}  // namespace
}  // namespace quire::device::cuda
