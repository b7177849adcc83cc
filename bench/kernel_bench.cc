// One row per kernel, instruction set and shape: GB/s or GF/s, and the ratio to what the machine
// reached in the same run (read bandwidth; register peak of the operand type). Shapes are those of
// a 1.1 B Llama (d 2048, 32 heads, 4 KV heads of 64, ffn 5632).
//   kernel_bench [--isa=NAME]... [--format=NAME]... [--threads=N] [--rows=N]... [--no-row-ops]
#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/ceilings.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/elementwise.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/kv_append.h"
#include "quire/kernels/linear.h"
#include "quire/kernels/packed_rows.h"
#include "quire/kernels/packed_weights.h"
#include "quire/kernels/rotary.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/types.h"

namespace {

using namespace quire;           // NOLINT: a program, not a header
using namespace quire::kernels;  // NOLINT: the same

struct Options {
  std::vector<device::Isa> isas;
  std::vector<WeightFormat> formats;
  std::vector<std::int64_t> rows;
  int threads = 2;
  bool row_ops = true;
};

struct Shape {
  const char* name;
  std::int64_t columns, depth;
};
constexpr Shape kLayers[] = {
    {"qkv", 2560, 2048}, {"o", 2048, 2048}, {"gate_up", 11264, 2048}, {"down", 2048, 5632}};
constexpr WeightFormat kFormats[] = {
    WeightFormat::kF32,   WeightFormat::kBf16,  WeightFormat::kQ8g32, WeightFormat::kQ4g32,
    WeightFormat::kQ4m32, WeightFormat::kT4g32, WeightFormat::kT4g16, WeightFormat::kQ2m16};
constexpr std::int64_t kMostStreamedRows = 8;  // up to here weights bound the time, above it FLOPs

// One instruction set with its ceilings.
struct Bench {
  KernelContext context;
  std::string isa;
  double read = 0;
  std::array<double, kProducts> peaks = {};
};

void print_row(const Bench& bench, const std::string& kernel, const std::string& shape, double rate,
               const char* unit, double ceiling) {
  std::printf("%-9s %-18s %-22s %10.2f %s  %5.2f\n", bench.isa.c_str(), kernel.c_str(),
              shape.c_str(), rate / 1e9, unit, rate / ceiling);
  std::fflush(stdout);
}

void bench_linear(const Bench& bench, WeightFormat format, const Shape& shape, std::int64_t rows) {
  const double flops = measure_linear_rate(bench.context, format, rows, shape.columns, shape.depth);
  const std::string kernel = std::string("linear ") + format_name(format);
  const std::string name = std::string(shape.name) + " x " + std::to_string(rows);
  if (rows <= kMostStreamedRows) {
    const double weights = static_cast<double>(shape.columns * shape.depth);
    const double bytes = weights * step_bytes(format) / (kPanelColumns * kStepDepth);
    const double calls = flops / (2.0 * static_cast<double>(rows) * weights);
    print_row(bench, kernel, name, bytes * calls, "GB/s", bench.read);
    return;
  }
  const Product product = product_of(bench.context, format, rows);
  print_row(bench, kernel, name, flops, "GF/s", bench.peaks[static_cast<std::size_t>(product)]);
}

// Median over repeated calls.
template <class Fn>
double seconds_per_call(Fn&& fn) {
  std::vector<double> times;
  fn();
  double total = 0;
  while (total < 0.1) {
    const auto start = std::chrono::steady_clock::now();
    fn();
    times.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    total += times.back();
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                   times.end());
  return times[times.size() / 2];
}

void bench_row_op(const Bench& bench, const char* kernel, std::int64_t rows, double bytes,
                  double seconds) {
  const std::string shape =
      std::to_string(rows) + " rows, " + std::to_string(static_cast<int>(seconds * 1e9)) + " ns";
  print_row(bench, kernel, shape, bytes / seconds, "GB/s", bench.read);
}

void bench_kv_append(const Bench& bench, std::int64_t rows, std::span<const float> x,
                     const RotaryTable& rotary) {
  constexpr std::ptrdiff_t kHalf = std::ptrdiff_t{32} * 64 * 2;
  const int blocks = static_cast<int>(rows / 32 + 1);
  std::vector<std::byte> cache(static_cast<std::size_t>(blocks) * 4 * 2 * kHalf);
  std::vector<tensor::KVSlot> slots(static_cast<std::size_t>(rows));
  for (std::int32_t t = 0; t < static_cast<std::int32_t>(rows); ++t) {
    slots[static_cast<std::size_t>(t)] = {t / 32, t % 32};
  }
  const tensor::PagedKVView view = {.data = cache.data(),
                                    .head_stride = 2 * kHalf * blocks,
                                    .block_stride = 2 * kHalf,
                                    .v_offset = kHalf,
                                    .num_blocks = blocks,
                                    .kv_heads = 4,
                                    .head_dim = 64,
                                    .block_tokens = 32,
                                    .dtype = tensor::DType::kBFloat16};
  const KVAppendParams params = {.k = x,
                                 .v = x,
                                 .k_stride = 2560,
                                 .v_stride = 2560,
                                 .head_dim = 64,
                                 .rotary = &rotary,
                                 .slots = slots};
  bench_row_op(bench, "kv_append bfloat16", rows, static_cast<double>(rows) * 4 * 2 * 64 * 6,
               seconds_per_call([&] { kv_append(bench.context, params, view); }));
}

// Activations of one layer; from the caches, so ratios above 1 are expected.
void bench_row_ops(const Bench& bench, std::int64_t rows) {
  constexpr std::int64_t kWidth = 2048;
  constexpr std::int64_t kFfn = 5632;
  const KernelContext& context = bench.context;
  const auto count = static_cast<std::size_t>(rows);
  const auto values = static_cast<double>(rows);
  std::vector<float> x(count * kFfn * 2, 0.5f);
  std::vector<float> out(count * kFfn);
  const std::vector<float> weight(kWidth, 1.0f);
  bench_row_op(bench, "rms_norm", rows, values * 8 * kWidth,
               seconds_per_call([&] { rms_norm(context, x, weight, 1e-5, rows, out); }));
  PackedRows packed;
  constexpr auto kNext = WeightFormat::kQ4g32;
  bench_row_op(bench, "rms_norm, pack_rows q4g32", rows, values * 4 * kWidth, seconds_per_call([&] {
                 rms_norm(context, x, weight, 1e-5, rows, out);
                 pack_rows(context, kNext, {out, kWidth, rows, kWidth}, packed);
               }));
  bench_row_op(bench, "pack_normed_rows q4g32", rows, values * 4 * kWidth, seconds_per_call([&] {
                 pack_normed_rows(context, kNext, {x, kWidth, rows, kWidth}, {weight, 1e-5},
                                  packed);
               }));
  bench_row_op(bench, "silu_mul", rows, values * 12 * kFfn,
               seconds_per_call([&] { silu_mul(context, x, rows, kFfn, out); }));
  const PackedWeights table(WeightFormat::kBf16, 32000, kWidth);
  std::vector<TokenId> ids(count);
  for (std::size_t i = 0; i < count; ++i) {
    ids[i] = static_cast<TokenId>(i * 7919 % 32000);
  }
  bench_row_op(bench, "embed bfloat16", rows, values * 6 * kWidth,
               seconds_per_call([&] { embed(context, table, ids, out); }));
  RotaryConfig config;
  for (int i = 0; i < 32; ++i) {
    config.inverse_frequencies.push_back(1.0 / (i + 1));
  }
  const std::vector<std::int32_t> positions(count, 4321);
  RotaryTable rotary;
  bench_row_op(bench, "rotary fill", rows, values * 8 * 32,
               seconds_per_call([&] { rotary.fill(context, config, positions); }));
  bench_kv_append(bench, rows, x, rotary);
}

void bench_isa(device::Isa isa, const Options& options, device::ThreadPool& pool) {
  Bench bench = {.context = {&kernels_for(isa), &pool}, .isa = std::string(device::isa_name(isa))};
  bench.read = measure_read_bandwidth(bench.context, std::size_t{1} << 30);
  std::printf("%-9s read %.1f GB/s; peaks", bench.isa.c_str(), bench.read / 1e9);
  constexpr const char* kNames[kProducts] = {
      "floats", "bf16 pairs", "bytes", "small bytes", "bf16 tiles", "byte tiles", "int16 pairs"};
  for (std::size_t i = 0; i < kProducts; ++i) {
    if (bench.context.table->peaks[i].run != nullptr) {
      bench.peaks[i] = measure_peak(bench.context, static_cast<Product>(i));
      std::printf(", %s %.0f", kNames[i], bench.peaks[i] / 1e9);
    }
  }
  std::printf(" GF/s\n");
  for (const WeightFormat format : options.formats) {
    for (const Shape& shape : kLayers) {
      for (const std::int64_t rows : options.rows) {
        bench_linear(bench, format, shape, rows);
      }
    }
  }
  for (const std::int64_t rows : options.rows) {
    if (options.row_ops) {
      bench_row_ops(bench, rows);
    }
  }
}

template <class T>
bool parse_number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value > 0;
}

