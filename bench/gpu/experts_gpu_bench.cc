// The experts of a layer of Qwen3-30B-A3B (128, of which a row takes 8) with weights of each
// format, by the number of rows: microseconds from the router to the residual stream, beside
// reading the weights of the experts that some row takes, at the rate of read_all. Rows take
// experts at random.
//
//   experts_gpu_bench [ROWS...]
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "quire/device/accelerator.h"
#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/cuda/coded_products.h"
#include "quire/kernels/cuda/experts.h"
#include "quire/kernels/cuda/grouped_products.h"
#include "quire/kernels/cuda/rows.h"
#include "quire/kernels/device_ceilings.h"
#include "quire/kernels/device_codes.h"
#include "quire/tensor/dtype.h"
#include "timing.h"

namespace quire::bench {
namespace {

using device::cuda::DeviceBuffer;
using kernels::CodeFormat;
using kernels::cuda::ExpertRows;

constexpr std::int64_t kHidden = 2048, kInner = 768, kMostRows = 1024;
constexpr std::int32_t kExperts = 128, kChosen = 8;
constexpr int kLayers = 2;  // whose weights take turns: no cache holds them

struct Format {
  const char* name;
  std::optional<CodeFormat> code;  // nothing: bf16
};
constexpr Format kFormats[] = {
    {"bfloat16", std::nullopt}, {"q8g32", CodeFormat::kQ8}, {"q4g32", CodeFormat::kQ4}};

std::int64_t bytes_of(const Format& format, std::int64_t outputs, std::int64_t inputs) {
  return format.code ? kernels::device_code_bytes(*format.code, outputs, inputs)
                     : outputs * inputs * 2;
}
// Returns the bytes of an expert.
std::int64_t expert_bytes(const Format& format) {
  return bytes_of(format, 2 * kInner, kHidden) + bytes_of(format, kHidden, kInner);
}

class Bench {
 public:
  Bench()
      : accelerator_(must(device::Accelerator::open("cuda"))),
        device_(accelerator_->context()),
        ceilings_(must(kernels::measure_device_ceilings(*accelerator_))),
        weights_(make<std::byte>(kLayers * kExperts * expert_bytes(kFormats[0]))),
        router_(make<float>(kExperts * kHidden)),
        norm_(make<float>(kHidden)),
        x_(make<float>(kMostRows * kHidden)),
        normed_(make<std::uint16_t>(kMostRows * kHidden)),
        logits_(make<float>(kMostRows * kExperts)),
        ids_(make<std::int32_t>(kMostRows * kChosen)),
        shares_(make<float>(kMostRows * kChosen)),
        row_of_(make<std::int32_t>(kMostRows * kChosen)),
        places_of_(make<std::int32_t>(kMostRows * kChosen)),
        groups_(
            make<ExpertRows>(kernels::cuda::most_expert_rows(kMostRows * kChosen, kExperts, 8))),
        gate_up_(make<float>(kMostRows * kChosen * 2 * kInner)),
        gated_(make<std::uint16_t>(kMostRows * kChosen * kInner)),
        products_(make<float>(kMostRows * kChosen * kHidden)),
        sums_(make<float>(kMostRows * kHidden)),
        images_(make<std::byte>(kernels::cuda::grouped_images_bytes(
            CodeFormat::kQ8,
            kernels::cuda::most_expert_rows(kMostRows * kChosen, kExperts,
                                            kernels::cuda::kGroupedWideRows),
            kHidden))) {
    fill_random(router_);
    fill_random(norm_);
    fill_random(x_);
    must(device::cuda::fill_async(weights_.data(), 0x3c, weights_.bytes(), stream()));
    must(device_.compute_stream().synchronize());
  }

  void run(const std::vector<std::int64_t>& rows) {
    std::printf("%s, reads %.0f GB/s\n%-9s %5s %8s %9s %9s\n", accelerator_->name().c_str(),
                ceilings_.read_bytes_per_second * 1e-9, "weights", "rows", "experts", "layer us",
                "of floor");
    for (const std::int64_t count : rows) {
      for (const Format& format : kFormats) {
        step(format, count, 0);
        const std::int64_t taken = experts_taken(count);
        const double us = microseconds(device_, 8, [&](int node) { step(format, count, node); });
        const double floor = static_cast<double>(taken * expert_bytes(format)) /
                             ceilings_.read_bytes_per_second * 1e6;
        std::printf("%-9s %5lld %8lld %9.1f %9.3f\n", format.name, static_cast<long long>(count),
                    static_cast<long long>(taken), us, floor / us);
      }
    }
  }

 private:
  template <class T>
  DeviceBuffer<T> make(std::int64_t size) {
    return must(DeviceBuffer<T>::make(device_.device_pool(), static_cast<std::size_t>(size)));
  }
  [[nodiscard]] CUstream_st* stream() const { return device_.compute_stream().get(); }

  void fill_random(const DeviceBuffer<float>& buffer) {
    std::normal_distribution<float> normal;
    std::vector<float> values(buffer.size());
    for (float& value : values) {
      value = normal(random_);
    }
    must(device::cuda::copy_async(buffer.data(), values.data(), buffer.bytes(), stream()));
    must(device_.compute_stream().synchronize());
  }

