// Helpers of the tests that run on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/result.h"

namespace quire::device::cuda::test {

using Bytes = std::vector<std::uint8_t>;

// Returns the value, or throws an exception, which fails the test that it leaves.
template <class T>
T must(Result<T> result) {
  if (!result.ok()) {
    throw std::runtime_error(result.error().message);
  }
  return std::move(result).value();
}

inline void must(const Status& status) {
  if (!status.ok()) {
    throw std::runtime_error(status.error().message);
  }
}

inline Bytes random_bytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(size);
  for (auto& byte : bytes) {
    byte = static_cast<std::uint8_t>(random() >> 32);
  }
  return bytes;
}

class GpuTest : public ::testing::Test {
 protected:
  GpuTest() : context_(must(DeviceContext::create(0))) {}

  [[nodiscard]] CUstream_st* stream() { return context_->compute_stream().get(); }
  void wait() { must(context_->compute_stream().synchronize()); }

  template <class T>
  DeviceBuffer<T> upload(const std::vector<T>& values) {
    auto buffer = must(
        DeviceBuffer<T>::make(context_->device_pool(), std::max<std::size_t>(values.size(), 1)));
    must(copy_async(buffer.data(), values.data(), values.size() * sizeof(T), stream()));
    wait();
    return buffer;
  }

  template <class T>
  std::vector<T> download(const DeviceBuffer<T>& buffer, std::size_t size) {
    std::vector<T> values(size);
    must(copy_async(values.data(), buffer.data(), size * sizeof(T), stream()));
    wait();
    return values;
  }

  Bytes download(const void* data, std::size_t bytes) {
    Bytes out(bytes);
    must(copy_async(out.data(), data, bytes, stream()));
    wait();
    return out;
  }

  std::unique_ptr<DeviceContext> context_;
};

}  // namespace quire::device::cuda::test
