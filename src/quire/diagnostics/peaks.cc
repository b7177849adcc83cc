#include "quire/diagnostics/peaks.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <span>
#include <vector>

#include "quire/base/mapped_file.h"
#include "quire/base/stopwatch.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/ceilings.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/packed_weights.h"
#include "quire/result.h"

namespace quire::diagnostics {
namespace {

// A larger set is read as fast as one of this size, which no cache holds.
constexpr double kMostReadBytes = std::size_t{1} << 30;

constexpr int kFileRounds = 9;

// Reads a file once, an equal part on each of `parts` threads, to memory that their caches hold.
Result<double> seconds_of_reading(const base::OpenFile& file, std::int64_t bytes,
                                  device::ThreadPool& pool, int parts) {
  constexpr std::int64_t kPieceBytes = 256 << 10;
  std::vector<std::vector<std::byte>> pieces(static_cast<std::size_t>(parts),
                                             std::vector<std::byte>(kPieceBytes));
  std::vector<Status> outcomes(static_cast<std::size_t>(parts));
  const auto start = std::chrono::steady_clock::now();
  pool.run(parts, [&](int part, int) {
    const std::int64_t end = bytes * (part + 1) / parts;
    auto& piece = pieces[static_cast<std::size_t>(part)];
    for (std::int64_t at = bytes * part / parts; at < end; at += kPieceBytes) {
      const auto count = static_cast<std::size_t>(std::min(kPieceBytes, end - at));
      const auto read = file.read(static_cast<std::uint64_t>(at), std::span(piece).first(count));
      if (!read.ok()) {
        outcomes[static_cast<std::size_t>(part)] = read.error();
        return;
      }
    }
  });
  const double seconds = base::seconds_since(start);
  for (const Status& outcome : outcomes) {
    QUIRE_TRY_STATUS(Status(outcome));
  }
  return seconds;
}

}  // namespace

double Peaks::flops(kernels::WeightFormat format, double rows) {
  if (device_) {
    const bool e4m3 = format == kernels::WeightFormat::kF8;
    return std::max(device_->flops_per_second, e4m3 ? device_->e4m3_flops_per_second : 0);
  }
  return flops(kernels::product_of(context_, format, static_cast<std::int64_t>(rows)));
}

double Peaks::flops(kernels::Product product) {
  if (device_) {
    return device_->flops_per_second;
  }
  double& best = flops_[product];
  best = std::max(best, measure(product));
  return best;
}

double Peaks::measure(kernels::Product product) { return kernels::measure_peak(context_, product); }

double Peaks::read_seconds(double bytes) {
  if (device_) {
    return bytes / device_->read_bytes_per_second;
  }
  const double size = std::min(bytes, kMostReadBytes);
  double& best = read_rates_[size];
  best = std::max(best, kernels::measure_read_bandwidth(context_, static_cast<std::size_t>(size)));
  return bytes / best;
}

Result<double> Peaks::path_seconds(const std::filesystem::path& path) const {
  QUIRE_TRY(const auto file, base::OpenFile::open(path));
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(path));
  double seconds = std::numeric_limits<double>::infinity();
  for (const int parts : {1, context_.pool->threads()}) {
    for (int round = 0; round < kFileRounds; ++round) {
      QUIRE_TRY(const double taken, seconds_of_reading(file, bytes, *context_.pool, parts));
      seconds = std::min(seconds, taken);
    }
  }
  return device_
             ? std::max(seconds, static_cast<double>(bytes) / device_->to_device_bytes_per_second)
             : seconds;
}

}  // namespace quire::diagnostics
