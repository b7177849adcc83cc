#include "quire/kernels/ceilings.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "quire/base/check.h"
#include "quire/device/aligned_buffer.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/linear.h"
#include "quire/kernels/packed_rows.h"
#include "quire/kernels/packed_weights.h"

namespace quire::kernels {
namespace {

constexpr int kPasses = 5;
constexpr int kPeakPasses = 50;
constexpr double kPeakSeconds = 0.002;                      // seconds of a pass
constexpr std::size_t kColdBytes = std::size_t{512} << 20;  // weights of one measurement

template <class Fn>
double seconds(Fn&& fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<PackedWeights> cold_weights(const KernelContext& context, WeightFormat format,
                                        std::int64_t columns, std::int64_t depth) {
  std::vector<PackedWeights> copies;
  copies.push_back(PackedWeights::pack(
      context, format, columns, depth, [](std::int64_t first, std::int64_t, std::span<float> out) {
        std::minstd_rand random(static_cast<std::uint32_t>(first + 1));
        for (float& value : out) {
          value = static_cast<float>(random() % 2001) * 1e-3f - 1.0f;
        }
      }));
  const std::size_t bytes = copies[0].size_bytes();
  for (std::size_t held = bytes; held < kColdBytes && copies.back().data() != nullptr;
       held += bytes) {
    copies.push_back(copies[0].clone());
  }
  return copies;
}

// Doubles the iterations until they last long enough to be timed, then takes the best of many runs.
// They are short, so that some fall between what else the machine does.
double peak_rate(const KernelContext& context, const PeakLoop& loop) {
  // Values and codes around one: zeros draw so little power that they run faster than data do.
  alignas(64) std::array<std::uint16_t, kPeakOperandBytes / 2> operands;  // NOLINT: filled below
  std::minstd_rand random(1);
  for (std::uint16_t& value : operands) {
    value = static_cast<std::uint16_t>(0x3c00u | (random() >> 8 & 0x80ffu));
  }
  const int threads = context.pool->threads();
  std::vector<std::array<float, 16>> sinks(static_cast<std::size_t>(threads));
  const auto run = [&](std::int64_t iterations) {
    return seconds([&] {
      context.pool->run(threads, [&](int item, int) {
        loop.run({.operands = reinterpret_cast<const std::byte*>(operands.data()),
                  .iterations = iterations,
                  .sink = sinks[static_cast<std::size_t>(item)].data()});
      });
    });
  };
  std::int64_t iterations = 1000;
  double best = run(iterations);
  while (best < kPeakSeconds) {
    iterations *= 2;
    best = run(iterations);
  }
  for (int pass = 1; pass < kPeakPasses; ++pass) {
    best = std::min(best, run(iterations));
  }
  return static_cast<double>(loop.flops_per_iteration * iterations * threads) / best;
}

}  // namespace

double measure_read_bandwidth(const KernelContext& context, std::size_t bytes) {
  constexpr std::size_t kTaskBytes = std::size_t{64} << 10;
  constexpr double kLeastSeconds = 0.3;  // least seconds of all passes together
  const auto threads = static_cast<std::size_t>(context.pool->threads());
  const std::size_t tasks = std::max(threads, bytes / kTaskBytes);
  device::AlignedBuffer<std::byte> buffer(tasks * kTaskBytes);
  if (buffer.data() == nullptr) {
    return 0;
  }
  // Each thread walks its own part, so that every core reads one long stream.
  const auto for_each_part = [&](auto use) {
    context.pool->run(static_cast<int>(threads), [&](int part, int) {
      const std::size_t first = tasks * static_cast<std::size_t>(part) / threads;
      const std::size_t last = tasks * (static_cast<std::size_t>(part) + 1) / threads;
      use(buffer.data() + first * kTaskBytes, (last - first) * kTaskBytes);
    });
  };
  for_each_part([](std::byte* part, std::size_t size) { std::memset(part, 1, size); });
  double best = 0;
  double total = 0;
  for (int pass = 0; pass < kPasses || total < kLeastSeconds; ++pass) {
    const double time = seconds([&] {
      for_each_part([&](const std::byte* part, std::size_t size) {
        context.table->read(part, static_cast<std::int64_t>(size));
      });
    });
    best = std::max(best, static_cast<double>(buffer.size()) / time);
    total += time;
  }
  return best;
}

double measure_linear_rate(const KernelContext& context, WeightFormat format, std::int64_t rows,
                           std::int64_t columns, std::int64_t depth) {
  const std::vector<PackedWeights> weights = cold_weights(context, format, columns, depth);
  if (weights.back().data() == nullptr) {
    return 0;
  }
  const std::vector<float> x(static_cast<std::size_t>(rows * depth), 0.5f);
  std::vector<float> out(static_cast<std::size_t>(rows * columns));
  PackedRows packed;
  LinearScratch scratch;
  pack_rows(context, format, {x, depth, rows, depth}, packed);
  std::size_t call = 0;
  const auto run = [&] {
    linear(context, weights[call++ % weights.size()], packed, {out, columns}, {}, scratch);
  };
  run();
  std::vector<double> times;
  double total = 0;
  while (times.size() < kPasses || total < 0.1) {
    times.push_back(seconds(run));
    total += times.back();
  }
  return 2.0 * static_cast<double>(rows * columns * depth) / median(times);
}

Product product_of(const KernelContext& context, WeightFormat format, std::int64_t rows) {
  const MatmulProducts& products = context.table->products[static_cast<std::size_t>(format)];
  return rows < products.many_rows ? products.few : products.many;
}

double measure_peak(const KernelContext& context, Product product) {
  const PeakLoop& loop = context.table->peaks[static_cast<std::size_t>(product)];
  QUIRE_CHECK(loop.run != nullptr, "no kernel of this instruction set runs such products");
  return peak_rate(context, loop);
}

}  // namespace quire::kernels
