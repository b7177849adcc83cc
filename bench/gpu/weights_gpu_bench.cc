// Matrix products of a layer of Llama-3.1-8B with weights of each format, by the number of rows:
// microseconds of its four products, beside reading their bytes at the rate of read_all, and beside
// 16-bit weights. The head follows alone. Every product of a graph has weights of its own, as many
// as no cache holds.
//
//   weights_gpu_bench [ROWS...]
//
// Bars: of the read floor at one row, and not slower than 16-bit weights up to 64 rows.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "quire/device/accelerator.h"
#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/cuda/coded_matmul.h"
#include "quire/kernels/cuda/matmul.h"
#include "quire/kernels/device_ceilings.h"
#include "quire/kernels/device_codes.h"
#include "quire/tensor/dtype.h"
#include "timing.h"

namespace quire::bench {
namespace {

using device::cuda::DeviceBuffer;
using kernels::CodeFormat;
using kernels::cuda::CodedMatMul;
using kernels::cuda::MatMul;

struct Shape {
  const char* name;
  std::int64_t outputs, inputs;
};
constexpr Shape kLayer[] = {
    {"qkv", 6144, 4096}, {"output", 4096, 4096}, {"gate_up", 28672, 4096}, {"down", 4096, 14336}};
constexpr Shape kHead = {"head", 128256, 4096};

struct Format {
  const char* name;
  std::optional<CodeFormat> code;  // nothing: bf16
  double bar;                      // of the read floor of the layer at one row
};
constexpr Format kFormats[] = {
    {"bfloat16", std::nullopt, 0.0},          {"q8g32", CodeFormat::kQ8, 0.75},
    {"q4g32", CodeFormat::kQ4, 0.70},         {"q4m32", CodeFormat::kQ4Minimum, 0.65},
    {"fp8", CodeFormat::kE4m3, 0.75},         {"t4g32", CodeFormat::kTable, 0.0},
    {"t4g16", CodeFormat::kTableHalves, 0.0}, {"q2m16", CodeFormat::kTwoMinimum, 0.0}};

constexpr std::size_t kWeightBytes = std::size_t{1536} << 20;  // that the products share
constexpr std::size_t kPieceBytes = std::size_t{64} << 20;     // of random bits
constexpr std::int64_t kMostRows = 2048;

std::int64_t bytes_of(const Format& format, const Shape& shape) {
  return format.code ? kernels::device_code_bytes(*format.code, shape.outputs, shape.inputs)
                     : shape.outputs * shape.inputs * 2;
}

class Bench {
 public:
  Bench()
      : accelerator_(must(device::Accelerator::open("cuda"))),
        device_(accelerator_->context()),
        ceilings_(must(kernels::measure_device_ceilings(*accelerator_))),
        weights_(must(DeviceBuffer<std::byte>::make(device_.device_pool(), kWeightBytes))),
        x_(must(DeviceBuffer<std::uint16_t>::make(device_.device_pool(),
                                                  std::size_t{kMostRows} * 14336))),
        out_(must(
            DeviceBuffer<float>::make(device_.device_pool(), std::size_t{kMostRows} * 28672))) {
    // Codes and scales of any bits; half of a bf16's exponent is cleared, so that sums are finite.
    std::mt19937 random(1);
    std::vector<std::uint32_t> bits(kPieceBytes / 4);
    for (std::uint32_t& word : bits) {
      word = static_cast<std::uint32_t>(random()) & 0xbfffbfffu;
    }
    CUstream_st* const stream = device_.compute_stream().get();
    for (std::size_t at = 0; at < kWeightBytes; at += kPieceBytes) {
      must(device::cuda::copy_async(weights_.data() + at, bits.data(), kPieceBytes, stream));
    }
    std::vector<std::uint16_t> values(x_.size());
    std::normal_distribution<float> normal;
    for (std::uint16_t& value : values) {
      value = tensor::float_to_bf16(normal(random));
    }
    must(device::cuda::copy_async(x_.data(), values.data(), x_.bytes(), stream));
    must(device_.compute_stream().synchronize());
  }