  // Returns how many experts some row of the last step has taken.
  std::int64_t experts_taken(std::int64_t rows) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(rows * kChosen));
    must(device::cuda::copy_async(ids.data(), ids_.data(), ids.size() * sizeof(ids[0]), stream()));
    must(device_.compute_stream().synchronize());
    return std::ssize(std::set<std::int32_t>(ids.begin(), ids.end()));
  }

  [[nodiscard]] int block_rows_of(const Format& format, std::int64_t places) const {
    using kernels::cuda::GroupedWeights;
    return kernels::cuda::grouped_block_rows(places, kExperts,
                                             !format.code ? GroupedWeights::kFloats
                                             : is_wide_   ? GroupedWeights::kWideCodes
                                                          : GroupedWeights::kCodes);
  }

  void multiply(const Format& format, const std::byte* weights, std::int64_t outputs,
                std::int64_t inputs, std::int64_t rows, bool is_up) {
    const std::int64_t places = rows * kChosen;
    const int block_rows = block_rows_of(format, places);
    must(kernels::cuda::multiply_groups(
        {.weights = {weights, format.code, outputs, inputs},
         .x = is_up ? normed_.data() : gated_.data(),
         .row_of = is_up ? row_of_.data() : nullptr,
         .groups = groups_.data(),
         .num_groups = kernels::cuda::most_expert_rows(places, kExperts, block_rows),
         .block_rows = block_rows,
         .out = is_up ? gate_up_.data() : products_.data(),
         .images = images_.data()},
        stream()));
  }

  // Queues a layer, as model/cuda/expert_mlp.cc does.
  void step(const Format& format, std::int64_t rows, int node) {
    const std::byte* const weights =
        weights_.data() + node % kLayers * kExperts * expert_bytes(format);
    const std::int64_t places = rows * kChosen;
    must(kernels::cuda::rms_norm({.x = x_.data(),
                                  .weight = norm_.data(),
                                  .epsilon = 1e-6f,
                                  .rows = rows,
                                  .width = kHidden,
                                  .out = normed_.data()},
                                 stream()));
    must(kernels::cuda::route({.x = x_.data(),
                               .norm = norm_.data(),
                               .epsilon = 1e-6f,
                               .weights = router_.data(),
                               .rows = rows,
                               .width = kHidden,
                               .experts = kExperts,
                               .logits = logits_.data()},
                              stream()));
    must(kernels::cuda::choose_experts({.logits = logits_.data(),
                                        .rows = rows,
                                        .experts = kExperts,
                                        .chosen = kChosen,
                                        .ids = ids_.data(),
                                        .weights = shares_.data()},
                                       stream()));
    must(kernels::cuda::group_rows({.ids = ids_.data(),
                                    .rows = rows,
                                    .experts = kExperts,
                                    .chosen = kChosen,
                                    .block_rows = block_rows_of(format, places),
                                    .row_of = row_of_.data(),
                                    .places_of = places_of_.data(),
                                    .groups = groups_.data()},
                                   stream()));
    multiply(format, weights, 2 * kInner, kHidden, rows, true);
    must(kernels::cuda::gate_mul(
        {.gate_up = gate_up_.data(), .rows = places, .width = kInner, .out = gated_.data()},
        stream()));
    multiply(format, weights + kExperts * bytes_of(format, 2 * kInner, kHidden), kHidden, kInner,
             rows, false);
    must(kernels::cuda::sum_experts({.products = products_.data(),
                                     .places_of = places_of_.data(),
                                     .weights = shares_.data(),
                                     .rows = rows,
                                     .chosen = kChosen,
                                     .width = kHidden,
                                     .out = sums_.data()},
                                    stream()));
  }
  const std::unique_ptr<device::Accelerator> accelerator_;
  device::cuda::DeviceContext& device_;
  const kernels::DeviceCeilings ceilings_;
  std::mt19937 random_{1};
  DeviceBuffer<std::byte> weights_;
  DeviceBuffer<float> router_, norm_, x_;
  DeviceBuffer<std::uint16_t> normed_;
  DeviceBuffer<float> logits_;
  DeviceBuffer<std::int32_t> ids_;
  DeviceBuffer<float> shares_;
  DeviceBuffer<std::int32_t> row_of_, places_of_;
  DeviceBuffer<ExpertRows> groups_;
  DeviceBuffer<float> gate_up_;
  DeviceBuffer<std::uint16_t> gated_;
  DeviceBuffer<float> products_;
  DeviceBuffer<float> sums_;  // x_ stays as it is, so that all steps choose alike
  DeviceBuffer<std::byte> images_;
  const bool is_wide_ = kernels::cuda::can_multiply_wide();
};

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  std::vector<std::int64_t> rows;
  for (int i = 1; i < argc; ++i) {
    rows.push_back(std::clamp<std::int64_t>(std::atoll(argv[i]), 1, 1024));
  }
  if (rows.empty()) {
    rows = {1, 2, 4, 8, 32, 128, 512, 1024};
  }
  quire::bench::Bench().run(rows);
  return 0;
}
