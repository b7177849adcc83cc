// Moves of KV between a GPU and host memory: scattered blocks of Llama-3.1-8B's shape through the
// block store, beside one plain copy of as many bytes. GB/s, medians.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/device/accelerator.h"
#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_geometry.h"
#include "timing.h"

namespace quire::bench {
namespace {

constexpr std::int32_t kPoolBlocks = 2048;
constexpr int kRounds = 15;
constexpr double kBar = 48;  // GB/s, of about 55 that a PCIe 5 link copies

template <class Move>
double gigabytes_per_second(std::size_t bytes, Move move) {
  std::vector<double> seconds;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    must(move());
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::ranges::sort(seconds);
  return static_cast<double>(bytes) / seconds[kRounds / 2] * 1e-9;
}

// `count` blocks of the pool in no order.
std::vector<BlockId> scattered(std::int32_t count) {
  std::vector<BlockId> blocks;
  blocks.reserve(kPoolBlocks);
  for (std::int32_t i = 0; i < kPoolBlocks; ++i) {
    blocks.push_back({i});
  }
  std::mt19937 random(1);
  std::ranges::shuffle(blocks, random);
  blocks.resize(static_cast<std::size_t>(count));
  return blocks;
}

struct Rates {
  double down = 0, up = 0;     // plain copies from and to the device
  double read = 0, write = 0;  // scattered blocks
};

Rates measure(device::cuda::DeviceContext& device, kv_store::PagedPool& pool,
              const std::vector<BlockId>& blocks) {
  const auto bytes = blocks.size() * static_cast<std::size_t>(pool.geometry().block_bytes());
  auto host = pool.host_buffer(bytes);
  std::ranges::fill(host.span(), std::byte{0});
  const auto plain = must(device::cuda::DeviceBuffer<std::byte>::make(device.device_pool(), bytes));
  const auto copy = [&](void* to, const void* from) -> Status {
    QUIRE_TRY_STATUS(device::cuda::copy_async(to, from, bytes, device.copy_stream().get()));
    return device.copy_stream().synchronize();
  };
  return {
      .down = gigabytes_per_second(bytes, [&] { return copy(host.data(), plain.data()); }),
      .up = gigabytes_per_second(bytes, [&] { return copy(plain.data(), host.data()); }),
      .read = gigabytes_per_second(bytes, [&] { return pool.read_blocks(blocks, host.span()); }),
      .write = gigabytes_per_second(bytes, [&] { return pool.write_blocks(blocks, host.span()); })};
}

// Returns whether the bar is met from 1,024 tokens on.
bool run() {
  const auto accelerator = must(device::Accelerator::open("cuda"));
  const tensor::KVGeometry geometry{.layers = 32,
                                    .kv_heads = 8,
                                    .head_dim = 128,
                                    .dtype = tensor::DType::kBFloat16,
                                    .block_tokens = 32};
  auto pool = must(kv_store::PagedPool::create_on(*accelerator, geometry, kPoolBlocks));
  std::printf("%s\n%8s %12s %12s %12s %12s\n", accelerator->name().c_str(), "tokens", "plain down",
              "plain up", "read", "write");
  bool met = true;
  for (const std::int32_t tokens : {128, 512, 1024, 4096, 16384}) {
    const Rates rates =
        measure(accelerator->context(), pool, scattered(tokens / geometry.block_tokens));
    const bool missed = tokens >= 1024 && std::min(rates.read, rates.write) < kBar;
    std::printf("%8d %12.1f %12.1f %12.1f %12.1f%s\n", tokens, rates.down, rates.up, rates.read,
                rates.write, missed ? "  bar 48 NOT MET" : "");
    met = met && !missed;
  }
  return met;
}

}  // namespace
}  // namespace quire::bench

int main() { return quire::bench::run() ? 0 : 1; }