  // Returns whether the bars are met.
  bool run(const std::vector<std::int64_t>& rows) {
    std::printf("%s, reads %.0f GB/s\n", accelerator_->name().c_str(),
                ceilings_.read_bytes_per_second * 1e-9);
    bool met = true;
    for (const bool row_invariant : {true, false}) {
      MatMul matmul = must(MatMul::create(device_, row_invariant));
      CodedMatMul coded = must(
          CodedMatMul::create(device_, row_invariant, tensor::DType::kBFloat16, {128256, 14336}));
      std::printf("\n%s\n%-9s %5s %8s %8s %8s %8s %9s %9s %9s %9s\n",
                  row_invariant ? "row-invariant" : "fastest", "weights", "rows", "qkv", "output",
                  "gate_up", "down", "layer us", "of floor", "vs bf16", "head us");
      for (const std::int64_t count : rows) {
        double plain = 0;
        for (const Format& format : kFormats) {
          const double layer = run_layer(format, count, matmul, coded, plain);
          plain = format.code ? plain : layer;
          const double floor_us = floor_of(format);
          const bool slow = count == 1 && floor_us / layer < format.bar;
          const bool slower = count <= 64 && layer > plain;
          met = met && !slow && !slower;
          std::printf("%s\n", slow ? "  bar NOT MET" : slower ? "  slower NOT MET" : "");
        }
      }
    }
    return met;
  }

 private:
  [[nodiscard]] double floor_of(const Format& format) const {
    double bytes = 0;
    for (const Shape& shape : kLayer) {
      bytes += static_cast<double>(bytes_of(format, shape));
    }
    return bytes / ceilings_.read_bytes_per_second * 1e6;
  }

  double run_layer(const Format& format, std::int64_t rows, MatMul& matmul, CodedMatMul& coded,
                   double plain) {
    std::printf("%-9s %5lld", format.name, static_cast<long long>(rows));
    double layer = 0;
    for (const Shape& shape : kLayer) {
      const double each = time_of(format, shape, rows, matmul, coded);
      std::printf(" %8.2f", each);
      layer += each;
    }
    const double head = rows <= 64 ? time_of(format, kHead, rows, matmul, coded) : 0;
    std::printf(" %9.2f %9.3f %9.2f %9.1f", layer, floor_of(format) / layer,
                plain == 0 ? 1.0 : plain / layer, head);
    return layer;
  }

  // Microseconds of one product.
  double time_of(const Format& format, const Shape& shape, std::int64_t rows, MatMul& matmul,
                 CodedMatMul& coded) {
    const std::int64_t bytes = bytes_of(format, shape);
    const auto places = static_cast<std::int64_t>(kWeightBytes) / bytes;
    const int nodes = static_cast<int>(std::clamp<std::int64_t>(places, 1, rows > 64 ? 8 : 24));
    const auto product = [&](int node) {
      const std::byte* const weights = weights_.data() + node % places * bytes;
      if (format.code) {
        must(coded.run({.format = *format.code,
                        .weights = weights,
                        .x = x_.data(),
                        .out = out_.data(),
                        .rows = rows,
                        .outputs = shape.outputs,
                        .inputs = shape.inputs},
                       matmul));
      } else {
        must(matmul.run({.x = x_.data(),
                         .weights = reinterpret_cast<const std::uint16_t*>(weights),
                         .out = out_.data(),
                         .rows = rows,
                         .outputs = shape.outputs,
                         .inputs = shape.inputs}));
      }
    };
    product(0);  // chooses algorithms
    must(device_.compute_stream().synchronize());
    return microseconds(device_, nodes, product);
  }

  const std::unique_ptr<device::Accelerator> accelerator_;
  device::cuda::DeviceContext& device_;
  const kernels::DeviceCeilings ceilings_;
  DeviceBuffer<std::byte> weights_;
  DeviceBuffer<std::uint16_t> x_;
  DeviceBuffer<float> out_;
};

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  std::vector<std::int64_t> rows;
  for (int i = 1; i < argc; ++i) {
    rows.push_back(std::clamp<std::int64_t>(std::atoll(argv[i]), 1, 2048));
  }
  if (rows.empty()) {
    rows = {1, 2, 4, 8, 16, 32, 64, 128, 256, 2048};
  }
  return quire::bench::Bench().run(rows) ? 0 : 1;
}