bool parse(std::string_view argument, Options& options) {
  if (argument.starts_with("--isa=")) {
    const auto isa = device::parse_isa(argument.substr(6));
    if (isa.has_value() && device::isa_supported(*isa)) {
      options.isas.push_back(*isa);
      return true;
    }
    return false;
  }
  if (argument.starts_with("--format=")) {
    for (const WeightFormat format : kFormats) {
      if (argument.substr(9) == format_name(format)) {
        options.formats.push_back(format);
        return true;
      }
    }
    return false;
  }
  if (argument.starts_with("--rows=")) {
    return parse_number(argument.substr(7), options.rows.emplace_back());
  }
  if (argument.starts_with("--threads=")) {
    return parse_number(argument.substr(10), options.threads);
  }
  options.row_ops = false;
  return argument == "--no-row-ops";
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    if (!parse(argv[i], options)) {
      std::fprintf(stderr,
                   "kernel_bench: cannot use %s; arguments: --isa=NAME (one that this machine "
                   "runs), --format=NAME, --threads=N, --rows=N, --no-row-ops\n",
                   argv[i]);
      return 2;
    }
  }
  if (options.isas.empty()) {
    options.isas = device::supported_isas();
  }
  if (options.formats.empty()) {
    options.formats.assign(std::begin(kFormats), std::end(kFormats));
  }
  if (options.rows.empty()) {
    options.rows = {1, 8, 32, 512};
  }
  device::ThreadPool pool(options.threads);
  for (const device::Isa isa : options.isas) {
    bench_isa(isa, options, pool);
  }
  return 0;
}
